"""NoT: unlearning by negating weights (Khalil et al., CVPR 2025, arXiv 2503.05657)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from letheon.errors import MethodError
from letheon.methods.base import Method, demand_rounds, fedavg
from letheon.phase import Phase, State
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation


def negated(params: Params, names: Sequence[str]) -> Params:
    """The same tensors with those in ``names`` multiplied by −1: an involution."""
    unknown = sorted(set(names) - params.keys())
    if unknown:
        raise MethodError(f"not: no parameter named {unknown[0]!r}; the model has {', '.join(params)}")
    return {name: -tensor if name in names else tensor for name, tensor in params.items()}


@dataclass(frozen=True)
class NoT(Method):
    """Negate the weights of some layers at the server, then FedAvg on the retained data.

    Attributes:
        tensors: names of the parameters to negate; empty: the weight of the first layer (biases and norms stay).
        rounds: of FedAvg afterwards; the paper stops when utility is back and gives no rule.
        local: local recipe; None: the experiment's.
    """

    name: ClassVar[str] = "not"

    tensors: tuple[str, ...] = ()
    rounds: int = 8
    local: Local | None = None

    def __post_init__(self) -> None:
        demand_rounds(self, self.rounds)

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        names = self.tensors or next(iter(task.layers.values()))[:1]

        def negate(federation: Federation, state: State, t: int) -> State:
            return replace(state, params=negated(state.params, names))

        return [Phase("negate", negate), Phase("restore", fedavg(self.recipe), self.rounds)]
