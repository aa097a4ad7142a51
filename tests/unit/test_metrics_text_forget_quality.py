"""Forget quality against enumeration, closed forms, and where a float ends."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from letheon.errors import DataError
from letheon.metrics.measurement import Undefined
from letheon.metrics.text.forget_quality import forget_quality, largest_gap, log_p_value
from letheon.metrics.text.scores import Scores


def ratios(values: list[float], mean: str = "geometric") -> Scores:
    name = f"log_truth_ratio/1:{mean},paraphrase"
    return Scores(name, {str(i): value for i, value in enumerate(values)}, "number")


@pytest.mark.parametrize(("n", "m"), [(3, 3), (3, 4), (2, 5), (1, 4)])
def test_the_p_value_is_the_share_of_all_orders_with_so_large_a_gap(n: int, m: int) -> None:
    gaps = []
    for chosen in combinations(range(n + m), n):
        others = sorted(set(range(n + m)) - set(chosen))
        gaps.append(largest_gap(np.array(chosen, dtype=float), np.array(others, dtype=float)))
    for gap in sorted(set(gaps)):
        share = sum(g >= gap for g in gaps) / len(gaps)
        assert log_p_value(gap, n, m) == pytest.approx(math.log(share), abs=1e-12)


@pytest.mark.parametrize("steps", [20, 119, 300])
def test_for_samples_of_one_size_it_is_the_reflection_formula(steps: int) -> None:
    """Of n = 300: 2 Σ (−1)^(j−1) C(2n, n−jh) / C(2n, n) in integers."""
    n = 300
    outside = 2 * sum((-1) ** (j - 1) * math.comb(2 * n, n - j * steps) for j in range(1, n // steps + 1))
    expected = math.log(outside) - math.log(math.comb(2 * n, n))
    assert log_p_value(steps * n, n, n) == pytest.approx(expected, rel=1e-10)


def test_the_logarithm_goes_on_where_the_p_value_is_0() -> None:
    found = forget_quality(ratios([0.0] * 560), ratios([1.0] * 560))
    assert found.distance.value == 1.0
    assert found.p == 0.0
    expected = (math.log(2) - math.log(math.comb(1120, 560))) / math.log(10)
    assert found.log10_p == pytest.approx(expected, rel=1e-10)
    assert expected < -330.0


def test_the_distance_by_hand() -> None:
    found = forget_quality(ratios([1.0, 2.0, 3.0, 4.0]), ratios([3.5, 4.5]))
    assert found.distance.value == pytest.approx(0.75)
    assert (found.distance.n, found.n_reference) == (4, 2)


def test_tied_values_are_passed_together() -> None:
    assert largest_gap(np.array([1.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])) == 0
    assert largest_gap(np.array([1.0, 1.0]), np.array([1.0, 2.0])) == 2


def test_the_same_distribution_is_p_1_and_log_0_under_their_own_names() -> None:
    """B005."""
    same = forget_quality(ratios([1.0, 2.0]), ratios([2.0, 1.0]))
    assert (same.distance.value, same.log10_p, same.p) == (0.0, 0.0, 1.0)


def test_the_interval_holds_the_distance_and_narrows_with_n() -> None:
    small, large = (forget_quality(ratios([0.0, 1.0] * n), ratios([0.0, 0.0] * n)).distance for n in (25, 100))
    for found in (small, large):
        assert found.low is not None
        assert found.high is not None
        assert found.low <= 0.5 <= found.high
    assert large.high - large.low < small.high - small.low  # type: ignore[operator]


def test_interval_width_is_massarts() -> None:
    found = forget_quality(ratios([0.0, 1.0] * 100), ratios([0.0, 0.0] * 100)).distance
    assert found.high == pytest.approx(0.5 + 2.0 * math.sqrt(math.log(80.0) / 400.0))


def test_means_that_differ_and_other_metrics_are_refused() -> None:
    with pytest.raises(DataError, match="cannot be compared"):
        forget_quality(ratios([1.0]), ratios([1.0], "arithmetic"))
    with pytest.raises(ValueError, match="log truth ratios are wanted"):
        forget_quality(Scores("probability/1", {"a": 0.5}), Scores("probability/1", {"a": 0.5}))


def test_without_values_there_is_none() -> None:
    none = Scores("log_truth_ratio/1:geometric,paraphrase", {"a": Undefined("no tokens")}, "number")
    for ours, reference in ((none, ratios([1.0])), (ratios([1.0]), none)):
        found = forget_quality(ours, reference)
        assert isinstance(found.distance.value, Undefined)
        assert isinstance(found.log10_p, Undefined)
        assert isinstance(found.p, Undefined)
