"""PUF: subtracting the forget client's ordinary update (Mora et al., arXiv 2504.05822)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from letheon import tree
from letheon.errors import ConfigError
from letheon.methods.base import Method, demand_rounds, fedavg, train_work
from letheon.phase import Phase, State
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.work import Federation, averages


@dataclass(frozen=True)
class PUF(Method):
    """One round in which the update learnt on the data to forget is subtracted, then FedAvg on the retained data.

    With one global factor and no test of alignment it is what is left of Lethe without adapter and rectification.

    Attributes:
        form: ``special``: w − λΔᵘ. ``regular``: w + Σ (n_k/N) Δ_k − λ (n_u/N) Δᵘ, N counting the forget data too.
        rate: λ; None: what the authors use, 2 (special) or 20 (regular, CIFAR-10).
        rounds: of FedAvg afterwards.
        local: local recipe; None: the experiment's.
    """

    name: ClassVar[str] = "puf"

    form: Literal["special", "regular"] = "special"
    rate: float | None = None
    rounds: int = 7
    local: Local | None = None

    def __post_init__(self) -> None:
        demand_rounds(self, self.rounds)
        if self.rate is not None and self.rate <= 0:
            raise ConfigError(f"puf.rate: must be positive, got {self.rate}")

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("subtract", self.subtract), Phase("restore", fedavg(self.recipe), self.rounds)]

    @property
    def factor(self) -> float:
        """λ in force."""
        return self.rate if self.rate is not None else {"special": 2.0, "regular": 20.0}[self.form]

    def subtract(self, federation: Federation, state: State, t: int) -> State:
        """The one unlearning round; buffers follow the retain stream."""
        works = [train_work(state, part, self.recipe, t) for part in ("forget", "retain")]
        if self.form == "special":
            (forget,) = averages(federation.run(works[0]), 1)
            return state.moved(forget.tensors, -self.factor)
        forget, retain = averages(federation.run(*works), 2)
        total = forget.weight + retain.weight
        step = tree.add(
            tree.scale(retain.tensors, retain.weight / total), forget.tensors, -self.factor * forget.weight / total
        )
        return replace(state.moved(step), buffers=retain.buffers)
