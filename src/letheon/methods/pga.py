"""PGA: ascent on the data to forget inside a ball around a reference model (Halimi et al., arXiv 2207.05521)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from letheon import tree
from letheon.client import Client, client_work
from letheon.data import Data
from letheon.errors import ConfigError
from letheon.methods.base import Method, fedavg, train_work
from letheon.phase import Phase, State, seed_of
from letheon.request import Scope
from letheon.tasks.base import Task, params_of
from letheon.training import Local, batches, clipped
from letheon.tree import Params
from letheon.work import Federation, Reply, Scalar, Work, average, averages


@dataclass(frozen=True)
class Ascent:
    """Projected ascent at a holder of data to forget: SGD with momentum on minus the loss.

    Attributes:
        lr: step size.
        momentum: of SGD; projection leaves it alone.
        batch_size: samples a step.
        epochs: passes over the data to forget, at most.
        clip: limit of the gradient's norm.
        floor: τ; stop as soon as accuracy on the data to forget is below this.
    """

    lr: float = 0.01
    momentum: float = 0.9
    batch_size: int = 128
    epochs: int = 5
    clip: float = 5.0
    floor: float = 0.12

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name not in ("momentum", "floor")):
                raise ConfigError(f"ascent.{field.name}: must be positive, got {value}")
        if self.momentum >= 1 or self.floor > 1:
            raise ConfigError("ascent: momentum must lie in [0, 1) and floor in [0, 1]")

    def options(self) -> dict[str, Scalar]:
        """As scalars for ``Work.options``."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_options(cls, options: Mapping[str, Scalar]) -> Self:
        """The inverse of ``options``; other keys are ignored."""
        return cls(**{field.name: options[field.name] for field in fields(cls)})  # type: ignore[arg-type]

    def steps(self, n: int) -> int:
        """How many steps ``n`` samples can give."""
        return self.epochs * -(-n // self.batch_size)


def reference(params: Params, own: Params, share: float) -> Params:
    """w_ref = (w − q·w_u)/(1 − q) = w − q/(1 − q)·(w_u − w): the mean of models w without the one model w_u.

    Args:
        params: w, a mean of models.
        own: w_u − w.
        share: q, the weight of w_u in w; 1/N if N clients count alike.
    """
    return tree.add(params, own, -share / (1 - share))


def radius(center: Params, strangers: Sequence[Params]) -> float:
    """δ with δ² = ⅓·mean ‖w_ref − w_rand‖² over random initial weights w_rand."""
    squares = [tree.norm(tree.sub(center, stranger)) ** 2 for stranger in strangers]
    return float((sum(squares) / len(squares) / 3) ** 0.5)


@torch.no_grad()
def pull_back(params: Sequence[Tensor], center: Sequence[Tensor], limit: float) -> None:
    """Project ``params`` in place onto the ball of radius ``limit`` around ``center``."""
    away = [(p - c).double() for p, c in zip(params, center, strict=True)]
    distance = float(torch.stack([(a * a).sum() for a in away]).sum().sqrt())
    if distance > limit:
        for p, c, a in zip(params, center, away, strict=True):
            p.copy_(c + a * (limit / distance))


def climb(task: Task, module: nn.Module, data: Data, ascent: Ascent, *, limit: float, seed: int) -> tuple[int, float]:
    """Projected ascent of ``module`` in place, in evaluation mode: BatchNorm keeps its statistics.

    Returns:
        The steps taken, and the accuracy on ``data`` at the end.
    """
    module.eval()
    params: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
    center = [p.detach().clone() for p in params]
    velocity = [torch.zeros_like(p) for p in params]
    local = Local(batch_size=ascent.batch_size, epochs=ascent.epochs)
    steps, accuracy = 0, _accuracy(task, module, data)
    for index in batches(len(data), local, torch.Generator().manual_seed(seed)):
        if accuracy < ascent.floor:
            break
        loss = task.loss(module(data.inputs[index]), data.targets[index])
        gradients = clipped(torch.autograd.grad(loss, params, materialize_grads=True), ascent.clip)
        with torch.no_grad():
            torch._foreach_mul_(velocity, ascent.momentum)
            torch._foreach_add_(velocity, gradients)
            torch._foreach_add_(params, velocity, alpha=ascent.lr)  # up: minus the loss goes down
        pull_back(params, center, limit)
        steps, accuracy = steps + 1, _accuracy(task, module, data)
    return steps, accuracy


@torch.no_grad()
def _accuracy(task: Task, module: nn.Module, data: Data) -> float:
    correct = [
        task.correct(module(inputs), targets)
        for inputs, targets in zip(data.inputs.split(1024), data.targets.split(1024), strict=True)
    ]
    return float(torch.cat(correct).double().mean())


def _spent(task: Task, work: Work, n: int, steps: int) -> dict[str, float]:
    """A step trains on a batch; accuracy is looked at on all samples, before the first step and after each."""
    ascent = Ascent.from_options(work.options)
    per_pass = -(-n // ascent.batch_size)
    trained = steps // per_pass * n + min(steps % per_pass * ascent.batch_size, n)
    seen = n * (steps + 1)
    return {"samples": float(trained + seen), "flops": float(task.flops * (3 * trained + seen))}


def _most(task: Task, work: Work, n: int) -> dict[str, float]:
    """The price if accuracy never falls below the floor."""
    return _spent(task, work, n, Ascent.from_options(work.options).steps(n))


@client_work("climb", _most)
def _climb(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Projected ascent from ``params``, the center of the ball. Replies w − w_ref; the buffers stay as sent."""
    limit = float(work.options["radius"])
    steps, accuracy = climb(client.task, module, data, Ascent.from_options(work.options), limit=limit, seed=seed)
    update = tree.sub(params_of(module), work.params)
    metrics = {"steps": float(steps), "accuracy": accuracy, **_spent(client.task, work, len(data), steps)}
    return Reply(0, client.name, update, dict(work.buffers), metrics=metrics)


@dataclass(frozen=True)
class PGA(Method):
    """A reference model without the client, ascent from there inside a ball, then FedAvg on the retained data.

    The paper's client keeps its last local model w_u. Nobody keeps one here: w_u is one round of local training on the
    data to forget, from the current model. Weights are those of this library's FedAvg: q is the share of the data to
    forget in all data, which for clients of equal size is the paper's 1/N. With several holders, at class level, w_u
    and the model after the ascent are their means; a mean of points in a ball lies in the ball.

    The authors' code stops the ascent at a distance from w_u that fits one network; the paper and this stop it at an
    accuracy. Sample level is not claimed: on digits, retained training brought the samples back after a stop there.

    Attributes:
        ascent: how the holders climb.
        strangers: random initial weights whose mean distance from the reference sets the ball's radius.
        restore_rounds: of FedAvg afterwards.
        local: local recipe of w_u and of FedAvg; None: the experiment's.
    """

    name: ClassVar[str] = "pga"
    scopes: ClassVar[frozenset[Scope]] = frozenset({"client", "class"})

    ascent: Ascent = Ascent()
    strangers: int = 10
    restore_rounds: int = 7
    local: Local | None = None

    def __post_init__(self) -> None:
        if self.strangers < 1 or self.restore_rounds < 0:
            raise ConfigError("pga: strangers must be at least 1 and restore_rounds at least 0")

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        def ascend(federation: Federation, state: State, t: int) -> State:
            return self.ascend(federation, state, task)

        restore = [Phase("restore", fedavg(self.recipe), self.restore_rounds)] if self.restore_rounds else []
        return [Phase("reference", self.refer), Phase("ascend", ascend), *restore]

    def refer(self, federation: Federation, state: State, t: int) -> State:
        """w_ref; of the retained clients only the number of their samples is asked."""
        count = Work("evaluate", state.params, state.buffers, "retain", options={"limit": 1})
        own, others = averages(federation.run(train_work(state, "forget", self.recipe, t), count), 2)
        share = own.weight / (own.weight + others.weight)
        return replace(state, params=reference(state.params, own.tensors, share))

    def ascend(self, federation: Federation, state: State, task: Task) -> State:
        """The ascent from w_ref. The random weights are functions of their number."""
        strangers = [task.init(seed_of(f"pga|{i}")).params for i in range(self.strangers)]
        options = {**self.ascent.options(), "radius": radius(state.params, strangers)}
        work = Work("climb", state.params, state.buffers, "forget", options=options)
        return state.moved(average(federation.run(work)).tensors)
