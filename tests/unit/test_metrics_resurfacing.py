"""RR, and every reason why there may be none."""

from __future__ import annotations

import numpy as np
import pytest

from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.resurfacing import resurfacing, resurfacing_rate, too_little_room, unsuccessful

N = 200


def bits(*shares: float) -> np.ndarray:
    """For each share in per cent, a round in which the first so many of 200 samples are known."""
    return np.array([np.arange(N) < share * N / 100.0 for share in shares])


ORIGIN, RETRAIN = bits(95.0)[0], bits(2.0, 3.0, 1.0)


def rr(method: np.ndarray, retrain: np.ndarray = RETRAIN, origin: np.ndarray = ORIGIN) -> Measurement:
    return resurfacing(method, retrain, origin)


def test_the_rate_is_the_way_from_retrain_to_origin_that_came_back() -> None:
    assert resurfacing_rate(26.0, 95.0, 3.0) == pytest.approx(25.0)
    assert resurfacing_rate(0.26, 0.95, 0.03) == pytest.approx(25.0)  # whatever the unit
    assert resurfacing_rate(95.0, 95.0, 3.0) == pytest.approx(100.0)


def test_the_rate_is_clipped_below_but_not_above() -> None:
    assert resurfacing_rate(1.0, 95.0, 3.0) == 0.0
    assert resurfacing_rate(99.0, 95.0, 3.0) > 100.0


@pytest.mark.parametrize("retrain", [95.0, 96.0])
def test_without_room_between_origin_and_retrain_the_formula_is_refused(retrain: float) -> None:
    with pytest.raises(ValueError, match="the rate is undefined"):
        resurfacing_rate(50.0, 95.0, retrain)


def test_the_oracle_resurfaces_not_at_all_and_the_null_model_completely() -> None:
    oracle, null = rr(RETRAIN), rr(bits(95.0, 95.0, 95.0))
    assert (oracle.value, oracle.low) == (0.0, 0.0)
    assert oracle.high is not None
    assert 0.0 < oracle.high < 5.0  # 200 samples do not prove a zero
    assert (null.value, null.low, null.high) == pytest.approx((100.0, 100.0, 100.0))


def test_one_round_of_resurfacing_is_enough() -> None:
    assert rr(bits(0.0, 49.0, 0.0)).value == pytest.approx(50.0)


def test_the_interval_holds_the_value_and_is_not_empty() -> None:
    measured = rr(bits(20.0, 30.0, 25.0))
    assert isinstance(measured.value, float)
    assert measured.low is not None
    assert measured.high is not None
    assert 0.0 < measured.low < measured.value < measured.high < 100.0
    assert measured.n == N


def test_more_resurfacing_is_a_larger_rate() -> None:
    values = [rr(bits(share, 0.0, 0.0)).value for share in (0.0, 10.0, 40.0, 90.0)]
    assert values == sorted(values, key=lambda v: v if isinstance(v, float) else -1.0)
    assert values[0] == 0.0


def test_a_run_whose_retrain_knows_the_data_too_has_no_rate() -> None:
    measured = rr(bits(50.0), retrain=bits(91.0), origin=ORIGIN)
    assert isinstance(measured.value, Undefined)
    assert measured.value.status == "undefined"
    assert "exceeds Retrain's by 4.00 points only" in measured.value.reason
    assert (measured.low, measured.high) == (None, None)


@pytest.mark.parametrize(
    ("room", "n", "defined"), [(5.0, 1000, False), (5.1, 1000, True), (10.0, 50, False), (10.1, 50, True)]
)
def test_room_is_5_points_and_5_samples_at_least(room: float, n: int, defined: bool) -> None:
    assert (too_little_room(50.0 + room, 50.0, n) is None) == defined


def test_a_method_that_keeps_a_quarter_of_the_way_has_not_forgotten() -> None:
    assert unsuccessful(25.0, 100.0, 0.0) is None
    failed = unsuccessful(25.1, 100.0, 0.0)
    assert failed is not None
    assert (failed.status, failed.reason) == ("uf", "unsuccessful forgetting: U-KR 25.10 exceeds 25.00")
    assert unsuccessful(26.0, 90.0, 10.0) is None
    assert unsuccessful(0.0, 100.0, 0.0) is None
