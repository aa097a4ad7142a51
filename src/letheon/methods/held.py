"""COP around a federated method: what it does is confined to what the requests before left free to move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import torch
from torch import nn

from letheon import cop, tree
from letheon.client import Client, client_work
from letheon.cop import Basis, Batch, Moments
from letheon.data import Data
from letheon.errors import ConfigError
from letheon.methods.base import ALL_SCOPES, Method
from letheon.methods.descent import Cop, Descent
from letheon.methods.lethe import Lethe
from letheon.phase import Phase, State, Step
from letheon.tasks.base import Task
from letheon.tasks.text import TextTask
from letheon.text.passes import passes
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Reply, Work, average

ROWS = 256
"""Samples that pass at once while inputs are collected."""


def _cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """Two forward passes; the sums of products of what enters the layers are not counted."""
    return {"samples": 2.0 * n, "flops": 2.0 * task.flops * n}


@client_work("inputs", _cost, answers="free")
def _inputs(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Second moments of what enters each layer. Replies G/n, ``WEIGHTING/LAYER``, and the rows behind each of the n."""
    device = next(module.parameters()).device
    batches = passes(data, device) if isinstance(client.task, TextTask) else list(_batches(data, device))
    spaces = {name: (name,) for name in cop.untied(module)}
    found: Params = {}
    for weighting in ("raw", "unit"):
        for space, moments in cop.collect(module, batches, spaces, weighting=weighting).items():
            found[f"{weighting}/{space}"] = moments.gram.cpu() / len(data)
            found[f"rows/{space}"] = torch.tensor(moments.tokens / len(data), dtype=torch.float64)
    return Reply(0, client.name, found)


def _batches(data: Data, device: torch.device) -> Iterator[Batch]:
    for rows in torch.arange(len(data)).split(ROWS):
        yield Batch(data.take(rows).inputs.to(device))


@dataclass(frozen=True)
class Held(Method):
    """Another method that cannot move what earlier requests settled.

    COP for a federation, after Continual Orthogonal Projection: for every linear and convolutional layer the server
    keeps an orthonormal basis V of what the forgotten data of earlier requests put into it. After each round of the
    other method the update is confined to the complement, Δ ← Δ − (Δ V) Vᵀ, which is the same as confining each
    client's, since the mean is linear. Norms, biases and BatchNorm statistics stay as they were: nothing could hold
    what they do. So the layers answer the inputs in the span of V as they did when the request began. The first request
    is the other method's own.

    At the end the holders of the data to forget send sums of x xᵀ over what enters each layer, d² numbers for a layer
    of d inputs, and the server takes their leading directions. Both are derived from what is deleted: of one sample
    they are the sample. Training that goes on afterwards is not confined.

    Attributes:
        base: the method that unlearns. One that serves every level of request, any number of times and from any model.
        cop: how many directions are held.
        local: local recipe; None: the experiment's. The base's own goes first.
    """

    name: ClassVar[str] = "cop"
    remembers: ClassVar[bool] = True

    base: Method = Lethe()
    cop: Cop = Cop()
    local: Local | None = None

    def __post_init__(self) -> None:
        if isinstance(self.base, Descent):
            raise ConfigError(f"cop.base: {self.base.name} has a setting `cop` of its own; use that")
        own = type(self.base).training is not Method.training or type(self.base).origin is not Method.origin
        whole = self.base.scopes == ALL_SCOPES and self.base.repeats and self.base.mixes
        if own or self.base.needed or not whole or isinstance(self.base, Held):
            raise ConfigError(
                f"cop.base: {self.base.name} cannot be held: only a method that serves every level of request, again "
                "and together, starts from any model, and needs neither a record nor single replies"
            )

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        own = self.filled({"local": local})
        return replace(own, base=self.base.configured(own.recipe, train_rounds, seed))

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        layers = cop.untied(task.prototype())
        bases = cop.from_params(start.memory)
        inner = self.base.phases(start, task)
        if any(basis.rank for basis in bases.values()):
            inner = [replace(phase, step=_confined(phase.step, layers, bases)) for phase in inner]
        return [*inner, Phase("protect", partial(self._protect, layers))]

    def _protect(self, layers: Sequence[str], federation: Federation, state: State, t: int) -> State:
        """Extend the bases by what entered the layers of the model as it is now."""
        mean = average(federation.run(Work("inputs", state.params, state.buffers, "forget")))
        if not mean.tensors:  # a dry run answers without
            return state
        bases = cop.from_params(state.memory)
        request = cop.served(bases)
        for weighting, rule in cop.rules(self.cop.selection):
            moments = {}
            for space in layers:
                gram, rows = (mean.tensors[f"{kind}/{space}"] * mean.weight for kind in (weighting, "rows"))
                moments[space] = Moments(gram, float(rows), weighting, torch.float32)
            bases = cop.extended(bases, moments, request=request, rule=rule)
        cop.warn(bases, self.cop.selection)
        return replace(state, memory=state.memory | cop.to_params(bases))


def _confined(step: Step, layers: Sequence[str], bases: Mapping[str, Basis]) -> Step:
    """The same step, of whose update nothing is left that moves protected responses."""
    spaces = {name: (name,) for name in layers}

    def confined(federation: Federation, state: State, t: int) -> State:
        done = step(federation, state, t)
        left = cop.confined(tree.sub(done.params, state.params), spaces, bases)
        return replace(done, params=tree.add(state.params, left), buffers=state.buffers)

    return confined
