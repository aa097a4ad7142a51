"""Intervals: published values, and how often they hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from letheon.metrics.interval import bootstrap, bootstrap_weights, resampled_shares, share, wilson
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.retention import continued_retention, reduced, retention


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        # by hand: 0 of n ends at z²/(n + z²)
        (0, 10, 0.0, 0.2775),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
    ],
)
def test_wilson_intervals_are_the_published_ones(correct: int, n: int, low: float, high: float) -> None:
    assert wilson(correct, n) == pytest.approx((low, high), abs=5e-5)


def test_of_nothing_nothing_is_known() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    nothing = share(0, 0)
    assert isinstance(nothing.value, Undefined)
    assert nothing.fields("kr") == {"kr": None, "kr_low": None, "kr_high": None}


@pytest.mark.parametrize(("correct", "n"), [(-1, 10), (11, 10)])
def test_what_is_no_share_is_refused(correct: int, n: int) -> None:
    with pytest.raises(ValueError, match="is not a share"):
        wilson(correct, n)


def test_wilson_mirrors_and_stays_in_bounds_and_narrows() -> None:
    for n in (1, 7, 100):
        for correct in range(n + 1):
            low, high = wilson(correct, n)
            assert 0.0 <= low <= correct / n <= high <= 1.0
            assert wilson(n - correct, n) == pytest.approx((1 - high, 1 - low))
    widths = [np.ptp(wilson(n // 2, n)) for n in (10, 100, 1000)]
    assert widths == sorted(widths, reverse=True)


def test_shares_are_in_per_cent() -> None:
    assert share(1, 4).fields("mu")["mu"] == 25.0
    low, high = wilson(1, 4)
    assert (share(1, 4).low, share(1, 4).high, share(1, 4).n) == (100 * low, 100 * high, 4)


def outcomes(p: float, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.random((1, n)) < p


def test_bootstrap_intervals_hold_the_true_share_about_as_often_as_they_say() -> None:
    rng, hits, trials = np.random.default_rng(0), 0, 150
    for _ in range(trials):
        measured = continued_retention(outcomes(0.3, 120, rng), "max")
        assert measured.low is not None
        assert measured.high is not None
        hits += measured.low <= 30.0 <= measured.high
    assert 0.89 <= hits / trials <= 0.99


def test_the_bootstrap_of_a_share_is_close_to_wilson() -> None:
    bits = np.zeros((1, 200), dtype=bool)
    bits[0, :60] = True
    measured, exact = continued_retention(bits, "last"), share(60, 200)
    assert measured.value == exact.value == 30.0
    assert (measured.low, measured.high) == pytest.approx((exact.low, exact.high), abs=1.5)


def test_resamples_are_of_full_size_and_the_same_every_time() -> None:
    weights = bootstrap_weights(50)
    assert weights.shape == (1000, 50)
    assert (weights.sum(1) == 50).all()
    assert (weights == bootstrap_weights(50)).all()
    assert not (weights == bootstrap_weights(50, seed=1)).all()


def test_samples_are_resampled_and_rounds_are_not() -> None:
    bits = np.array([[True, False, False, False], [True, True, True, False]])
    shares = resampled_shares(bits, np.array([[1.0, 1.0, 1.0, 1.0], [4.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 2.0]]))
    assert shares.tolist() == [[25.0, 75.0], [100.0, 100.0], [0.0, 50.0]]


def test_the_bootstrap_of_a_constant_is_that_constant() -> None:
    assert bootstrap(lambda weights: np.full(len(weights), 7.0), 10) == (7.0, 7.0)


def test_reductions_are_over_rounds() -> None:
    bits = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]], dtype=bool)
    values = {name: continued_retention(bits, name).value for name in ("max", "mean", "last")}  # type: ignore[arg-type]
    assert values == {"max": 75.0, "mean": 50.0, "last": 50.0}
    assert reduced(np.array([[1.0, 3.0], [5.0, 2.0]]), "max").tolist() == [3.0, 5.0]


def test_the_maximum_over_rounds_is_taken_inside_the_resample() -> None:
    """Two rounds, each right on another half: every resample has a round with at least half of it."""
    bits = np.zeros((2, 100), dtype=bool)
    bits[0, :50] = bits[1, 50:] = True
    measured = continued_retention(bits, "max")
    assert measured.value == 50.0
    assert measured.low is not None
    assert measured.low >= 50.0


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_retention_over_nothing_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least one round and one sample"):
        continued_retention(np.zeros(shape, dtype=bool), "max")


def test_retention_is_the_share_of_samples_still_known() -> None:
    measured = retention(np.array([True, True, False, False, False]))
    assert measured == Measurement(40.0, *(100 * end for end in wilson(2, 5)), 5)
