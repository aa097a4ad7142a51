"""Rollback tendency (Eq. 24): does continued training move the model back to where it came from?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from letheon import tree
from letheon.metrics.measurement import Measurement, Undefined
from letheon.tree import Params

FLOOR = 1e-12
"""Least norm in a denominator."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """RT of the first rounds of continued training.

    Attributes:
        rounds: RT(t) over all parameters, t = 0, 1, …
        layers: the same within each layer.
    """

    rounds: tuple[float | Undefined, ...]
    layers: Mapping[str, tuple[float | Undefined, ...]]

    @property
    def mean(self) -> Measurement:
        """Mean over the rounds, with their smallest and largest value in place of an interval: n is their number."""
        return mean_of(self.rounds)


def rollback_tendency(
    update: Params, origin: Params, unlearned: Params, names: Iterable[str] | None = None
) -> float | Undefined:
    """RT (Eq. 24): cosine of a round's update and w_ori − w_un over ``names`` (all parameters by default).

    Buffers have no part in it. Norms are not taken below ``FLOOR``, so an update of zero gives 0.
    """
    chosen = list(update) if names is None else list(names)
    back = tree.sub(origin, unlearned)
    length = tree.norm(back, chosen)
    if length == 0.0:
        return Undefined("the unlearned model is the original model: there is no way back")
    return tree.dot(update, back, chosen) / (max(tree.norm(update, chosen), FLOOR) * max(length, FLOOR))


def rollback(models: Sequence[Params], origin: Params, layers: Mapping[str, Sequence[str]]) -> Rollback:
    """RT of each round, whole and by layer.

    Args:
        models: w_un, then the model after each round of continued training.
        origin: w_ori.
        layers: the names of each layer's parameters.
    """
    updates = [tree.sub(after, before) for before, after in pairwise(models)]

    def course(names: Sequence[str] | None) -> tuple[float | Undefined, ...]:
        return tuple(rollback_tendency(update, origin, models[0], names) for update in updates)

    return Rollback(course(None), {layer: course(names) for layer, names in layers.items()})


def mean_of(rounds: Sequence[float | Undefined]) -> Measurement:
    """Mean of a course with its extremes; undefined if there is no round, or one is undefined."""
    known = [value for value in rounds if not isinstance(value, Undefined)]
    if len(known) < len(rounds) or not known:
        reasons = [value for value in rounds if isinstance(value, Undefined)]
        return Measurement(reasons[0] if reasons else Undefined("no round was run"), None, None, len(rounds))
    return Measurement(sum(known) / len(known), min(known), max(known), len(known))
