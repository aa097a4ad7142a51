"""Truth ratio R = P(false answers) / P(true answer), in the three incompatible definitions that carry this name.

TOFU's paper takes the arithmetic mean of the false answers' probabilities, its code for forget quality and
OpenUnlearning the geometric one, and OpenUnlearning's paper P / (P + P̄) instead of a ratio. The form is part of the
definition's name, so that two of them are never compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from letheon.metrics.text import definition
from letheon.metrics.text.scores import Scores, Value, each

Mean = Literal["geometric", "arithmetic"]
Truth = Literal["paraphrase", "answer"]
Form = Literal["closer", "true", "share"]
"""``closer``: min(R, 1/R), for forget sets. ``true``: max(0, 1 − R), for other sets. ``share``: P / (P + P̄)."""


def log_truth_ratio(loss: float, false_losses: Sequence[float], *, mean: Mean = "geometric") -> float:
    """The logarithm of R from length-normalised losses; no probability is formed, so none underflows.

    Args:
        loss: of the true answer, or of its paraphrase.
        false_losses: of the perturbed answers.
        mean: of their probabilities; the geometric one is exp of the mean loss.
    """
    if not false_losses:
        raise ValueError("log_truth_ratio: needs at least one false answer")
    n = len(false_losses)
    if mean == "geometric":
        return loss - math.fsum(false_losses) / n
    least = min(false_losses)
    return loss - least + math.log(math.fsum(math.exp(least - false) for false in false_losses) / n)


def told(log_ratio: float, form: Form) -> float:
    """A log R in one of the three forms, in [0, 1]."""
    if form == "closer":
        return math.exp(-abs(log_ratio))
    if form == "true":
        return -math.expm1(log_ratio) if log_ratio < 0.0 else 0.0
    e = math.exp(-abs(log_ratio))
    return (1.0 if log_ratio < 0.0 else e) / (1.0 + e)


def log_truth_ratios(
    losses: Mapping[str, Value],
    false_losses: Mapping[str, Sequence[Value]],
    *,
    mean: Mean = "geometric",
    truth: Truth = "paraphrase",
) -> Scores:
    """The logarithm of R of each item. ``truth`` says what ``losses`` are of; without a paraphrase, the answer."""
    values = each(lambda loss, false: log_truth_ratio(loss, false, mean=mean), losses, false_losses)
    return Scores(definition("log_truth_ratio", f"{mean},{truth}"), values, "number")


def truth_ratios(log_ratios: Scores, form: Form) -> Scores:
    """The same items in one of the three forms."""
    return Scores(
        definition("truth_ratio", f"{form_of(log_ratios)},{form}"),
        each(lambda log_ratio: told(log_ratio, form), log_ratios.values),
    )


def form_of(log_ratios: Scores) -> str:
    """Which log R these are, e.g. ``geometric,paraphrase``.

    Raises:
        ValueError: they are something else.
    """
    name, _, form = log_ratios.definition.partition(":")
    if name != definition("log_truth_ratio"):
        raise ValueError(f"log truth ratios are wanted, these are {log_ratios.definition}")
    return form
