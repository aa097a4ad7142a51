"""Replies whose update is far longer than those of the others to the same work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from letheon import tree
from letheon.client import KINDS
from letheon.errors import ConfigError
from letheon.work import Reply, Work

LEAST = 3
"""Replies that can be compared: of two nobody can say which is the odd one."""

Judged = tuple[Reply, str]
"""A reply, and why it cannot be used; empty if it can."""


def demand_factor(factor: float | None) -> None:
    """Raise ``ConfigError`` unless the factor is one, or there is none."""
    if factor is not None and factor <= 1:
        raise ConfigError(f"outlier_factor: must be greater than 1, got {factor:g}; false compares no replies")


def outlying(judged: Iterable[Judged], works: Sequence[Work], factor: float) -> Iterator[Judged]:
    """The same replies in the same order; one that is too long can no longer be used.

    Too long is a norm over ``factor`` times the median of the usable replies to the same work: what one work asks for
    is long where another's is short, and an ascent is none of training. Kinds of work that answer in no given shape
    (``free``) are not compared, nor are fewer than ``LEAST`` replies, nor any while most of them are zero. All replies
    are held until the last is there.
    """
    held = list(judged)
    for index, work in enumerate(works):
        lengths = {
            place: tree.norm(reply.tensors)
            for place, (reply, reason) in enumerate(held)
            if reply.work == index and not reason and reply.weight > 0
        }
        if len(lengths) < LEAST or work.kind not in KINDS or KINDS[work.kind].answers == "free":
            continue
        middle = median(lengths.values())
        for place, length in lengths.items():
            if length > factor * middle > 0.0:
                held[place] = (held[place][0], _reason(length, middle, len(lengths), factor))
    yield from held


def _reason(length: float, middle: float, count: int, factor: float) -> str:
    return (
        f"its update has the norm {length:.3g}, {length / middle:.1f} times the median of the {count} replies to the "
        f"same work; up to {factor:g} times is believed (outlier_factor)"
    )
