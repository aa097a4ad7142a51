"""Forget quality (FQ): whether truth ratios on the data to forget are distributed as the retrained model's.

The p-value of the two-sample Kolmogorov-Smirnov test, exact, and as a logarithm: 400 items already reach 10⁻²³⁰.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from letheon.errors import DataError
from letheon.metrics.interval import Floats
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.text.scores import Scores
from letheon.metrics.text.truth_ratio import form_of

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class ForgetQuality:
    """The test's outcome. A large p is no proof of forgetting: with few items nothing is told apart.

    Attributes:
        distance: D in [0, 1], the largest gap between the two distribution functions, with its interval.
        log10_p: decimal logarithm of the p-value; 0 is p = 1.
        n_reference: items of the retrained model.
    """

    distance: Measurement
    log10_p: float | Undefined
    n_reference: int

    @property
    def p(self) -> float | Undefined:
        """The p-value itself; 0 where a float holds none so small."""
        return self.log10_p if isinstance(self.log10_p, Undefined) else 10.0**self.log10_p


def forget_quality(ours: Scores, reference: Scores) -> ForgetQuality:
    """FQ of log truth ratios on the data to forget, against the retrained model's.

    The samples need not be of the same items, but of the same definition. Taking logarithms or 1/R changes nothing.

    Raises:
        DataError: the two are defined differently.
    """
    form_of(ours)
    if ours.definition != reference.definition:
        raise DataError(f"{ours.definition} and {reference.definition} are different numbers and cannot be compared")
    first, second = (np.array(list(scores.defined.values())) for scores in (ours, reference))
    n, m = len(first), len(second)
    nothing = ours.measured().value if not isinstance(ours.measured().value, float) else reference.measured().value
    if isinstance(nothing, Undefined):
        return ForgetQuality(Measurement(nothing, None, None, n), nothing, m)
    gap = largest_gap(first, second)
    distance, half = gap / (n * m), _half_width(n) + _half_width(m)
    low, high = max(0.0, distance - half), min(1.0, distance + half)
    return ForgetQuality(Measurement(distance, low, high, n), log_p_value(gap, n, m) / math.log(10.0), m)


def largest_gap(first: Floats, second: Floats) -> int:
    """N·m·D as an integer, which D itself as a float is not: max |m·#{first ≤ x} − n·#{second ≤ x}|."""
    points = np.concatenate([first, second])
    below_first = np.searchsorted(np.sort(first), points, "right")
    below_second = np.searchsorted(np.sort(second), points, "right")
    return int(np.abs(below_first * len(second) - below_second * len(first)).max())


def log_p_value(gap: int, n: int, m: int) -> float:
    """Natural logarithm of P(n·m·D ≥ gap) when both samples are from one continuous distribution.

    All orders of the n + m values are equally likely: paths from (0, 0) to (n, m). With Q(x, y) the share of paths to
    (x, y) that were ever ``gap`` away from the diagonal, Q is 1 there and x/(x+y)·Q(x−1, y) + y/(x+y)·Q(x, y−1)
    elsewhere (Hodges 1957). Only positive terms, and logarithms of them: neither cancellation nor underflow.
    """
    if gap <= 0:
        return 0.0
    log_q = np.full(n + 1, -np.inf)  # over x, on the diagonal x + y = s
    for s in range(1, n + m + 1):
        first, last = max(0, s - m), min(n, s)
        x = np.arange(first, last + 1)
        step = np.full(len(x), -np.inf)
        is_right, is_up = x > 0, x < s
        step[is_right] = log_q[x[is_right] - 1] + np.log(x[is_right] / s)
        up = np.full(len(x), -np.inf)
        up[is_up] = log_q[x[is_up]] + np.log((s - x[is_up]) / s)
        found = np.where(np.abs(x * m - (s - x) * n) >= gap, 0.0, np.logaddexp(step, up))
        log_q = np.full(n + 1, -np.inf)
        log_q[x] = found
    return min(0.0, float(log_q[n]))


def _half_width(n: int) -> float:
    """How far an empirical distribution function is off at most, for half of what the interval may miss (Massart)."""
    return math.sqrt(math.log(4.0 / (1.0 - CONFIDENCE)) / (2.0 * n))
