"""Membership scores by hand, and AUCs that betray."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from letheon.errors import DataError
from letheon.metrics.measurement import Undefined
from letheon.metrics.text.mia import (
    loss_scores,
    membership,
    min_k,
    min_k_plus_plus_scores,
    min_k_scores,
    moments,
    privleak,
    reference_scores,
    zlib_scores,
)
from letheon.metrics.text.scores import Scores

LOGS = {"a": np.array([-1.0, -4.0, -2.0, -3.0, -5.0])}


def scores(values: list[float], name: str = "mia_loss/1") -> Scores:
    return Scores(name, {str(i): value for i, value in enumerate(values)}, "number")


def test_scores_by_hand() -> None:
    text = "Jaime Vasquez"
    assert loss_scores(LOGS).values["a"] == pytest.approx(3.0)
    assert zlib_scores(LOGS, {"a": text}).values["a"] == pytest.approx(3.0 / len(zlib.compress(text.encode())))
    other = loss_scores({"a": np.array([-1.0, -2.0])})
    assert reference_scores(loss_scores(LOGS), other).values["a"] == pytest.approx(1.5)
    with pytest.raises(DataError, match="different numbers"):
        reference_scores(loss_scores(LOGS), zlib_scores(LOGS, {"a": text}))
    assert min_k_scores(LOGS).values["a"] == pytest.approx(4.5)  # 2 of 5 tokens
    assert min_k_scores(LOGS, 0.2).values["a"] == pytest.approx(5.0)


def test_what_is_measured_is_what_the_name_says() -> None:
    """B014: a result called mink20 held Min-K++."""
    around = {"a": np.array([[-2.0] * 5, [0.5] * 5])}
    assert min_k_scores(LOGS, 0.2).definition == "mia_min_k/1:0.2"
    plus = min_k_plus_plus_scores(LOGS, around, 0.2)
    assert plus.definition == "mia_min_k_plus_plus/1:0.2"
    assert plus.values["a"] == pytest.approx(6.0)


@pytest.mark.parametrize(("tokens", "lowest", "kept"), [(3, 0.2, 1), (1, 0.4, 1), (10, 0.3, 3), (5, 1.0, 5)])
def test_min_k_looks_at_one_token_at_least(tokens: int, lowest: float, kept: int) -> None:
    """B013: none of a short text gives no number."""
    values = -np.arange(1.0, tokens + 1.0)
    assert min_k(values, lowest) == pytest.approx(np.arange(tokens - kept + 1, tokens + 1).mean())


@pytest.mark.parametrize("lowest", [0.0, -0.1, 1.1])
def test_no_share_is_refused(lowest: float) -> None:
    with pytest.raises(ValueError, match="share above 0"):
        min_k(np.array([-1.0]), lowest)


def test_moments_by_hand_with_tokens_of_probability_0() -> None:
    logs = np.array([[math.log(0.75), math.log(0.25), -math.inf], [0.0, -math.inf, -math.inf]])
    centre, spread = moments(logs)
    mean = 0.75 * math.log(0.75) + 0.25 * math.log(0.25)
    assert centre == pytest.approx([mean, 0.0])
    assert spread[0] == pytest.approx(math.sqrt(0.75 * 0.25) * math.log(3.0))
    assert spread[1] == pytest.approx(1e-3)  # certain: no division by 0


def test_an_answer_without_tokens_has_no_score() -> None:
    none = {"a": np.array([])}
    reference = reference_scores(loss_scores(LOGS), loss_scores(none))
    found = (loss_scores(none), min_k_scores(none), zlib_scores(none, {"a": ""}), reference)
    assert [s.left_out for s in found] == [{"a": "the answer has no tokens"}] * 4


def test_members_that_look_like_members_have_auc_1() -> None:
    found = membership(scores([1.0, 2.0] * 20), scores([3.0, 4.0] * 20))
    assert (found.auc.value, found.advantage, found.verdict) == (1.0, 0.5, "member")
    assert found.auc.n == 40


def test_an_auc_far_below_the_reference_is_a_leak_too() -> None:
    """B011."""
    found = membership(scores([9.0, 8.0] * 20), scores([3.0, 4.0] * 20))
    assert (found.auc.value, found.advantage, found.verdict) == (0.0, 0.5, "inverted")


def test_what_cannot_be_told_apart_is_none_and_the_reference_need_not_be_half() -> None:
    mixed = scores([float(i) for i in range(40)])
    assert membership(mixed, mixed).verdict == "none"
    assert membership(mixed, mixed, reference=0.9).verdict == "inverted"
    assert membership(mixed, mixed, reference=0.1).verdict == "member"


def test_scores_of_two_definitions_are_refused_and_empty_sets_undefined() -> None:
    with pytest.raises(DataError, match="cannot be compared"):
        membership(scores([1.0]), scores([1.0], "mia_zlib/1"))
    found = membership(scores([1.0]), scores([]))
    assert found.verdict == Undefined("held-out data: a mean of no items")
    assert isinstance(found.advantage, Undefined)


def test_the_relative_leak_by_hand_and_where_it_explodes() -> None:
    assert privleak(0.7, 0.5) == pytest.approx(-40.0)
    assert privleak(0.5, 0.5) == 0.0
    assert privleak(0.00002, 0.98119) == pytest.approx(5216.2, abs=0.1)
    for reference in (1.0, 0.995):
        assert isinstance(privleak(0.5, reference), Undefined)
