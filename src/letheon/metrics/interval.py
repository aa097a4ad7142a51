"""Confidence intervals: Wilson for a share, bootstrap over samples for reductions of curves."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from letheon.metrics.measurement import Measurement, Undefined

Z95 = 1.959963984540054
RESAMPLES = 1000
Floats = NDArray[np.float64]


def wilson(correct: int, n: int) -> tuple[float, float]:
    """95 % score interval of a binomial share (Wilson 1927), as shares. n = 0 gives (0, 1)."""
    if not 0 <= correct <= n:
        raise ValueError(f"wilson: {correct} of {n} is not a share")
    if n == 0:
        return 0.0, 1.0
    share, z2 = correct / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * (share * (1 - share) / n + z2 / (4 * n * n)) ** 0.5
    # At the ends the two terms are equal but for rounding.
    return 0.0 if correct == 0 else max(0.0, centre - half), 1.0 if correct == n else min(1.0, centre + half)


def share(correct: int, n: int) -> Measurement:
    """A share in per cent with its Wilson interval; of nothing, it is undefined."""
    if n == 0:
        return Measurement(Undefined("a share of no samples"), None, None, 0)
    low, high = wilson(correct, n)
    return Measurement(100.0 * correct / n, 100.0 * low, 100.0 * high, n)


def resampled_shares(bits: NDArray[np.bool_], weights: Floats) -> Floats:
    """``(rounds, n)`` outcomes and ``(resamples, n)`` weights to ``(resamples, rounds)`` shares in per cent."""
    shares: Floats = 100.0 * (weights @ bits.T.astype(np.float64)) / weights.sum(1, keepdims=True)
    return shares


@lru_cache(maxsize=4)
def bootstrap_weights(n: int, *, seed: int = 0, resamples: int = RESAMPLES) -> Floats:
    """``(resamples, n)``: how often each of n samples is drawn in each resample."""
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(n, np.full(n, 1.0 / n), size=resamples).astype(np.float64)
    weights.setflags(write=False)  # shared by all callers
    return weights


def bootstrap(statistic: Callable[[Floats], Floats], n: int) -> tuple[float, float]:
    """95 % percentile interval of ``statistic``, which maps weights ``(resamples, n)`` to ``(resamples,)`` values.

    Samples are resampled, rounds are not: successive rounds of one model are not independent.
    """
    values = statistic(bootstrap_weights(n))
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
