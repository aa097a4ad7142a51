"""Membership inference from per-token log-probabilities: is the data to forget treated unlike data never seen?

Every score is larger for what looks less like a member. Thresholds on one number bound no attacker.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from letheon.errors import DataError
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.ranking import area
from letheon.metrics.text import definition
from letheon.metrics.text.probability import answer_loss, mean, unusable
from letheon.metrics.text.scores import Scores, Value, comparable, each

LOWEST = 0.4
"""Share of the tokens that Min-K looks at, OpenUnlearning's; RWKU takes 0.2."""
NO_SPREAD = 1e-6
"""Least variance over the vocabulary, for predictions that are certain."""
EDGE = 0.99
"""Beyond this AUC of the reference there is nothing to be relative to."""


@dataclass(frozen=True, slots=True)
class Membership:
    """How the data to forget compare with data never seen.

    Attributes:
        auc: in [0, 1]: 1, the data to forget look like training data; 0, they stand out the other way, which betrays
            them too.
        advantage: |AUC − reference|, in [0, 1].
        verdict: ``member`` or ``inverted`` where the interval excludes the reference, ``none`` where it does not.
    """

    auc: Measurement
    advantage: float | Undefined
    verdict: Literal["member", "none", "inverted"] | Undefined


def loss_scores(log_probs: Mapping[str, NDArray[Any]]) -> Scores:
    """LOSS: the answer's mean loss."""
    return Scores(definition("mia_loss"), each(answer_loss, log_probs), "number")


def zlib_scores(log_probs: Mapping[str, NDArray[Any]], texts: Mapping[str, str]) -> Scores:
    """The answer's mean loss over the bytes that zlib needs for its text."""

    def score(ours: NDArray[Any], text: str) -> Value:
        loss = answer_loss(ours)
        return loss if isinstance(loss, Undefined) else loss / len(zlib.compress(text.encode()))

    return Scores(definition("mia_zlib"), each(score, log_probs, texts), "number")


def reference_scores(losses: Scores, reference: Scores) -> Scores:
    """The answer's mean loss less that of a reference model, from both models' ``loss_scores``."""
    comparable(losses, reference)
    values = each(lambda ours, theirs: ours - theirs, losses.values, reference.values)
    return Scores(definition("mia_reference"), values, "number")


def min_k(values: NDArray[Any], lowest: float = LOWEST) -> float:
    """−mean of the lowest share of ``(t,)`` values, rounded down, but at least one."""
    if not 0.0 < lowest <= 1.0:
        raise ValueError(f"min_k: lowest is {lowest}, a share above 0 and up to 1 is wanted")
    kept = max(1, int(len(values) * lowest + 1e-9))
    return -mean(np.sort(np.asarray(values, dtype=np.float64))[:kept])


def min_k_scores(log_probs: Mapping[str, NDArray[Any]], lowest: float = LOWEST) -> Scores:
    """Min-K%: −mean of the lowest log-probabilities."""
    values = each(lambda ours: unusable(ours) or min_k(ours, lowest), log_probs)
    return Scores(definition("mia_min_k", f"{lowest:g}"), values, "number")


def moments(log_probs: NDArray[Any]) -> NDArray[np.float64]:
    """``(t, vocabulary)`` log-probabilities to ``(2, t)``: mean and standard deviation of log p under p."""
    logs = np.asarray(log_probs, dtype=np.float64)
    p = np.exp(logs)
    weighted = p * np.where(p > 0.0, logs, 0.0)  # 0 log 0 is 0
    centre = weighted.sum(-1)
    spread = (p * np.where(p > 0.0, logs - centre[:, None], 0.0) ** 2).sum(-1)
    return np.stack([centre, np.sqrt(np.maximum(spread, NO_SPREAD))])


def min_k_plus_plus_scores(
    log_probs: Mapping[str, NDArray[Any]], over_vocabulary: Mapping[str, NDArray[np.float64]], lowest: float = LOWEST
) -> Scores:
    """Min-K%++: the same on (log p − μ) / σ, with ``moments`` of each position over the vocabulary."""

    def score(ours: NDArray[Any], around: NDArray[np.float64]) -> Value:
        return unusable(ours) or min_k((np.asarray(ours, dtype=np.float64) - around[0]) / around[1], lowest)

    values = each(score, log_probs, over_vocabulary)
    return Scores(definition("mia_min_k_plus_plus", f"{lowest:g}"), values, "number")


def membership(forget: Scores, holdout: Scores, *, reference: float = 0.5) -> Membership:
    """How often an item never seen scores higher than one to forget.

    Args:
        forget: scores of the data to forget.
        holdout: the same of data that no model saw.
        reference: the retrained model's AUC; without one 0.5, which is unfair where the two sets differ anyway.
    """
    if forget.definition != holdout.definition:
        raise DataError(f"{forget.definition} and {holdout.definition} are different numbers and cannot be compared")
    for scores, name in ((forget, "data to forget"), (holdout, "held-out data")):
        value = scores.measured().value
        if isinstance(value, Undefined):
            nothing = Undefined(f"{name}: {value.reason}", value.status)
            return Membership(Measurement(nothing, None, None, len(forget.defined)), nothing, nothing)
    unseen, seen = (np.array(list(scores.defined.values())) for scores in (holdout, forget))
    auc = replace(area(unseen, seen), n=len(seen))
    if isinstance(auc.value, Undefined) or auc.low is None or auc.high is None:
        raise AssertionError("area of finite, non-empty samples has an interval")
    verdict: Literal["member", "none", "inverted"] = "none"
    if not auc.low <= reference <= auc.high:
        verdict = "member" if auc.value > reference else "inverted"
    return Membership(auc, abs(auc.value - reference), verdict)


def privleak(auc: float, auc_reference: float) -> float | Undefined:
    """MUSE's relative leak, 100·((1 − AUC) − (1 − AUC_ref)) / (1 − AUC_ref); read the difference of AUCs first.

    Undefined where the reference leaves nothing to be relative to; OpenUnlearning then gives billions.
    """
    if auc_reference > EDGE:
        return Undefined(f"the reference's AUC is {auc_reference:.4g}; a relative leak needs {EDGE:g} or less")
    return 100.0 * ((1.0 - auc) - (1.0 - auc_reference)) / (1.0 - auc_reference)
