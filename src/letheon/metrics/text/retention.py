"""Knowledge retention of a language model (KR_llm, Lethe Eq. 4) and its resurfacing rate.

KR = 1 − mean min(R, 1/R), with R the truth ratio on the data to forget. The equation divides by the original answer's
probability; the published values fit the paraphrase's only, so that is the default and the other is logged beside it.
KR does not grow with knowledge alone: R above 1, false answers preferred, raises it again. A retrained model has 0.33.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from letheon.metrics.interval import Floats, bootstrap, share
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.resurfacing import resurfacing_rate, too_little_room
from letheon.metrics.retention import reduced
from letheon.metrics.text import definition
from letheon.metrics.text.scores import Scores, comparable, each
from letheon.metrics.text.truth_ratio import form_of, told


@dataclass(frozen=True, slots=True)
class Retention:
    """KR_llm and what it hides; all in per cent.

    Attributes:
        kr: 1 − mean min(R, 1/R), of each item.
        signed: 1 − mean min(R, 1): items that prefer false answers count 0, not as if they were known.
        above_one: share of the items with R > 1.
    """

    kr: Measurement
    signed: Measurement
    above_one: Measurement


def item_retention(log_ratios: Scores) -> Scores:
    """1 − min(R, 1/R) of each item."""
    form = form_of(log_ratios)
    return Scores(definition("knowledge_retention", form), each(lambda r: 1.0 - told(r, "closer"), log_ratios.values))


def signed_retention(log_ratios: Scores) -> Scores:
    """1 − min(R, 1) of each item."""
    form = form_of(log_ratios)
    return Scores(
        definition("knowledge_retention", f"{form},signed"), each(lambda r: told(r, "true"), log_ratios.values)
    )


def above_one(log_ratios: Scores) -> Scores:
    """1 for each item with R > 1, which prefers the false answers, and 0 for the others."""
    form = form_of(log_ratios)
    return Scores(
        definition("knowledge_retention", f"{form},above_one"), each(lambda r: float(r > 0.0), log_ratios.values)
    )


def retention(log_ratios: Scores) -> Retention:
    """KR_llm from log truth ratios on the data to forget; their definition says which truth and which mean."""
    kr = item_retention(log_ratios).measured()
    found = log_ratios.defined
    above = share(sum(r > 0.0 for r in found.values()), len(found))
    if isinstance(kr.value, Undefined):
        above = kr
    return Retention(kr, signed_retention(log_ratios).measured(), above)


def resurfacing(method: Sequence[Scores], retrain: Sequence[Scores], origin: Scores) -> Measurement:
    """RR (Eq. 5) of KR_llm, headline reduction (max over t ≥ 1), with a paired bootstrap over the items.

    Args:
        method: ``item_retention`` after each round of continued training.
        retrain: the same of Retrain, over the same rounds.
        origin: the same of the model before unlearning.
    """
    if not method or len(method) != len(retrain):
        raise ValueError(
            f"resurfacing: {len(method)} rounds of the method, {len(retrain)} of Retrain; the same are wanted"
        )
    for scores in (*method, *retrain):
        comparable(scores, origin)
    destroyed = [m.value for m in (s.measured() for s in (*method, *retrain, origin)) if isinstance(m.value, Undefined)]
    if destroyed:
        return Measurement(destroyed[0], None, None, 0)
    items = [i for i in origin.values if all(i in s.defined for s in (*method, *retrain, origin))]
    ours, reference, start = (_table(rows, items) for rows in (method, retrain, [origin]))
    n = len(items)
    if not n:
        return Measurement(Undefined("no item has a value in every round"), None, None, 0)
    ct, ct_retrain = (float(reduced(100.0 * table.mean(1), "max")) for table in (ours, reference))
    kr_origin = 100.0 * float(start.mean())
    undefined = too_little_room(kr_origin, ct_retrain, n)
    if undefined:
        return Measurement(undefined, None, None, n)

    def statistic(weights: Floats) -> Floats:
        a, b = (reduced(_means(table, weights), "max") for table in (ours, reference))
        room = np.maximum(_means(start, weights)[:, 0] - b, 1e-9)
        return np.asarray(100.0 * np.maximum(0.0, a - b) / room)

    low, high = bootstrap(statistic, n)
    return Measurement(resurfacing_rate(ct, kr_origin, ct_retrain), low, high, n)


def _table(rows: Sequence[Scores], items: Sequence[str]) -> Floats:
    return np.array([[scores.defined[item] for item in items] for scores in rows], dtype=np.float64)


def _means(table: Floats, weights: Floats) -> Floats:
    """``(rounds, n)`` values and ``(resamples, n)`` weights to ``(resamples, rounds)`` means in per cent."""
    return np.asarray(100.0 * (weights @ table.T) / weights.sum(1, keepdims=True))
