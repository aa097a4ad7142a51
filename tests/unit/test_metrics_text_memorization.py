"""Exact memorisation and extraction strength, by hand."""

from __future__ import annotations

import pytest

from letheon.errors import DataError
from letheon.metrics.measurement import Undefined
from letheon.metrics.text.memorization import (
    exact_memorization,
    exact_memorizations,
    extraction_strength,
    extraction_strengths,
    hits,
)
from letheon.metrics.text.scores import comparable

END = 2


@pytest.mark.parametrize(
    ("found", "em", "strict", "openunlearning"),
    [
        ([True] * 5, 1.0, 1.0, 1.0),
        ([False] * 5, 0.0, 0.0, 0.2),  # B008: the old rule has a floor
        ([False], 0.0, 0.0, 1.0),
        ([True], 1.0, 1.0, 1.0),
        ([False, True, True, True], 0.75, 0.75, 0.75),
        ([True, False, True, True], 0.75, 0.5, 0.5),
        ([True, True, True, False], 0.75, 0.0, 0.25),
    ],
)
def test_known_outcomes(found: list[bool], em: float, strict: float, openunlearning: float) -> None:
    assert exact_memorization(found) == em
    assert extraction_strength(found) == strict
    assert extraction_strength(found, rule="openunlearning") == openunlearning


def test_the_end_token_is_not_scored_where_it_is_named() -> None:
    """An answer that is all wrong but ends is not a fifth right."""
    labels, predicted = [5, 6, 7, 8, END], [1, 1, 1, 1, END]
    assert hits(labels, predicted, end={END}) == [False] * 4
    assert hits(labels, predicted) == [False] * 4 + [True]


def test_only_trailing_end_tokens_are_left_out_and_wrong_predictions_of_them_cost_nothing() -> None:
    assert hits([5, END, 6, END, END], [5, END, 6, 9, 9], end={END}) == [True, True, True]


@pytest.mark.parametrize(("labels", "predicted"), [([], []), ([END], [END])])
def test_an_answer_without_tokens_has_none_of_both(labels: list[int], predicted: list[int]) -> None:
    assert hits(labels, predicted, end={END}) == Undefined("the answer has no tokens")
    for metric in (exact_memorizations, extraction_strengths):
        assert metric({"a": labels}, {"a": predicted}, end={END}).left_out == {"a": "the answer has no tokens"}


def test_predictions_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 labels, 1 predictions"):
        hits([1, 2], [1])


def test_items_keep_their_ids_and_the_two_rules_their_names() -> None:
    labels, predicted = {"x": [1, 2], "y": [3]}, {"y": [4], "x": [1, 2]}
    assert exact_memorizations(labels, predicted).values == {"x": 1.0, "y": 0.0}
    strict = extraction_strengths(labels, predicted)
    old = extraction_strengths(labels, predicted, rule="openunlearning")
    assert strict.values == {"x": 1.0, "y": 0.0}
    assert old.values == {"x": 1.0, "y": 1.0}
    with pytest.raises(DataError, match="cannot be compared"):
        comparable(strict, old)
