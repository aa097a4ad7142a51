"""Do published and measured numbers put the methods into the same order, and does what the text says hold?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from letheon.metrics.measurement import Undefined
from letheon.reproduce.published import Cell, Claim
from letheon.reproduce.quantities import Quantity

Values = Mapping[str, float | Undefined]
"""By method: what was measured, or why it has no value."""

Status = Literal["agrees", "disagrees", "undefined"]
NOT_RUN = Undefined("not run")


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two orders of the same methods compare, pair by pair.

    Attributes:
        status: ``agrees`` (no pair the other way round, at least one the same way), ``disagrees``, or ``undefined``.
        pairs: pairs that the paper orders.
        same: of these, in the same order here.
        reversed: of these, in the opposite order, in words.
        unresolved: of these, too close together here.
        left_out: methods that could not be ranked, each with the reason.
        reason: why there is no answer; empty if there is one.
    """

    status: Status
    pairs: int = 0
    same: int = 0
    reversed: tuple[str, ...] = ()
    unresolved: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """A sentence of the paper, held against a measurement; ``open``: what was measured does not decide it."""

    text: str
    status: Literal["holds", "fails", "open"]
    reason: str


def agreement(published: Mapping[str, Cell], measured: Values, quantity: Quantity) -> Agreement:
    """Compare the order of the methods that both sides have.

    Two published values that are too close to each other are no claim about an order, and such pairs are not counted.
    A mark instead of a number (``UF``) on either side leaves its method out: it has no place in an order of rates.
    """
    theirs: dict[str, float] = {}
    ours: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for method, printed in published.items():
        found = measured.get(method, NOT_RUN)
        if isinstance(printed, str):
            left_out[method] = f"published as {printed}"
        elif isinstance(found, Undefined):
            left_out[method] = found.reason
        else:
            theirs[method], ours[method] = printed, found
    same, unresolved, reversed_ = 0, 0, []
    for a, b in combinations(theirs, 2):
        printed_order, order = quantity.order(theirs[a], theirs[b]), quantity.order(ours[a], ours[b])
        if not printed_order:
            continue
        same += order == printed_order
        unresolved += not order
        if order == -printed_order:
            low, high = (a, b) if printed_order < 0 else (b, a)
            reversed_.append(f"{low} lies below {high} in the paper and above it here")
    counts = {"pairs": same + unresolved + len(reversed_), "same": same, "unresolved": unresolved}
    status: Status = "disagrees" if reversed_ else "agrees" if same else "undefined"
    reason = "" if same or reversed_ else _undecided(len(theirs), unresolved)
    return Agreement(status, **counts, reversed=tuple(reversed_), left_out=left_out, reason=reason)


def _undecided(methods: int, unresolved: int) -> str:
    if methods < 2:
        return "fewer than two methods have a number on both sides"
    return "what the paper orders lies too close together here" if unresolved else "the paper's numbers order no pair"


def check(claim: Claim, measured: Values, quantity: Quantity) -> Checked:
    """Hold a claim against a measurement. Methods without a value are left out and named."""
    found = list(_nearness(claim, measured) if claim.near else _pairs(claim, measured, quantity))
    missing = _missing((*claim.low, *claim.high, *claim.near, *([claim.to] if claim.near else [])), measured)
    failed = [text for verdict, text in found if verdict < 0]
    close = [f"too close to tell: {text}" for verdict, text in found if verdict == 0]
    if failed:
        return Checked(claim.text, "fails", "; ".join(failed))
    if close or not found:
        return Checked(claim.text, "open", "; ".join([*close, *missing]))
    return Checked(claim.text, "holds", "; ".join([*(text for _, text in found), *missing]))


Found = Iterator[tuple[int, str]]
"""1, 0 or −1 (as claimed, too close, the other way round), and the two values in words."""


def _pairs(claim: Claim, measured: Values, quantity: Quantity) -> Found:
    for low, a in _known(claim.low, measured):
        for high, b in _known(claim.high, measured):
            if isinstance(low, str) or isinstance(high, str):  # two numbers are no measurement
                yield -quantity.order(a, b), f"{_told(low, a)} against {_told(high, b)}"


def _nearness(claim: Claim, measured: Values) -> Found:
    for target, centre in _known((claim.to,), measured):
        for entry, value in _known(claim.near, measured):
            verdict = 1 if abs(value - centre) <= claim.within else -1
            yield verdict, f"{_told(entry, value)} against {_told(target, centre)}"


def _known(entries: Sequence[float | str], measured: Values) -> Iterator[tuple[float | str, float]]:
    """The entries that have a value, with it."""
    for entry in entries:
        value = measured.get(entry, NOT_RUN) if isinstance(entry, str) else entry
        if not isinstance(value, Undefined):
            yield entry, value


def _missing(entries: Iterable[float | str], measured: Values) -> list[str]:
    """The methods without a value, by reason: ``lethe, not: the run is void``."""
    reasons: dict[str, list[str]] = {}
    for entry in dict.fromkeys(entries):
        value = measured.get(entry, NOT_RUN) if isinstance(entry, str) else entry
        if isinstance(value, Undefined):
            reasons.setdefault(value.reason, []).append(str(entry))
    return [f"{', '.join(methods)}: {reason}" for reason, methods in reasons.items()]


def _told(entry: float | str, value: float) -> str:
    return f"{entry} {value:.3g}" if isinstance(entry, str) else f"{value:g}"
