"""What a client does with work: one function, ``Client.execute``, for every method and every runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import nn

from letheon import tree
from letheon.adapter import Adapter, adapter_of, ascend, at_head, attached, inside, penultimate
from letheon.data import Data
from letheon.errors import LetheonError, RequestError
from letheon.objectives import objective
from letheon.phase import seed_of
from letheon.request import Request, free
from letheon.tasks.base import Task, buffers_of, params_of
from letheon.training import Local, demand_samples, recalibrate, train
from letheon.tree import Params
from letheon.work import Reply, Work

Do = Callable[["Client", Work, Data, nn.Module, int], Reply]
Cost = Callable[[Task, Work, int], dict[str, float]]
Answers = Literal["params", "buffers", "extras", "free"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A registered kind of work.

    Attributes:
        do: what to do.
        cost: what it costs for n samples (samples seen, FLOPs).
        answers: what the reply's tensors must match: the ``params`` that were sent (and its buffers those), no tensors
            but the ``buffers`` that were sent, the ``extras``, or nothing (``free``).
    """

    do: Do
    cost: Cost
    answers: Answers = "params"

    def expected(self, work: Work) -> tuple[Params, Params] | None:
        """The tensors and the buffers that a reply to ``work`` must match; None: nothing in particular."""
        return {
            "params": (work.params, work.buffers),
            "buffers": ({}, work.buffers),
            "extras": (work.extras, {}),
            "free": None,
        }[self.answers]


KINDS: dict[str, Kind] = {}
LARGEST_LOSS = 1e30


def client_work(name: str, cost: Cost, *, answers: Answers = "params") -> Callable[[Do], Do]:
    """Register a function as the work kind ``name``; see ``Kind``."""

    def register(do: Do) -> Do:
        if name in KINDS:
            raise ValueError(f"client work {name!r} is registered already")
        KINDS[name] = Kind(do, cost, answers)
        return do

    return register


@dataclass(eq=False)
class Client:
    """One holder of data. Which of its samples a request covers is resolved here and never leaves.

    Attributes:
        name: unique in the federation; replies are aggregated in the order of names.
        data: everything the client holds.
        task: model and loss.
        requests: the admitted requests by id: the client's own exclusion table.
    """

    name: str
    data: Data
    task: Task
    requests: dict[str, Request] = field(default_factory=dict)
    _parts: dict[tuple[str, str, int], Data] = field(default_factory=dict, repr=False)

    def admit(self, request: Request) -> None:
        """From now on ``retain`` leaves out what the request covers."""
        self.requests = self.requests | {request.id: request}
        self._parts.clear()  # no copy of what is to be forgotten stays behind

    def part(self, work: Work) -> Data:
        """The samples that ``work`` is about.

        ``retain`` leaves out what any request admitted so far covers, ``forget`` what an earlier one covers: nobody
        is asked to work on what has been forgotten already.
        """
        key = (work.part, work.request, len(self.requests))
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = self._select(work)
        return found

    def _select(self, work: Work) -> Data:
        if work.part == "forget":
            if work.request not in self.requests:
                raise RequestError(f"client {self.name}: request {work.request!r} was never admitted here")
            earlier = list(self.requests)[: list(self.requests).index(work.request)]
            covered = self.requests[work.request].covers(self.name, self.data, [self.requests[id] for id in earlier])
            return self.data.take(covered)
        if work.part == "retain":
            return self.data.take(free(self.requests.values(), self.name, self.data))
        return self.data

    def execute(self, work: Work, module: nn.Module) -> Reply:
        """Do ``work`` with ``module`` (a scratch copy of the architecture, overwritten) and reply.

        What the client cannot do comes back as ``Reply.error``; faults of the program are raised.
        """
        data = self.part(work)
        seed = seed_of(f"{work.seed}|{self.name}")
        if self.task.draws:
            torch.manual_seed(seed)  # runs in a process of its own, see runtimes.inprocess
        try:
            load(module, work.params, work.buffers)
            reply = KINDS[work.kind].do(self, work, data, module, seed)
        except LetheonError as error:
            return Reply(0, self.name, {}, error=str(error))
        cost = KINDS[work.kind].cost(self.task, work, len(data))
        return replace(reply, weight=float(len(data)), metrics=cost | dict(reply.metrics))


