"""Membership inference by confidence: does the model treat the data to forget unlike data that it never saw?

A threshold on one number for each sample, without shadow models. It bounds no attacker: a stronger one may see more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from letheon.metrics.interval import Floats, wilson
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.ranking import area, resampled

FALSE_POSITIVES = (1.0, 0.1)
"""False positive rates at which the true positive rate is told, per cent."""


@dataclass(frozen=True, slots=True)
class Attack:
    """How well the attack tells members from non-members.

    Attributes:
        auc: area under the ROC curve, in [0, 1]; 0.5 is chance. Far *below* 0.5 is a leak too.
        tpr: at each of ``FALSE_POSITIVES``, the true positive rate in per cent.
    """

    auc: Measurement
    tpr: tuple[Measurement, ...]


def confidence(outputs: Tensor, targets: Tensor) -> Floats:
    """``(n, classes)`` logits and ``(n,)`` labels to ``(n,)`` log p − log(1 − p) of the label.

    In float64 and without p itself, which rounds to 1 where models are sure.
    """
    logits = outputs.double()
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, targets[:, None], True)
    others = logits.masked_fill(chosen, -torch.inf)
    found: Floats = (logits[chosen] - others.logsumexp(1)).numpy()
    return found


def attack(members: Floats, others: Floats) -> Attack:
    """The attack on ``(n,)`` and ``(m,)`` confidences: more confident means member."""
    undefined = _unusable(members, others)
    if undefined:
        nothing = Measurement(undefined, None, None, len(members))
        return Attack(nothing, (nothing,) * len(FALSE_POSITIVES))
    return Attack(area(members, others), tuple(_tpr(members, others, rate) for rate in FALSE_POSITIVES))


def true_positives(members: Floats, others: Floats, rate: float) -> float:
    """Share of members above the threshold that lets at most ``rate`` (a share) of the others through."""
    let_through = int(len(others) * rate + 1e-9)
    threshold = -np.sort(-others)[let_through]
    return float((members > threshold).mean())


def _tpr(members: Floats, others: Floats, rate: float) -> Measurement:
    n, needed = len(members), round(100.0 / rate)
    if len(others) < needed:
        reason = f"a false positive rate of {rate:g} % needs {needed} non-members, there are {len(others)}"
        return Measurement(Undefined(reason), None, None, n)

    def statistic(a: Floats, b: Floats) -> float:
        return 100.0 * true_positives(a, b, rate / 100.0)

    value = statistic(members, others)
    low, high = resampled(statistic, members, others)
    if low == high:
        low, high = (100.0 * end for end in wilson(round(value * n / 100.0), n))
    return Measurement(value, low, high, n)


def _unusable(members: Floats, others: Floats) -> Undefined | None:
    if not len(members) or not len(others):
        return Undefined(f"needs members and non-members, there are {len(members)} and {len(others)}")
    if not (np.isfinite(members).all() and np.isfinite(others).all()):
        return Undefined("the model's outputs are not finite", "collapsed")
    return None
