"""Retraining from scratch: the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from letheon.methods.base import Method, demand_rounds, fedavg
from letheon.phase import Phase, State
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.work import Federation


@dataclass(frozen=True)
class Retrain(Method):
    """FedAvg on the retained data from the initial weights that Origin had.

    Attributes:
        rounds: of training; None: as many as Origin had.
        init_seed: seed of the initial weights; None: the experiment's, so that Origin and Retrain start equal.
        local: local recipe; None: the experiment's.
    """

    name: ClassVar[str] = "retrain"

    rounds: int | None = None
    init_seed: int | None = None
    local: Local | None = None

    def __post_init__(self) -> None:
        demand_rounds(self, self.rounds, least=1)

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        return self.filled({"local": local, "rounds": train_rounds, "init_seed": seed})

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        fresh = task.init(self.init_seed or 0)
        train = fedavg(replace(self.recipe, first_round=0))

        def retrain(federation: Federation, state: State, t: int) -> State:
            begin = replace(fresh, memory=state.memory) if t == 0 else state
            return train(federation, begin, t)

        return [Phase("retrain", retrain, self.rounds or 1)]
