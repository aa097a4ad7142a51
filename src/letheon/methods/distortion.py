"""Weight distortion: noise on all weights, then fine-tuning (Siddiqui et al., arXiv 2505.22310)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from letheon import tree
from letheon.errors import ConfigError
from letheon.methods.base import Method, demand_rounds, fedavg
from letheon.phase import Phase, State, seed_of
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation


def distorted(params: Params, sigma: float, seed: int) -> Params:
    """Each scalar w becomes w + σ·z, z ~ N(0, 1), drawn in float64 in the order of ``params``."""
    generator = torch.Generator().manual_seed(seed)
    moved = {}
    for name, tensor in params.items():
        draw = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
        moved[name] = (tensor.double() + sigma * draw).to(tensor.dtype)
    return moved


@dataclass(frozen=True)
class WeightDistortion(Method):
    """Gaussian noise on the parameters at the server, then FedAvg on the retained data.

    ``noise`` moves each tensor as far as a forget update is long; here every scalar moves by the same σ, and no
    client is asked for anything before the restoring rounds.

    Attributes:
        sigma: standard deviation σ of the noise, in units of the weights.
        rounds: of FedAvg afterwards.
        local: local recipe; None: the experiment's.
    """

    name: ClassVar[str] = "weight-distortion"
    known_failures: ClassVar[Mapping[str, str]] = {
        "forgets": "noise of the authors' strength is little beside a small model's weights: a matter of chance",
    }

    sigma: float = 0.02
    rounds: int = 8
    local: Local | None = None

    def __post_init__(self) -> None:
        demand_rounds(self, self.rounds)
        if self.sigma <= 0:
            raise ConfigError(f"weight-distortion.sigma: must be positive, got {self.sigma}")

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("distort", self.distort), Phase("restore", fedavg(self.recipe), self.rounds)]

    def distort(self, federation: Federation, state: State, t: int) -> State:
        """One step at the server; buffers stay, and the seed is a function of the model."""
        return replace(state, params=distorted(state.params, self.sigma, seed_of(tree.digest(state.params))))
