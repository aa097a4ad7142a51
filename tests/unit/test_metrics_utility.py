"""MU, whole and where it is worst, and models that are destroyed."""

from __future__ import annotations

import pytest

from letheon.metrics.utility import collapsed, utility, worst_class, worst_client

CORRECT, COUNTS = [9, 40, 0], [10, 50, 40]


def test_utility_is_over_samples_not_over_classes() -> None:
    assert utility(CORRECT, COUNTS).value == 49.0
    assert utility(CORRECT, COUNTS).n == 100


def test_a_forgotten_class_does_not_count() -> None:
    without = utility(CORRECT, COUNTS, without={2})
    assert without.value == pytest.approx(100 * 49 / 60)
    assert without.n == 60
    assert utility(CORRECT, COUNTS, without={0}).n == 90


def test_the_worst_class_is_the_one_with_the_lowest_share() -> None:
    assert worst_class(CORRECT, COUNTS).value == 0.0
    assert worst_class(CORRECT, COUNTS, without={2}).value == 80.0


def test_a_class_without_test_samples_is_not_the_worst() -> None:
    worst = worst_class([5, 0], [10, 0])
    assert (worst.value, worst.n) == (50.0, 10)


def test_the_worst_client_is_the_one_whose_mix_of_labels_fares_worst() -> None:
    labels = {"a": [10, 0, 0], "b": [0, 10, 10], "c": [1, 1, 1], "none": [0, 0, 0]}
    client, accuracy = worst_client(CORRECT, COUNTS, labels)
    assert (client, accuracy.value) == ("b", pytest.approx(40.0))
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert accuracy.low < 40.0 < accuracy.high


def test_among_equally_bad_clients_the_first_by_name_is_named() -> None:
    client, accuracy = worst_client(CORRECT, COUNTS, {"b": [0, 0, 1], "a": [0, 0, 9]})
    assert (client, accuracy.value) == ("a", 0.0)


def test_a_model_that_loses_20_points_at_once_or_ends_10_behind_retrain_is_destroyed() -> None:
    assert collapsed(78.0, 90.0, 98.0, 98.0) is None
    at_once, at_end = collapsed(77.9, 98.0, 98.0, 98.0), collapsed(98.0, 87.9, 98.0, 98.0)
    assert at_once is not None
    assert at_end is not None
    assert "after unlearning" in at_once.reason
    assert "Retrain's is 98.00" in at_end.reason
    assert at_once.status == at_end.status == "collapsed"


def test_a_model_that_improves_is_not_destroyed() -> None:
    assert collapsed(100.0, 100.0, 50.0, 50.0) is None
