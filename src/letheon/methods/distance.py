"""Weight distance: fine-tuning that is paid for leaving the old model (Siddiqui et al., arXiv 2505.22310)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from letheon import tree
from letheon.client import KINDS, Client, client_work, finite
from letheon.data import Data
from letheon.errors import ConfigError
from letheon.methods.base import Method, demand_rounds
from letheon.phase import Phase, State
from letheon.tasks.base import Task, buffers_of, params_of
from letheon.training import Local, train
from letheon.tree import Params
from letheon.work import Federation, Reply, Work, average

_ORIGIN = "origin/"


def rms(params: Mapping[str, Tensor], origin: Mapping[str, Tensor]) -> Tensor:
    """√(Σ (w − w_ori)² / d) over all d scalars; its gradient where both are equal is zero."""
    lengths = torch.stack([torch.linalg.vector_norm(tensor - origin[name]) for name, tensor in params.items()])
    distance: Tensor = torch.linalg.vector_norm(lengths) / tree.count(origin) ** 0.5
    return distance


def remembering(state: State) -> State:
    """The state with w_ori in its scratch: the params as they are, unless it is there already."""
    if origin_of(state):
        return state
    return replace(state, scratch=state.scratch | {_ORIGIN + name: tensor for name, tensor in state.params.items()})


def origin_of(state: State) -> Params:
    """w_ori as ``remembering`` keeps it; empty before that."""
    return {n.removeprefix(_ORIGIN): tensor for n, tensor in state.scratch.items() if n.startswith(_ORIGIN)}


# The regulariser costs a few operations for each weight and step, like the optimizer: neither is counted.
@client_work("train-away", KINDS["train"].cost)
def _train_away(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Local training on the loss less ``distance_weight``·RMS(w − w_ori), w_ori in ``extras``. Replies w_k − w."""
    weight = float(work.options["distance_weight"])
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return client.task.loss(outputs, targets) - weight * rms(trained, work.extras)

    reached = train(module, loss, data, Local.from_options(work.options), seed=seed)
    update = tree.sub(params_of(module), work.params)
    return Reply(0, client.name, update, buffers_of(module), metrics={"loss": finite(reached)})


@dataclass(frozen=True)
class WeightDistance(Method):
    """FedAvg on the retained data in which every client is also paid for the distance to w_ori.

    Attributes:
        weight: of the regulariser −RMS(w − w_ori).
        rounds: of training.
        local: local recipe; None: the experiment's.
    """

    name: ClassVar[str] = "weight-distance"
    known_failures: ClassVar[Mapping[str, str]] = {
        "forgets": "reads no data to forget: what the distance costs is left to the retained data",
    }

    weight: float = 1.0
    rounds: int = 8
    local: Local | None = None

    def __post_init__(self) -> None:
        demand_rounds(self, self.rounds, least=1)
        if self.weight <= 0:
            raise ConfigError(f"weight-distance.weight: must be positive, got {self.weight}")

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("move away", self.away, self.rounds)]

    def away(self, federation: Federation, state: State, t: int) -> State:
        """One regularised round of FedAvg."""
        state = remembering(state)
        options = self.recipe.options(t) | {"distance_weight": self.weight}
        work = Work("train-away", state.params, state.buffers, "retain", options=options, extras=origin_of(state))
        mean = average(federation.run(work))
        return replace(state.moved(mean.tensors), buffers=mean.buffers)
