"""Resurfacing rate (RR, Eq. 5), and when it is not defined."""

from __future__ import annotations

import numpy as np

from letheon.metrics.interval import Floats, bootstrap, resampled_shares, wilson
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.retention import Bits, reduced

UF_SHARE = 0.25
"""Forgetting failed when U-KR keeps more than this share of the way from Retrain to Origin."""


def resurfacing_rate(ct_kr: float, kr_origin: float, ct_kr_retrain: float) -> float:
    """Eq. (5) in per cent; clipped below at 0, not above. All arguments in the same unit.

    The published numbers use Retrain's CT-KR, reduced like the method's, as KR^re.

    Raises:
        ValueError: KR^ori does not exceed KR^re.
    """
    if kr_origin <= ct_kr_retrain:
        raise ValueError("resurfacing_rate: Origin knows no more than Retrain; the rate is undefined")
    return 100.0 * max(0.0, ct_kr - ct_kr_retrain) / (kr_origin - ct_kr_retrain)


def too_little_room(kr_origin: float, ct_kr_retrain: float, n: int) -> Undefined | None:
    """Why the rate is undefined, if Origin and Retrain are within 5 points or 5 samples of each other (per cent)."""
    room = kr_origin - ct_kr_retrain
    least = max(5.0, 500.0 / n)
    if room > least:
        return None
    return Undefined(
        f"Origin's retention exceeds Retrain's by {room:.2f} points only; more than {least:.2f} are needed for n = {n}"
    )


def unsuccessful(u_kr: float, kr_origin: float, kr_retrain: float) -> Undefined | None:
    """Whether the method failed to forget in the first place (UF); per cent. The paper gives no threshold."""
    limit = kr_retrain + UF_SHARE * (kr_origin - kr_retrain)
    if u_kr <= limit:
        return None
    return Undefined(f"unsuccessful forgetting: U-KR {u_kr:.2f} exceeds {limit:.2f}", "uf")


def resurfacing(method: Bits, retrain: Bits, origin: Bits) -> Measurement:
    """RR from outcomes on the same n samples, headline reduction (max over t ≥ 1).

    Where every resample gives 0 the bootstrap knows no width; the upper end then is the rate at the upper end of the
    method's CT-KR (Wilson).

    Args:
        method: ``(rounds, n)`` outcomes in continued training.
        retrain: the same of Retrain, over the same rounds.
        origin: ``(n,)`` outcomes of the model before unlearning.
    """
    n = len(origin)
    kr_origin = 100.0 * float(origin.mean())
    ct, ct_retrain = (float(reduced(100.0 * bits.mean(1), "max")) for bits in (method, retrain))
    undefined = too_little_room(kr_origin, ct_retrain, n)
    if undefined:
        return Measurement(undefined, None, None, n)

    def statistic(weights: Floats) -> Floats:
        ours = reduced(resampled_shares(method, weights), "max")
        reference = reduced(resampled_shares(retrain, weights), "max")
        room = np.maximum(resampled_shares(origin[None], weights)[:, 0] - reference, 1e-9)
        return 100.0 * np.maximum(0.0, ours - reference) / room

    low, high = bootstrap(statistic, n)
    if low == high == 0.0:
        highest = 100.0 * wilson(round(ct * n / 100.0), n)[1]
        high = resurfacing_rate(highest, kr_origin, ct_retrain)
    return Measurement(resurfacing_rate(ct, kr_origin, ct_retrain), low, high, n)
