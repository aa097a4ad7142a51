"""Relearning budget: how much training on the data to forget brings the knowledge back?"""

from __future__ import annotations

from collections.abc import Sequence

from letheon.metrics.interval import wilson
from letheon.metrics.measurement import Measurement, Undefined

RELEARNT = 0.5
"""The knowledge is back when KR reaches this share of Origin's."""


def budget(correct: Sequence[int], n: int, *, kr_origin: float, share: float = RELEARNT, unit: str) -> Measurement:
    """The first round after which KR ≥ ``share`` · KR of Origin; 0 if it never went below.

    Its interval: the first rounds at which the upper and the lower end of KR's 95 % interval (Wilson) reach the target;
    None where that did not happen.

    Args:
        correct: right answers on the data to forget, of the unlearned model and then after each round.
        n: samples to forget.
        kr_origin: KR of the original model, per cent.
        share: of it, to reach.
        unit: what a round is called, in the plural.
    """
    target = share * kr_origin / 100.0
    if target <= 0.0:
        return Measurement(Undefined("the original model knows nothing of the data to forget"), None, None, n)
    ends = [wilson(count, n) for count in correct]
    value = _first([count / n for count in correct], target)
    low, high = _first([end[1] for end in ends], target), _first([end[0] for end in ends], target)
    if value is None:
        limit = len(correct) - 1
        return Measurement(Undefined(f"more than {limit} {unit}: KR reaches {_best(correct, n):.1f} %"), low, high, n)
    return Measurement(value, low, high, n)


def _first(shares: Sequence[float], target: float) -> float | None:
    return next((float(t) for t, share in enumerate(shares) if share >= target), None)


def _best(correct: Sequence[int], n: int) -> float:
    return 100.0 * max(correct) / n
