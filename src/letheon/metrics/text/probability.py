"""Probability of an answer: the geometric mean over its tokens, alone or against false answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.metrics.measurement import Undefined
from letheon.metrics.text import definition
from letheon.metrics.text.scores import Scores, Value, each

ROUNDING = 1e-4
"""A log-probability may exceed 0 by so much, and no more."""


def unpadded(batch: NDArray[Any], lengths: Sequence[int]) -> list[NDArray[Any]]:
    """``(n, t)`` or ``(n, t, …)`` right-padded rows to n arrays of their own lengths: padding counts for nothing.

    By length and not by token id, since the padding token may be the end token.
    """
    if len(batch) != len(lengths) or any(not 0 <= length <= batch.shape[1] for length in lengths):
        raise ValueError(f"{len(lengths)} lengths up to {max(lengths, default=0)} for a batch of shape {batch.shape}")
    return [row[:length] for row, length in zip(batch, lengths, strict=True)]


def unusable(log_probs: NDArray[Any]) -> Undefined | None:
    """Why there is no number for an answer with these log-probabilities.

    Raises:
        ValueError: some are positive; logits are not log-probabilities.
    """
    if not log_probs.size:
        return Undefined("the answer has no tokens")
    if not np.isfinite(log_probs).all():
        return Undefined("log-probabilities are not finite", "collapsed")
    if log_probs.max() > ROUNDING:
        raise ValueError(
            f"a log-probability of {log_probs.max():.4g}: logits are no log-probabilities, normalise first"
        )
    return None


def mean(values: NDArray[Any]) -> float:
    """Of at least one number, correctly rounded, so that no order and no batch changes a bit."""
    return math.fsum(values.tolist()) / len(values)


def answer_loss(log_probs: NDArray[Any]) -> Value:
    """L = −mean log p of the answer's ``(t,)`` tokens, in nats; whether the end token is one, the caller says."""
    return unusable(log_probs) or -mean(log_probs)


def probability(loss: float) -> float:
    """P = exp(−L), the geometric mean of the tokens' probabilities."""
    return math.exp(-loss)


def option_probability(loss: float, false_losses: Sequence[float]) -> float:
    """P(y) / (P(y) + Σ P(ỹ)) of length-normalised probabilities, in log space: no underflow where all are tiny."""
    return 1.0 / math.fsum([1.0, *(_exp(loss - false) for false in false_losses)])


def probabilities(losses: Mapping[str, Value]) -> Scores:
    """Probability of each answer, from its loss."""
    return Scores(definition("probability"), each(probability, losses))


def option_probabilities(losses: Mapping[str, Value], false_losses: Mapping[str, Sequence[Value]]) -> Scores:
    """Probability of each answer among its options: what TOFU's utility uses on real authors and world facts."""
    return Scores(definition("option_probability"), each(option_probability, losses, false_losses))


def _exp(exponent: float) -> float:
    return math.exp(min(exponent, 700.0))  # beyond, the share is 0 to all digits
