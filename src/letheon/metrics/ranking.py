"""How well one number tells two kinds of samples apart: the area under the ROC curve, with its interval."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from letheon.metrics.interval import RESAMPLES, Floats, wilson
from letheon.metrics.measurement import Measurement

Statistic = Callable[[Floats, Floats], float]


def auc(positives: Floats, negatives: Floats) -> float:
    """Share of pairs in which the positive scores higher; ties count half."""
    ranked = np.sort(negatives)
    below, upto = np.searchsorted(ranked, positives, "left"), np.searchsorted(ranked, positives, "right")
    return float((below + upto).sum()) / (2.0 * len(positives) * len(negatives))


def area(positives: Floats, negatives: Floats) -> Measurement:
    """AUC with its bootstrap interval; where no resample differs, Wilson's for the smaller set."""
    value, n = auc(positives, negatives), len(positives)
    low, high = resampled(auc, positives, negatives)
    if low == high:
        least = min(n, len(negatives))
        low, high = wilson(round(value * least), least)
    return Measurement(value, low, high, n)


def resampled(statistic: Statistic, first: Floats, second: Floats) -> tuple[float, float]:
    """95 % percentile interval of a statistic of two independent samples; both are resampled."""
    generator = np.random.default_rng(0)
    values = [
        statistic(generator.choice(first, len(first)), generator.choice(second, len(second)))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
