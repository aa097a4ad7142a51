"""KR_llm, what it hides, and its resurfacing rate."""

from __future__ import annotations

import math

import pytest

from letheon.errors import DataError
from letheon.metrics.measurement import Undefined
from letheon.metrics.text.retention import item_retention, resurfacing, retention, signed_retention
from letheon.metrics.text.scores import Scores

N = 40


def ratios(*values: float, truth: str = "paraphrase") -> Scores:
    name = f"log_truth_ratio/1:geometric,{truth}"
    return Scores(name, {str(i): math.log(value) for i, value in enumerate(values)}, "number")


def rounds(*means: float) -> list[Scores]:
    """Item retentions that spread evenly by ±0.1 around each mean."""
    return [
        Scores("knowledge_retention/1:geometric,paraphrase", {str(i): mean - 0.1 + 0.2 * i / (N - 1) for i in range(N)})
        for mean in means
    ]


def test_by_hand() -> None:
    found = retention(ratios(0.5, 2.0, 1.0, 0.25))
    assert found.kr.value == pytest.approx(100.0 * (0.5 + 0.5 + 0.0 + 0.75) / 4.0)
    assert found.signed.value == pytest.approx(100.0 * (0.5 + 0.0 + 0.0 + 0.75) / 4.0)
    assert found.above_one.value == pytest.approx(25.0)
    assert found.kr.n == 4


def test_kr_does_not_grow_with_knowledge_and_the_other_two_tell() -> None:
    under, over = retention(ratios(*[0.5] * 9)), retention(ratios(*[2.0] * 9))
    assert under.kr.value == pytest.approx(float(over.kr.value))  # type: ignore[arg-type]
    assert over.signed.value == 0.0
    assert (under.above_one.value, over.above_one.value) == (0.0, 100.0)


def test_perfect_forgetting_and_none_are_the_two_ends() -> None:
    assert retention(ratios(1.0, 1.0)).kr.value == 0.0
    assert retention(ratios(1e-12, 1e-12)).kr.value == pytest.approx(100.0)


def test_nothing_underflows() -> None:
    """B079: with probabilities of exp(−900) the ratio is 0/0 or 0."""
    logs = Scores("log_truth_ratio/1:geometric,paraphrase", {"a": -1.0, "b": -2000.0, "c": 2000.0}, "number")
    assert item_retention(logs).values == pytest.approx({"a": 1.0 - math.exp(-1.0), "b": 1.0, "c": 1.0})
    assert signed_retention(logs).values["c"] == 0.0


def test_paraphrase_and_original_answer_are_two_definitions() -> None:
    assert item_retention(ratios(0.5)).definition != item_retention(ratios(0.5, truth="answer")).definition
    assert item_retention(ratios(0.5)).definition != signed_retention(ratios(0.5)).definition


def test_of_nothing_nothing_is_known() -> None:
    none = Scores("log_truth_ratio/1:geometric,paraphrase", {"a": Undefined("no tokens")}, "number")
    found = retention(none)
    assert all(isinstance(m.value, Undefined) for m in (found.kr, found.signed, found.above_one))


def test_the_rate_is_the_way_back_at_its_worst_round_and_pairs_the_items() -> None:
    found = resurfacing(rounds(0.4, 0.6, 0.5), rounds(0.3, 0.4, 0.2), rounds(0.8)[0])
    assert found.value == pytest.approx(50.0)
    assert found.n == N
    # All three move together from item to item, so there is nothing to be uncertain of.
    assert (found.low, found.high) == pytest.approx((50.0, 50.0))


def test_retrain_does_not_resurface_and_the_original_does_completely() -> None:
    retrain, origin = rounds(0.3, 0.4), rounds(0.8)[0]
    assert resurfacing(retrain, retrain, origin).value == 0.0
    assert resurfacing([origin, origin], retrain, origin).value == pytest.approx(100.0)


@pytest.mark.parametrize("origin", [0.4, 0.35, 0.44])
def test_without_room_the_rate_is_undefined_and_not_0(origin: float) -> None:
    """B080."""
    found = resurfacing(rounds(0.5), rounds(0.4), rounds(origin)[0])
    assert isinstance(found.value, Undefined)
    assert "more than 12.50 are needed for n = 40" in found.value.reason
    assert (found.low, found.high) == (None, None)


def test_rounds_of_other_numbers_items_or_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="1 rounds of the method, 2 of Retrain"):
        resurfacing(rounds(0.5), rounds(0.4, 0.4), rounds(0.8)[0])
    with pytest.raises(DataError, match="cannot be compared"):
        resurfacing([signed_retention(ratios(0.5))], [item_retention(ratios(0.5))], item_retention(ratios(0.1)))
    with pytest.raises(DataError, match="items differ"):
        resurfacing([item_retention(ratios(0.5, 0.5))], [item_retention(ratios(0.5))], item_retention(ratios(0.1)))


def test_a_destroyed_model_has_no_rate() -> None:
    broken = Scores(
        "knowledge_retention/1:geometric,paraphrase", {str(i): Undefined("nan", "collapsed") for i in range(N)}
    )
    found = resurfacing([broken], rounds(0.4), rounds(0.8)[0]).value
    assert isinstance(found, Undefined)
    assert found.status == "collapsed"
