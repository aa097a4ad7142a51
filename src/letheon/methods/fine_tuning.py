"""Fine-tuning on what is retained: the control for natural forgetting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from letheon.methods.base import Method, demand_rounds, fedavg
from letheon.phase import Phase, State
from letheon.tasks.base import Task
from letheon.training import Local


@dataclass(frozen=True)
class FineTuning(Method):
    """FedAvg on the retained data and nothing else: what a method must beat to have done anything.

    Attributes:
        rounds: of FedAvg.
        local: local recipe; None: the experiment's.
    """

    name: ClassVar[str] = "fine-tuning"
    known_failures: ClassVar[Mapping[str, str]] = {
        "forgets": "the control for natural forgetting: what it forgets, it forgets by chance",
    }

    rounds: int = 8
    local: Local | None = None

    def __post_init__(self) -> None:
        demand_rounds(self, self.rounds, least=1)

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("restore", fedavg(self.recipe), self.rounds)]
