"""Truth ratio in its three definitions, by hand."""

from __future__ import annotations

import math

import pytest

from letheon.errors import DataError
from letheon.metrics.measurement import Undefined
from letheon.metrics.text.scores import Scores, comparable
from letheon.metrics.text.truth_ratio import form_of, log_truth_ratio, log_truth_ratios, told, truth_ratios


def loss(p: float) -> float:
    return -math.log(p)


def test_two_definitions_of_one_name_give_two_numbers_and_no_comparison() -> None:
    """B001: P 0.6 and 0.2 are 1/3 by TOFU and 0.75 by OpenUnlearning's paper."""
    ratios = log_truth_ratios({"a": loss(0.6)}, {"a": [loss(0.2)]})
    closer, share = truth_ratios(ratios, "closer"), truth_ratios(ratios, "share")
    assert closer.values["a"] == pytest.approx(1.0 / 3.0)
    assert share.values["a"] == pytest.approx(0.75)
    with pytest.raises(DataError, match="cannot be compared"):
        comparable(closer, share)


def test_means_of_false_answers() -> None:
    false = [loss(0.1), loss(0.4)]
    assert math.exp(log_truth_ratio(loss(0.5), false)) == pytest.approx(0.2 / 0.5)
    assert math.exp(log_truth_ratio(loss(0.5), false, mean="arithmetic")) == pytest.approx(0.25 / 0.5)


def test_the_mean_is_part_of_the_definition() -> None:
    geometric, arithmetic = (
        log_truth_ratios({"a": 1.0}, {"a": [1.0]}, mean=mean) for mean in ("geometric", "arithmetic")
    )
    assert (form_of(geometric), form_of(arithmetic)) == ("geometric,paraphrase", "arithmetic,paraphrase")
    with pytest.raises(DataError, match="cannot be compared"):
        comparable(truth_ratios(geometric, "true"), truth_ratios(arithmetic, "true"))
    with pytest.raises(DataError, match="cannot be compared"):
        comparable(geometric, log_truth_ratios({"a": 1.0}, {"a": [1.0]}, truth="answer"))


@pytest.mark.parametrize(
    ("ratio", "closer", "true", "share"),
    [(0.5, 0.5, 0.5, 2.0 / 3.0), (2.0, 0.5, 0.0, 1.0 / 3.0), (1.0, 1.0, 0.0, 0.5), (0.25, 0.25, 0.75, 0.8)],
)
def test_the_three_forms(ratio: float, closer: float, true: float, share: float) -> None:
    found = [told(math.log(ratio), form) for form in ("closer", "true", "share")]  # type: ignore[arg-type]
    assert found == pytest.approx([closer, true, share])


@pytest.mark.parametrize("mean", ["geometric", "arithmetic"])
def test_nothing_underflows(mean: str) -> None:
    """B079: with probabilities, both are 0 and their ratio is anything."""
    ratio = log_truth_ratio(900.0, [901.0, 901.0], mean=mean)  # type: ignore[arg-type]
    assert told(ratio, "closer") == pytest.approx(0.36787944)
    assert told(log_truth_ratio(1.0, [9000.0]), "closer") == 0.0
    assert told(log_truth_ratio(9000.0, [1.0]), "share") == 0.0


def test_without_false_answers_there_is_no_ratio() -> None:
    with pytest.raises(ValueError, match="at least one false answer"):
        log_truth_ratio(1.0, [])


def test_an_item_without_an_answer_has_none_and_keeps_the_others_in_place() -> None:
    none = Undefined("the answer has no tokens")
    ratios = log_truth_ratios({"A": 1.0, "B": none, "C": 3.0}, {"A": [1.0], "B": [1.0], "C": [2.0]})
    assert ratios.values == {"A": 0.0, "B": none, "C": 1.0}
    assert truth_ratios(ratios, "closer").values["C"] == pytest.approx(math.exp(-1.0))


def test_other_scores_are_no_ratios() -> None:
    with pytest.raises(ValueError, match="log truth ratios are wanted, these are probability/1"):
        truth_ratios(Scores("probability/1", {"a": 0.5}), "closer")
