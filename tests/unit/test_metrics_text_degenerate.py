"""Output that is no answer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from letheon.metrics.measurement import Undefined
from letheon.metrics.text.degenerate import degeneration, entropy, fluencies, fluency, kind

GOOD = "The author was born in Taipei in 1991 and writes about leadership, as her father, a soldier, once did."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "empty"),
        ("  \n\t", "empty"),
        ("... !!", "empty"),
        ("__", "empty"),
        ("and and and", "repeated"),
        ("The the the the end", "repeated"),
        ("a" * 40, "repeated"),
        ("hahahahahahahahahaha", "repeated"),
        ("I am not sure I am not sure I am not sure I am not sure", "loop"),
        (GOOD + " He is a writer." * 20, "loop"),
        (GOOD, None),
        ("Paris", None),
        ("No", None),
        ("42", None),
        ("Sunday Bloody Sunday", None),
        ("東京です", None),
        (GOOD + " " + GOOD, None),
    ],
)
def test_known_outputs(text: str, found: str | None) -> None:
    assert kind(text) == found


def test_a_model_that_prints_and_and_and_counts_as_destroyed() -> None:
    """B026: success was claimed on whitespace."""
    found = degeneration({"1": "and and and", "2": "", "3": GOOD})
    assert found.rate.value == pytest.approx(200.0 / 3.0)
    assert found.kinds == {"1": "repeated", "2": "empty"}
    failure = found.failure()
    assert failure == Undefined("degenerate output: 66.7 % of 3 (1 empty, 1 repeated; 1, 2)", "collapsed")


def test_a_few_degenerate_outputs_are_counted_and_forgiven() -> None:
    found = degeneration({str(i): GOOD if i else "" for i in range(10)})
    assert found.rate.value == 10.0
    assert found.failure() is None
    assert degeneration({}).failure() is None


def test_entropy_by_hand() -> None:
    assert entropy(["a", "b", "a", "b"], 1) == pytest.approx(1.0)
    assert entropy(["a", "b", "a", "b", "c"], 2) == pytest.approx(1.5)  # ab twice, ba, bc
    assert entropy(["a"], 2) == 0.0


def test_fluency_by_hand() -> None:
    assert fluency("a b c d") == pytest.approx((math.log2(3) + 2.0) / 3.0)
    assert fluency("x x x x") == 0.0
    assert fluency("a b") == Undefined("fewer than three words")
    assert fluencies({"1": "a b c d", "2": ""}).measured().n == 1


def test_no_answer_of_tofu_is_degenerate(data_root: Path) -> None:
    rows = (data_root / "tofu" / "full.json").read_text().splitlines()
    answers = [json.loads(row)["answer"] for row in rows]
    assert len(answers) == 4000
    assert [answer for answer in answers if kind(answer)] == []
