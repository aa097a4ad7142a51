"""What one definition gives for each item: the material of every mean, interval and comparison of text metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from letheon.errors import DataError
from letheon.metrics.interval import Floats, bootstrap, wilson
from letheon.metrics.measurement import Measurement, Undefined

Value = float | Undefined
Unit = Literal["share", "number"]
NAMED = 5
"""So many items are named in a message; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One number for each item, by its id, and what the number is.

    Attributes:
        definition: see ``letheon.metrics.text.definition``.
        values: by item id; an item without a value says why.
        unit: ``share`` is in [0, 1] and measured in per cent; ``number`` is anything else, measured as it is.
    """

    definition: str
    values: Mapping[str, Value]
    unit: Unit = "share"

    def __post_init__(self) -> None:
        low, high = (0.0, 1.0) if self.unit == "share" else (-math.inf, math.inf)
        wrong = [i for i, v in self.values.items() if isinstance(v, float) and not low <= v <= high]
        wrong += [i for i, v in self.values.items() if isinstance(v, float) and not math.isfinite(v) and i not in wrong]
        if wrong:
            told = ", ".join(f"{i} is {self.values[i]}" for i in wrong[:NAMED])
            raise ValueError(f"{self.definition}: {told}; a {self.unit} is wanted, or Undefined with the reason")

    @property
    def defined(self) -> dict[str, float]:
        """The items that have a value."""
        return {item: value for item, value in self.values.items() if not isinstance(value, Undefined)}

    @property
    def left_out(self) -> dict[str, str]:
        """Why each of the other items has none."""
        return {item: value.reason for item, value in self.values.items() if isinstance(value, Undefined)}

    def mean(self) -> Value:
        """Over the items that have a value, in the items' own unit."""
        found = self.defined.values()
        return _without_mean(self) or math.fsum(found) / len(found)

    def measured(self) -> Measurement:
        """The mean with its bootstrap interval over the items, n being those that have a value.

        Where no resample differs the bootstrap knows no width: a share then gets Wilson's interval, a number none. One
        item of a destroyed model makes the whole mean undefined.
        """
        found = np.array(list(self.defined.values()), dtype=np.float64)
        nothing = _without_mean(self)
        if nothing:
            return Measurement(nothing, None, None, len(found))
        factor = 100.0 if self.unit == "share" else 1.0
        low, high = bootstrap(lambda weights: factor * (weights @ found) / len(found), len(found))
        return between(factor * math.fsum(found) / len(found), (low, high), len(found), unit=self.unit)


def between(value: float, ends: tuple[float, float], n: int, *, unit: Unit) -> Measurement:
    """A value with the ends of its bootstrap interval, or what replaces them where they coincide."""
    low, high = ends
    if high - low > 1e-12 * max(1.0, abs(value)):
        return Measurement(value, low, high, n)
    if unit == "number":
        return Measurement(value, None, None, n)
    low, high = (100.0 * end for end in wilson(round(min(1.0, value / 100.0) * n), n))
    return Measurement(value, low, high, n)


def each(compute: Callable[..., Value], *columns: Mapping[str, Any]) -> dict[str, Value]:
    """``compute`` for each item, from its value in each column; an undefined part is handed on.

    Raises:
        DataError: the columns do not hold the same items.
    """
    for column in columns[1:]:
        same_items(columns[0], column)
    found: dict[str, Value] = {}
    for item in columns[0]:
        parts = [column[item] for column in columns]
        missing = next((part for part in _flat(parts) if isinstance(part, Undefined)), None)
        found[item] = missing or compute(*parts)
    return found


def same_items(first: Iterable[str], second: Iterable[str]) -> None:
    """Raises ``DataError`` and names what one lacks, unless both hold the same items in whatever order."""
    ours, theirs = set(first), set(second)
    if ours != theirs:
        raise DataError(f"items differ: {named(ours - theirs)} only in the first, {named(theirs - ours)} in the second")


def comparable(first: Scores, second: Scores) -> None:
    """Raises ``DataError`` unless both are of the same definition and the same items."""
    if first.definition != second.definition:
        raise DataError(
            f"{first.definition} and {second.definition} are different numbers and cannot be compared; "
            "compute both by one definition"
        )
    same_items(first.values, second.values)


def pairs(first: Scores, second: Scores) -> tuple[Floats, Floats]:
    """Two arrays ``(n,)`` over the items for which both have a value, in the same order."""
    comparable(first, second)
    items = [item for item in first.defined if item in second.defined]
    ours, theirs = first.defined, second.defined
    return np.array([ours[i] for i in items]), np.array([theirs[i] for i in items])


def difference(ours: Scores, reference: Scores) -> Measurement:
    """Mean of ours less mean of the reference over the same items, paired; in points where the unit is a share."""
    a, b = pairs(ours, reference)
    nothing = _without_mean(ours) or _without_mean(reference)
    if nothing is None and not len(a):
        nothing = Undefined("no item has a value in both")
    if nothing:
        return Measurement(nothing, None, None, len(a))
    factor = 100.0 if ours.unit == "share" else 1.0
    gap = factor * (a - b)
    ends = bootstrap(lambda weights: weights @ gap / len(gap), len(gap))
    return between(math.fsum(gap) / len(gap), ends, len(gap), unit="number")


def named(items: Iterable[str]) -> str:
    """A few of the items, and how many more there are."""
    found = sorted(items, key=lambda item: (len(item), item))
    rest = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + rest if found else "none"


def _without_mean(scores: Scores) -> Undefined | None:
    missing = [value for value in scores.values.values() if isinstance(value, Undefined)]
    destroyed = [value for value in missing if value.status == "collapsed"]
    if destroyed:
        return Undefined(f"{len(destroyed)} of {len(scores.values)} items: {destroyed[0].reason}", "collapsed")
    if len(missing) < len(scores.values):
        return None
    return Undefined(f"no item has a value: {missing[0].reason}" if missing else "a mean of no items")


def _flat(parts: Iterable[Any]) -> Iterable[Any]:
    for part in parts:
        yield from part if isinstance(part, list | tuple) else (part,)
