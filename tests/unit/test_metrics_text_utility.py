"""Model utility: the harmonic mean, and what makes it 0 or undefined."""

from __future__ import annotations

import math

import pytest

from letheon.errors import DataError
from letheon.metrics.measurement import Undefined
from letheon.metrics.text.scores import Scores
from letheon.metrics.text.utility import TOFU, Sets, harmonic_mean, model_utility, utility_change

TWO = {"retain": ("rouge",), "facts": ("rouge", "probability")}


def scores(*values: float | Undefined) -> Scores:
    return Scores("rouge_l_recall/1", {str(i): value for i, value in enumerate(values)})


def sets(retain: Scores, rouge: Scores, probability: Scores) -> Sets:
    return {"retain": {"rouge": retain}, "facts": {"rouge": rouge, "probability": probability}}


HALF, FULL = scores(0.0, 1.0, 0.5, 0.5), scores(1.0, 1.0, 1.0, 1.0)


def test_the_harmonic_mean_by_hand() -> None:
    assert harmonic_mean([1.0, 0.5, 0.25]) == pytest.approx(3.0 / 7.0)
    assert harmonic_mean([0.5, 0.0, 0.7]) == 0.0


@pytest.mark.parametrize("values", [[0.5, math.nan, 0.7], [0.5, -0.1], [math.inf, 1.0], []])
def test_what_is_no_utility_is_an_error_and_not_a_number(values: list[float]) -> None:
    """B007."""
    with pytest.raises(ValueError, match="numbers from 0 up are wanted"):
        harmonic_mean(values)


def test_utility_is_the_harmonic_mean_of_the_means_with_its_parts() -> None:
    found = model_utility(sets(HALF, FULL, HALF), needs=TWO)
    assert found.value.value == pytest.approx(100.0 * 3.0 / (2.0 + 1.0 + 2.0))
    assert {part: m.value for part, m in found.parts.items()} == pytest.approx({
        "retain rouge": 50.0,
        "facts rouge": 100.0,
        "facts probability": 50.0,
    })
    assert found.value.n == 8
    assert found.value.low is not None
    assert found.value.high is not None
    assert found.value.low < 60.0 < found.value.high


def test_the_interval_is_as_wide_as_the_items_make_it() -> None:
    """Of p = 0.5 from 100 items in the mean 3/(1/p + 2), whose slope is 0.75: 0.75 ± 1.96 · 0.75 · 0.05."""
    coins, sure = scores(*[0.0, 1.0] * 50), scores(*[1.0] * 100)
    found = model_utility(sets(coins, sure, sure), needs=TWO).value
    assert found.low == pytest.approx(75.0 - 7.35, abs=1.2)
    assert found.high == pytest.approx(75.0 + 7.35, abs=1.2)


def test_metrics_of_one_set_are_resampled_together() -> None:
    """Two numbers that are one another's complement have a fixed mean, item by item; apart, they would not."""
    up, down = scores(*[0.3, 0.5] * 20), scores(*[0.5, 0.3] * 20)
    needs = {"facts": ("rouge", "probability")}
    together = model_utility({"facts": {"rouge": up, "probability": down}}, needs=needs).value
    assert together.high - together.low < 0.5  # type: ignore[operator]
    apart = model_utility({"a": {"rouge": up}, "b": {"rouge": down}}, needs={"a": ("rouge",), "b": ("rouge",)}).value
    assert apart.high - apart.low > 2.0  # type: ignore[operator]


def test_one_part_of_zero_makes_it_zero_and_is_named() -> None:
    found = model_utility(sets(HALF, scores(0.0, 0.0, 0.0, 0.0), HALF), needs=TWO)
    assert found.value.value == 0.0
    assert found.collapsed_by == ("facts rouge",)
    assert found.value.high is not None
    assert found.value.high > 0.0  # four items do not prove a zero


def test_a_part_without_value_makes_it_undefined_and_is_named() -> None:
    none = scores(Undefined("the reference has no words"))
    found = model_utility(sets(HALF, none, HALF), needs=TWO).value.value
    assert found == Undefined("facts rouge: no item has a value: the reference has no words")
    broken = scores(0.5, Undefined("not finite", "collapsed"))
    found = model_utility(sets(HALF, none, broken), needs=TWO).value.value
    assert isinstance(found, Undefined)
    assert found.status == "collapsed"
    assert "facts probability" in found.reason


def test_half_of_the_numbers_is_no_utility() -> None:
    with pytest.raises(DataError, match="mean of 3 numbers: facts probability missing"):
        model_utility({"retain": {"rouge": HALF}, "facts": {"rouge": HALF}}, needs=TWO)
    with pytest.raises(DataError, match=r"mean of 9 numbers: .*world_facts rouge.* missing; facts probability"):
        model_utility(sets(HALF, HALF, HALF))
    assert sum(len(metrics) for metrics in TOFU.values()) == 9


def test_the_change_is_paired_so_the_same_model_has_none() -> None:
    same = utility_change(sets(HALF, FULL, HALF), sets(HALF, FULL, HALF), needs=TWO)
    assert (same.value, same.low, same.high) == (0.0, None, None)
    worse = utility_change(sets(HALF, HALF, HALF), sets(HALF, FULL, HALF), needs=TWO)
    assert worse.value == pytest.approx(50.0 - 60.0)


def test_a_change_over_other_items_is_refused() -> None:
    with pytest.raises(DataError, match="items differ"):
        utility_change(sets(HALF, FULL, HALF), sets(scores(0.5, 0.5), FULL, HALF), needs=TWO)
