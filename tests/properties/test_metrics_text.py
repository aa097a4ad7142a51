"""What holds for text metrics whatever the numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from letheon.metrics.text.forget_quality import largest_gap, log_p_value
from letheon.metrics.text.memorization import exact_memorization, extraction_strength
from letheon.metrics.text.probability import answer_loss, option_probability, unpadded
from letheon.metrics.text.relapse import together
from letheon.metrics.text.rouge import common, rouge_l_recall
from letheon.metrics.text.scores import Scores
from letheon.metrics.text.truth_ratio import log_truth_ratio, told
from letheon.metrics.text.utility import harmonic_mean

LOSS = st.floats(0.0, 1e4)
LOSSES = st.lists(LOSS, min_size=1, max_size=5)
OUTCOMES = st.lists(st.booleans(), min_size=1, max_size=12)
WORDS = st.lists(st.sampled_from("abc"), max_size=8)
TEXT = st.text("abc é1.,\n日", max_size=20)
SHARES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9)
few = settings(max_examples=50)


def slow_common(first: list[str], second: list[str]) -> int:
    """The recursion of the textbook."""
    row = [0] * (len(second) + 1)
    for a in first:
        new = [0]
        for j, b in enumerate(second):
            new.append(row[j] + 1 if a == b else max(new[j], row[j + 1]))
        row = new
    return row[-1]


@few
@given(WORDS, WORDS)
def test_the_common_subsequence_is_the_textbooks(first: list[str], second: list[str]) -> None:
    assert common(first, second) == slow_common(first, second) == common(second, first)


@few
@given(TEXT, TEXT)
def test_recall_of_any_text_is_a_share_or_undefined(generation: str, reference: str) -> None:
    recall = rouge_l_recall(generation, reference)
    if isinstance(recall, float):
        assert 0.0 <= recall <= 1.0
        assert rouge_l_recall(reference + " " + generation, reference) == 1.0


@few
@given(OUTCOMES)
def test_extraction_strength_is_the_definition_and_never_exceeds_memorization(found: list[bool]) -> None:
    n = len(found)
    strict = next(1.0 - k / n for k in range(n + 1) if all(found[k:]))
    assert extraction_strength(found) == pytest.approx(strict)
    assert extraction_strength(found, rule="openunlearning") == pytest.approx(max(strict, 1.0 / n))
    assert extraction_strength(found) <= exact_memorization(found)


@few
@given(LOSS, LOSSES)
def test_truth_ratios_are_shares_and_mirror_at_1(loss: float, false: list[float]) -> None:
    geometric, arithmetic = (log_truth_ratio(loss, false, mean=mean) for mean in ("geometric", "arithmetic"))
    assert geometric <= arithmetic + 1e-6
    for ratio in (geometric, arithmetic):
        assert all(0.0 <= told(ratio, form) <= 1.0 for form in ("closer", "true", "share"))
        assert told(ratio, "closer") == told(-ratio, "closer")
        assert told(ratio, "share") + told(-ratio, "share") == pytest.approx(1.0)


@few
@given(LOSSES)
def test_options_share_one(losses: list[float]) -> None:
    shares = [option_probability(losses[i], losses[:i] + losses[i + 1 :]) for i in range(len(losses))]
    assert math.fsum(shares) == pytest.approx(1.0)


@few
@given(st.lists(st.lists(st.floats(-30.0, 0.0), min_size=1, max_size=6), min_size=1, max_size=4), st.integers(0, 5))
def test_batches_of_one_and_one_batch_give_the_same_bits(rows: list[list[float]], padding: int) -> None:
    width = max(len(row) for row in rows) + padding
    batch = np.array([row + [-1.0] * (width - len(row)) for row in rows])
    found = [answer_loss(row) for row in unpadded(batch, [len(row) for row in rows])]
    assert found == [answer_loss(np.array(row)) for row in rows]
    assert found == [answer_loss(np.array(row[::-1])) for row in rows]


@few
@given(SHARES)
def test_the_harmonic_mean_lies_between_least_and_arithmetic_mean(values: list[float]) -> None:
    mean = harmonic_mean(values)
    assert min(values) * (1.0 - 1e-9) <= mean + 1e-300
    assert mean <= math.fsum(values) / len(values) + 1e-9


@few
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_forget_quality_does_not_depend_on_order_side_or_monotone_maps(first: list[int], second: list[int]) -> None:
    a, b = np.array(first, dtype=float), np.array(second, dtype=float)
    n, m = len(a), len(b)
    gap = largest_gap(a, b)
    assert gap == largest_gap(b[::-1], a) == largest_gap(-a, -b) == largest_gap(np.exp(a), np.exp(b))
    assert log_p_value(gap, n, m) == pytest.approx(log_p_value(gap, m, n), abs=1e-12)
    assert log_p_value(gap + 1, n, m) <= log_p_value(gap, n, m) + 1e-12
    assert log_p_value(gap, n, m) <= 0.0


@few
@given(SHARES)
def test_the_interval_of_a_share_holds_its_mean_and_lies_within_0_and_100(values: list[float]) -> None:
    measured = Scores("rouge_l_recall/1", {str(i): value for i, value in enumerate(values)}).measured()
    assert isinstance(measured.value, float)
    assert measured.low is not None
    assert measured.high is not None
    assert 0.0 <= measured.low <= measured.value + 1e-9
    assert measured.value - 1e-9 <= measured.high <= 100.0


@few
@given(st.lists(SHARES, min_size=1, max_size=4))
def test_requests_put_together_have_the_mean_of_all_items(requests: list[list[float]]) -> None:
    parts = [
        Scores("rouge_l_recall/1", {f"{j}-{i}": value for i, value in enumerate(values)})
        for j, values in enumerate(requests)
    ]
    everything = [value for values in requests for value in values]
    assert together(parts).mean() == pytest.approx(math.fsum(everything) / len(everything))
