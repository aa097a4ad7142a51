"""Norm-matched noise: is it the direction of a method's step, or only its length?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from letheon import tree
from letheon.errors import ConfigError
from letheon.methods.base import Method, demand_rounds, fedavg, train_work
from letheon.phase import Phase, State, seed_of
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, average


def gaussian_like(update: Params, scale: float, seed: int) -> Params:
    """For each tensor, Gaussian noise of norm scale·‖update‖."""
    generator = torch.Generator().manual_seed(seed)
    noise = {}
    for name, tensor in update.items():
        draw = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
        length = float(tensor.double().norm()) * scale
        noise[name] = (draw * (length / float(draw.norm().clamp_min(1e-12)))).to(tensor.dtype)
    return noise


@dataclass(frozen=True)
class Noise(Method):
    """Like PUF's special form, but each tensor moves in a random direction by the same length.

    Attributes:
        scale: length of the step, in lengths of the forget update (PUF's λ).
        rounds: of FedAvg afterwards.
        local: local recipe; None: the experiment's.
    """

    name: ClassVar[str] = "noise"
    known_failures: ClassVar[Mapping[str, str]] = {
        "forgets": "the control for mere distance: a random step need not forget anything",
    }

    scale: float = 2.0
    rounds: int = 7
    local: Local | None = None

    def __post_init__(self) -> None:
        demand_rounds(self, self.rounds)
        if self.scale <= 0:
            raise ConfigError(f"noise.scale: must be positive, got {self.scale}")

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("perturb", self.perturb), Phase("restore", fedavg(self.recipe), self.rounds)]

    def perturb(self, federation: Federation, state: State, t: int) -> State:
        """Only the length of the forget update is used; the seed is a function of the model."""
        forget = average(federation.run(train_work(state, "forget", self.recipe, t)))
        return state.moved(gaussian_like(forget.tensors, self.scale, seed_of(tree.digest(state.params))))