@torch.no_grad()
def load(module: nn.Module, params: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors into the module; a missing or unknown name is an error, never skipped."""
    for kind, own, given in (
        ("parameter", dict(module.named_parameters()), params),
        ("buffer", {n: dict(module.named_buffers())[n] for n in buffers_of(module)}, buffers),
    ):
        mine = {n: t for n, t in own.items() if kind == "buffer" or t.requires_grad}
        if mine.keys() != given.keys():
            raise LetheonError(f"{kind} names differ between model and broadcast: {sorted(mine.keys() ^ given.keys())}")
        for name, tensor in mine.items():
            if tensor.shape != given[name].shape:
                raise LetheonError(f"{kind} {name}: got {tuple(given[name].shape)}, expected {tuple(tensor.shape)}")
            tensor.copy_(given[name])


def _train_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    samples = Local.from_options(work.options).samples(n)
    return {"samples": samples, "flops": 3.0 * task.flops * samples}


@client_work("train", _train_cost)
def _train(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Local training, through a frozen adapter if ``extras`` hold one. Replies w_k − w.

    The option ``objective`` names the loss (``letheon.objectives``); the task's own by default.
    """
    local = Local.from_options(work.options)
    wanted = objective(str(work.options.get("objective", "task")), client.task.loss)
    with attached(module, client.task.head, adapter_of(work.extras)):
        loss = train(module, wanted, data, local, seed=seed)
    update = tree.sub(params_of(module), work.params)
    return Reply(0, client.name, update, buffers_of(module), metrics={"loss": finite(loss)})


def _refresh_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    return {"samples": float(n), "flops": float(task.flops * n)}


@client_work("refresh", _refresh_cost, answers="buffers")
def _refresh(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """BatchNorm's running statistics from one pass over the part; replies nothing but the buffers."""
    demand_samples(module, len(data))
    recalibrate(module, data.inputs, chunk=1024)
    return Reply(0, client.name, {}, buffers_of(module))


def _amplify_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """If all S_φ steps are taken."""
    return _amplified(task, work, n, int(work.options["steps"]))


def _amplified(task: Task, work: Work, n: int, steps: int) -> dict[str, float]:
    """A batch costs three passes, the loss on all samples one, before the first step and after each.

    On penultimate features these are passes of adapter and head, after one of the backbone. With an adapter inside it
    they are passes of the whole model; bottlenecks on feature maps are then counted as if maps had one pixel.
    """
    trained = steps * int(work.options["batch_size"])
    passes = 3 * trained + (steps + 1) * n
    if _is_inside(work):
        flops = (task.flops + 2 * tree.count(work.extras)) * passes
        return {"samples": float(trained + (steps + 1) * n), "flops": float(flops)}
    head = sum(tensor.numel() for name, tensor in work.params.items() if name.startswith(f"{task.head}."))
    flops = task.flops * n + 2 * (tree.count(work.extras) + head) * passes
    return {"samples": float(n), "flops": float(flops)}


def _is_inside(work: Work) -> bool:
    """Whether the adapter in ``extras`` says where it goes, and not just to the last layer."""
    return any("/" in name for name in work.extras)


@client_work("amplify", _amplify_cost, answers="extras")
def _amplify(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Lethe's phase 1: train the adapter in ``extras`` by ascent. Replies the adapter."""
    task, adapter = client.task, Adapter.from_options(work.options)
    if _is_inside(work):
        answer, inputs = inside(module, task.head), data.inputs
    else:
        answer, inputs = at_head(module.get_submodule(task.head)), penultimate(module, task.head, data.inputs)
    tensors, steps, reached = ascend(adapter, answer, task.loss, inputs, data.targets, start=work.extras, seed=seed)
    metrics = {"steps": float(steps), "reached": finite(reached), **_amplified(task, work, len(data), steps)}
    return Reply(0, client.name, tensors, metrics=metrics)


def finite(loss: float) -> float:
    """A loss as a number that can be averaged: a model far gone is very bad, not NaN."""
    return LARGEST_LOSS if math.isnan(loss) else max(-LARGEST_LOSS, min(loss, LARGEST_LOSS))


def _seen(work: Work, n: int) -> int:
    return min(n, int(work.options.get("limit", n)))


def _evaluate_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    return {"samples": float(_seen(work, n)), "flops": float(task.flops * _seen(work, n))}


@client_work("evaluate", _evaluate_cost, answers="free")
@torch.no_grad()
def _evaluate(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Evaluation mode, fixed order. Replies accuracy and mean loss; the outcome of each sample only on ``detail``.

    With the option ``limit`` at most so many samples are looked at, evenly spread over the data.
    """
    module.eval()
    seen = _seen(work, len(data))
    chosen = data if seen == len(data) else data.take(torch.arange(seen) * len(data) // seen)
    correct, loss = [], 0.0
    for start in range(0, seen, 1024):
        inputs, targets = chosen.inputs[start : start + 1024], chosen.targets[start : start + 1024]
        outputs = module(inputs)
        correct.append(client.task.correct(outputs, targets))
        loss += client.task.loss(outputs, targets).item() * len(targets)
    outcomes = torch.cat(correct)
    tensors = {"correct": outcomes} if work.options.get("detail") else {}
    metrics = {"loss": finite(loss / seen), "accuracy": float(outcomes.double().mean())}
    return Reply(0, client.name, tensors, metrics=metrics)
