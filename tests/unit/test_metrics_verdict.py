"""Void runs and verdicts: an oracle passes, and what does nothing or destroys the model never does."""

from __future__ import annotations

from typing import Any

import pytest

from letheon.metrics.measurement import Status, Undefined
from letheon.metrics.verdict import verdict, void_reasons

GOOD: dict[str, Any] = {
    "kr_origin": 95.0,
    "kr_retrain": 2.0,
    "n": 300,
    "attack": 90.0,
    "ct_kr_retrain": 3.0,
    "ct_kr_control": 60.0,
    "mu_origin": 97.0,
    "mu_retrain": 97.0,
}


def reasons(**changes: Any) -> list[str]:
    return void_reasons(**(GOOD | changes))


def test_a_run_with_everything_in_place_can_rank() -> None:
    assert reasons() == []
    assert reasons(attack=None, ct_kr_control=None) == []


@pytest.mark.parametrize(
    ("field", "edge", "beyond", "said"),
    [
        ("kr_origin", 80.0, 79.9, "Origin retains 79.9 %"),
        ("kr_retrain", 10.0, 10.1, "Retrain retains 10.1 % without having seen"),
        ("mu_retrain", 94.0, 93.9, "Retrain's MU ends at 93.9 %"),
        ("mu_origin", 48.5, 48.4, "Origin's MU is 48.4 %"),
        ("attack", 30.0, 29.9, "the trigger works on 29.9 %"),
        ("ct_kr_control", 8.1, 8.0, "fine-tuning alone ends within Retrain's reach"),
    ],
)
def test_each_condition_has_its_edge_and_its_reason(field: str, edge: float, beyond: float, said: str) -> None:
    assert reasons(**{field: edge}) == []
    (reason,) = reasons(**{field: beyond})
    assert said in reason


def test_a_model_that_gives_one_label_to_everything_knows_nothing() -> None:
    assert len(reasons(kr_origin=100.0, attack=100.0, mu_origin=11.7)) == 1


def test_with_few_samples_to_forget_the_control_must_be_5_samples_above_retrain() -> None:
    assert len(reasons(n=50, ct_kr_control=13.0)) == 1
    assert reasons(n=50, ct_kr_control=13.1) == []


def test_all_reasons_are_given() -> None:
    assert len(reasons(kr_origin=0.0, kr_retrain=50.0, attack=0.0, ct_kr_control=0.0, mu_retrain=0.0)) == 5


def test_the_oracle_passes() -> None:
    assert verdict(0.0, 97.0, 97.0).status == "pass"
    assert verdict(5.0, 92.0, 97.0).status == "pass"


def test_resurfacing_or_lost_utility_fails_with_its_reason() -> None:
    assert verdict(5.1, 97.0, 97.0).reasons == ("RR 5.10 % exceeds 5 %",)
    assert verdict(0.0, 91.9, 97.0).status == "fail"
    assert len(verdict(100.0, 10.0, 97.0).reasons) == 2


@pytest.mark.parametrize(
    ("status", "expected"), [("uf", "fail"), ("collapsed", "fail"), ("void", "void"), ("undefined", "void")]
)
def test_what_is_undefined_never_passes(status: Status, expected: str) -> None:
    outcome = verdict(Undefined("why", status), 100.0, 0.0)
    assert (outcome.status, outcome.reasons) == (expected, ("why",))
