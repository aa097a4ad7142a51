"""Probability of an answer, alone and among options, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from letheon.metrics.measurement import Undefined
from letheon.metrics.text.probability import (
    answer_loss,
    option_probabilities,
    option_probability,
    probabilities,
    probability,
    unpadded,
)

LOGS = np.log([0.5, 0.25, 0.125])


def test_probability_is_the_geometric_mean_over_tokens() -> None:
    loss = answer_loss(LOGS)
    assert isinstance(loss, float)
    assert loss == pytest.approx(2.0 * math.log(2.0))
    assert probability(loss) == pytest.approx(0.25)


def test_among_options_it_is_normalised() -> None:
    losses = [-math.log(p) for p in (0.6, 0.2, 0.2)]
    assert option_probability(losses[0], losses[1:]) == pytest.approx(0.6)
    assert option_probability(losses[1], [losses[0], losses[2]]) == pytest.approx(0.2)


def test_options_that_underflow_are_told_apart_all_the_same() -> None:
    assert option_probability(900.0, [901.0]) == pytest.approx(1.0 / (1.0 + math.exp(-1.0)))
    assert option_probability(5000.0, [1.0]) == pytest.approx(0.0)
    assert option_probability(1.0, [5000.0]) == 1.0


def test_a_golden_item_of_each_rule() -> None:
    """B002: the retain set has plain probabilities, sets with options normalised ones."""
    losses, false = {"a": 1.0, "b": 2.0}, {"a": [1.0, 1.0], "b": [2.0 + math.log(2.0)]}
    assert probabilities(losses).values == pytest.approx({"a": 0.36787944, "b": 0.13533528})
    assert option_probabilities(losses, false).values == pytest.approx({"a": 1.0 / 3.0, "b": 2.0 / 3.0})
    assert probabilities(losses).definition != option_probabilities(losses, false).definition


def test_an_answer_without_tokens_has_no_loss() -> None:
    assert answer_loss(np.array([])) == Undefined("the answer has no tokens")
    assert probabilities({"a": Undefined("the answer has no tokens")}).left_out == {"a": "the answer has no tokens"}


@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf])
def test_a_destroyed_model_is_undefined_and_collapsed(broken: float) -> None:
    found = answer_loss(np.array([-1.0, broken]))
    assert isinstance(found, Undefined)
    assert found.status == "collapsed"


def test_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="logits are no log-probabilities"):
        answer_loss(np.array([-1.0, 3.0]))
    assert isinstance(answer_loss(np.array([-1.0, 1e-6], dtype=np.float32)), float)  # rounding


def test_single_precision_is_summed_in_double() -> None:
    logs = np.full(100_000, -0.1, dtype=np.float32)
    assert answer_loss(logs) == pytest.approx(float(np.float32(0.1)), rel=1e-12)


def test_a_batch_is_its_rows_and_padding_changes_no_bit() -> None:
    rng = np.random.default_rng(0)
    rows = [-rng.exponential(size=n) for n in (7, 1, 30)]
    alone = [answer_loss(row) for row in rows]
    for width in (30, 80):
        batch = np.full((3, width), -5.0)
        for i, row in enumerate(rows):
            batch[i, : len(row)] = row
        assert [answer_loss(row) for row in unpadded(batch, [7, 1, 30])] == alone


def test_padding_is_told_by_length_and_not_by_its_token() -> None:
    """Issue 128: the padding token may be the end token, which the answer ends with."""
    end = 2
    assert [row.tolist() for row in unpadded(np.array([[5, 6, end], [7, end, end]]), [3, 2])] == [[5, 6, end], [7, end]]


@pytest.mark.parametrize("lengths", [[3], [3, 4], [3, -1]])
def test_lengths_that_do_not_fit_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths up to"):
        unpadded(np.zeros((2, 3)), lengths)
