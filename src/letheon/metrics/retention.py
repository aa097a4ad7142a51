"""Knowledge retention (KR, Eq. 3) and its course through continued training (CT-KR).

Retention is measured against the labels that the data to forget carried in training.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from letheon.metrics.interval import Floats, bootstrap, resampled_shares, share, wilson
from letheon.metrics.measurement import Measurement

Bits = NDArray[np.bool_]
Reduction = Literal["max", "mean", "last"]


def retention(correct: Bits) -> Measurement:
    """KR in per cent from ``(n,)`` outcomes on the data to forget."""
    return share(int(correct.sum()), len(correct))


def reduced(shares: Floats, reduction: Reduction) -> Floats:
    """``(…, rounds)`` shares over rounds t ≥ 1 to ``(…,)``."""
    if reduction == "last":
        return shares[..., -1]
    return np.asarray(shares.max(-1) if reduction == "max" else shares.mean(-1))


def continued_retention(correct: Bits, reduction: Reduction) -> Measurement:
    """CT-KR in per cent from ``(rounds, n)`` outcomes after rounds t ≥ 1 of continued training.

    t = 0, the unlearned model itself, is left out: it is U-KR. Where no resample differs (0 or 100 %), the bootstrap
    knows no width, and the interval is Wilson's.
    """
    rounds, n = correct.shape
    if rounds == 0 or n == 0:
        raise ValueError("continued_retention: needs at least one round and one sample")
    value = float(reduced(100.0 * correct.mean(1), reduction))
    low, high = bootstrap(lambda weights: reduced(resampled_shares(correct, weights), reduction), n)
    if low == high:
        low, high = (100.0 * end for end in wilson(round(value * n / 100.0), n))
    return Measurement(value, low, high, n)
