"""Means, intervals and comparisons of text metrics, and what they refuse."""

from __future__ import annotations

import math

import pytest

from letheon.errors import DataError
from letheon.metrics.measurement import Undefined
from letheon.metrics.text import VERSIONS, definition
from letheon.metrics.text.scores import Scores, comparable, difference, each, named

NAME = "rouge_l_recall/1"
EMPTY = Undefined("the answer has no tokens")


def scores(*values: float, unit: str = "share", name: str = NAME) -> Scores:
    return Scores(name, {str(i): value for i, value in enumerate(values)}, unit)  # type: ignore[arg-type]


def test_a_definition_has_name_version_and_form() -> None:
    assert (
        definition("extraction_strength", "strict") == f"extraction_strength/{VERSIONS['extraction_strength']}:strict"
    )
    assert definition("probability") == f"probability/{VERSIONS['probability']}"


def test_a_share_is_measured_in_per_cent_and_a_number_as_it_is() -> None:
    share, number = scores(0.0, 0.5, 1.0).measured(), scores(-4.0, 1.0, 9.0, unit="number").measured()
    assert (share.value, share.n) == (pytest.approx(50.0), 3)
    assert (number.value, number.n) == (pytest.approx(2.0), 3)
    for measured in (share, number):
        assert measured.low is not None
        assert measured.high is not None
        assert measured.low < float(measured.value) < measured.high  # type: ignore[arg-type]


def test_where_no_resample_differs_a_share_has_wilsons_interval_and_a_number_none() -> None:
    assert scores(*[1.0] * 10).measured().low == pytest.approx(72.25, abs=0.01)
    assert scores(*[0.0] * 10).measured().high == pytest.approx(27.75, abs=0.01)
    assert (scores(3.0, unit="number").measured().low, scores(3.0, unit="number").measured().high) == (None, None)


def test_items_without_a_value_are_left_out_counted_and_named() -> None:
    found = Scores(NAME, {"a": 1.0, "b": EMPTY, "c": 0.5})
    assert found.measured().value == pytest.approx(75.0)
    assert found.measured().n == 2
    assert found.left_out == {"b": "the answer has no tokens"}


def test_a_mean_of_nothing_is_undefined_with_the_reason() -> None:
    nothing = Scores(NAME, {"a": EMPTY}).measured()
    assert nothing.value == Undefined("no item has a value: the answer has no tokens")
    assert (nothing.low, nothing.high, nothing.n) == (None, None, 0)
    assert isinstance(Scores(NAME, {}).measured().value, Undefined)


def test_one_item_of_a_destroyed_model_makes_the_mean_undefined() -> None:
    found = Scores(NAME, {"a": 1.0, "b": Undefined("not finite", "collapsed")}).measured().value
    assert found == Undefined("1 of 2 items: not finite", "collapsed")


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.1])
def test_what_is_no_share_is_refused_with_the_item(value: float) -> None:
    with pytest.raises(ValueError, match="b is "):
        Scores(NAME, {"a": 1.0, "b": value})
    if not math.isfinite(value):
        with pytest.raises(ValueError, match="b is "):
            Scores(NAME, {"a": 1.0, "b": value}, "number")


def test_a_value_stays_with_its_item_when_another_item_has_none() -> None:
    """B010: filtered values zipped with unfiltered items moved to the wrong ones."""
    found = each(lambda loss, factor: loss * factor, {"A": 1.0, "B": EMPTY, "C": 3.0}, {"C": 2.0, "B": 2.0, "A": 2.0})
    assert found == {"A": 2.0, "B": EMPTY, "C": 6.0}


def test_an_undefined_part_of_a_list_makes_the_item_undefined() -> None:
    assert each(sum, {"a": [1.0, EMPTY], "b": [1.0, 2.0]}) == {"a": EMPTY, "b": 3.0}


def test_columns_with_other_items_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="3 only in the first, 4 in the second"):
        each(lambda a, b: a + b, {"1": 1.0, "3": 1.0}, {"1": 1.0, "4": 1.0})


def test_numbers_of_two_definitions_are_not_compared() -> None:
    """B001."""
    with pytest.raises(DataError, match="different numbers"):
        comparable(
            scores(0.333, name="truth_ratio/1:geometric,paraphrase,closer"), scores(0.75, name="truth_ratio/1:x")
        )
    with pytest.raises(DataError, match="different numbers"):
        difference(scores(0.5, name="extraction_strength/1:strict"), scores(0.5, name="extraction_strength/2:strict"))


def test_a_difference_is_paired() -> None:
    ours = scores(*[i / 100.0 + 0.02 for i in range(50)])
    reference = scores(*[i / 100.0 for i in range(50)])
    gap = difference(ours, reference)
    assert gap.value == pytest.approx(2.0)
    assert (gap.low, gap.high) == (None, None)  # the same for all items: no resample differs
    assert difference(scores(0.5, 0.9), scores(0.5, 0.1)).value == pytest.approx(40.0)


def test_a_difference_leaves_out_what_one_of_them_lacks() -> None:
    gap = difference(Scores(NAME, {"a": 1.0, "b": EMPTY}), Scores(NAME, {"a": 0.5, "b": 1.0}))
    assert (gap.value, gap.n) == (pytest.approx(50.0), 1)
    none = difference(Scores(NAME, {"a": 1.0, "b": EMPTY}), Scores(NAME, {"a": EMPTY, "b": 1.0}))
    assert none.value == Undefined("no item has a value in both")


def test_few_items_are_named_and_the_rest_is_counted() -> None:
    assert named(str(i) for i in range(7)) == "0, 1, 2, 3, 4 and 2 more"
    assert named([]) == "none"


def test_the_right_target_of_a_forget_sets_truth_ratio_is_the_retrained_models() -> None:
    """B004: 0.95 is not better than 0.66 where retraining gives 0.65."""
    name = definition("truth_ratio", "geometric,paraphrase,closer")
    reference = scores(0.65, name=name)
    far, near = (difference(scores(value, name=name), reference).value for value in (0.95, 0.66))
    assert abs(far) > abs(near)  # type: ignore[arg-type]
