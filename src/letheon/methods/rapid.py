"""Rapid Retraining: from scratch, but with Newton steps (Liu et al., INFOCOM 2022, arXiv 2203.07320)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from letheon.errors import ConfigError
from letheon.methods.base import Method
from letheon.methods.retrain import Retrain
from letheon.phase import Phase, State
from letheon.tasks.base import Task
from letheon.training import Local


@dataclass(frozen=True)
class RapidRetraining(Method):
    """Retrain with the optimizer ``fisher``: steps scaled by the diagonal of the empirical Fisher matrix.

    Exact like Retrain: nothing of Origin is used. What it can save is rounds, so give it fewer. The moments start anew
    every round, as with all optimizers here; with bias correction a round of a few steps is still a round of Newton
    steps, only with curvatures from fewer batches.

    Attributes:
        lr: learning rate η of round 0; the recipe's own is meant for another optimizer.
        rounds: of training; None: as many as Origin had.
        init_seed: seed of the initial weights; None: the experiment's, with which Origin began.
        local: local recipe but for optimizer and learning rate; None: the experiment's.
    """

    name: ClassVar[str] = "rapid-retraining"

    lr: float = 1e-3
    rounds: int | None = None
    init_seed: int | None = None
    local: Local | None = None

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ConfigError(f"rapid-retraining.lr: must be positive, got {self.lr}")
        if self.rounds is not None and self.rounds < 1:
            raise ConfigError(f"rapid-retraining.rounds: must be at least 1, got {self.rounds}")

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        return self.filled({"local": local, "rounds": train_rounds, "init_seed": seed})

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        local = replace(self.recipe, optimizer="fisher", lr=self.lr)
        return Retrain(self.rounds, self.init_seed, local).phases(start, task)
