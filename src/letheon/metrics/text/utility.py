"""Model utility (MU) of a language model: the harmonic mean of what it still can, over sets and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from letheon.errors import DataError
from letheon.metrics.interval import Floats, bootstrap_weights
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.text.scores import Scores, between, comparable

Sets = Mapping[str, Mapping[str, Scores]]
"""Scores by set and metric, e.g. ``sets["retain"]["rouge"]``."""
TOFU: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("retain", "real_authors", "world_facts"), ("probability", "rouge", "truth_ratio")
)
"""TOFU's nine numbers: probability among the options and truth ratio ``true`` where answers come with options."""


@dataclass(frozen=True, slots=True)
class Utility:
    """MU with the numbers that it is the mean of.

    Attributes:
        value: in per cent.
        parts: by ``set metric``, in per cent.
        collapsed_by: the parts that are 0 and make the whole 0; usually none.
    """

    value: Measurement
    parts: Mapping[str, Measurement]
    collapsed_by: tuple[str, ...]


def harmonic_mean(values: Sequence[float]) -> float:
    """N / Σ 1/v; 0 if any value is 0.

    Raises:
        ValueError: a value is negative or no number.
    """
    if not values or any(not math.isfinite(value) or value < 0.0 for value in values):
        raise ValueError(f"harmonic_mean: of {list(values)}; numbers from 0 up are wanted")
    return 0.0 if min(values) == 0.0 else len(values) / math.fsum(1.0 / value for value in values)


def model_utility(sets: Sets, *, needs: Mapping[str, Sequence[str]] = TOFU) -> Utility:
    """MU over the sets and metrics that its definition needs, no more and no fewer.

    The interval resamples the items of each set, all metrics of a set together and the sets apart. It does not cover
    which sets and metrics were chosen.

    Raises:
        DataError: parts are missing, or there are others.
    """
    _refuse_incomplete(sets, needs)
    parts = {f"{name} {metric}": scores.measured() for name, row in sets.items() for metric, scores in row.items()}
    n = sum(max(len(scores.defined) for scores in row.values()) for row in sets.values())
    undefined = {part: m.value for part, m in parts.items() if isinstance(m.value, Undefined)}
    if undefined:
        return Utility(Measurement(_why(undefined), None, None, n), parts, ())
    values = {part: float(m.value) for part, m in parts.items() if not isinstance(m.value, Undefined)}
    mean = harmonic_mean(list(values.values()))
    measured = between(mean, _ends(resampled(sets)), min(m.n for m in parts.values()), unit="share")
    collapsed_by = tuple(part for part, value in values.items() if value == 0.0)
    return Utility(Measurement(measured.value, measured.low, measured.high, n), parts, collapsed_by)


def utility_change(after: Sets, before: Sets, *, needs: Mapping[str, Sequence[str]] = TOFU) -> Measurement:
    """MU after less MU before, in points, over the same items: negative is a drop. Paired."""
    new, old = model_utility(after, needs=needs), model_utility(before, needs=needs)
    for name, row in after.items():
        for metric, scores in row.items():
            comparable(scores, before[name][metric])
    for value in (new.value.value, old.value.value):
        if isinstance(value, Undefined):
            return Measurement(value, None, None, new.value.n)
    change = float(new.value.value) - float(old.value.value)  # type: ignore[arg-type]
    return between(change, _ends(resampled(after) - resampled(before)), new.value.n, unit="number")


def resampled(sets: Sets) -> Floats:
    """``(resamples,)`` values of MU in per cent; two models on the same items get the same resamples."""
    means = [mean for i, row in enumerate(sets.values()) for mean in _means(row, seed=i)]
    parts = np.stack(means)
    is_zero = (parts <= 0.0).any(0)
    harmonic = len(parts) / (1.0 / np.where(is_zero, 1.0, parts)).sum(0)
    return np.asarray(100.0 * np.where(is_zero, 0.0, harmonic))


def _means(row: Mapping[str, Scores], *, seed: int) -> list[Floats]:
    """For each metric of a set ``(resamples,)`` means; one and the same item has one weight in all of them."""
    items = sorted({item for scores in row.values() for item in scores.values})
    weights = bootstrap_weights(len(items), seed=seed)
    means = []
    for scores in row.values():
        found = scores.defined
        values = np.array([found.get(item, 0.0) for item in items])
        is_there = np.array([float(item in found) for item in items])
        means.append(weights @ values / np.maximum(weights @ is_there, 1.0))
    return means


def _ends(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _why(undefined: Mapping[str, Undefined]) -> Undefined:
    first = next((why for why in undefined.values() if why.status == "collapsed"), next(iter(undefined.values())))
    return Undefined(f"{', '.join(undefined)}: {first.reason}", first.status)


def _refuse_incomplete(sets: Sets, needs: Mapping[str, Sequence[str]]) -> None:
    wanted = {f"{name} {metric}" for name, metrics in needs.items() for metric in metrics}
    found = {f"{name} {metric}" for name, row in sets.items() for metric in row}
    if wanted != found:
        told = [
            f"{', '.join(sorted(group))} {verb}"
            for group, verb in ((wanted - found, "missing"), (found - wanted, "unknown"))
            if group
        ]
        raise DataError(f"model utility is the mean of {len(wanted)} numbers: {'; '.join(told)}")
