"""FedAU: an auxiliary classifier trained on wrong labels, blended into the last layer (Gu et al., arXiv 2405.15474)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from letheon import tree
from letheon.adapter import penultimate
from letheon.client import Client, client_work, finite
from letheon.data import Data
from letheon.errors import ConfigError, DataError, MethodError
from letheon.methods.base import Method, fedavg
from letheon.phase import Phase, State, Step, seed_of
from letheon.request import Part, Scope
from letheon.tasks.base import Task
from letheon.training import Local, train
from letheon.tree import Params
from letheon.work import Federation, Reply, Work, average, separate

HEAD = "fedau/head/"
WHOLE_CLASS = "fedau/whole_class"
DRIFT = "fedau-in-training/drift/"


def wrong_labels(data: Data, classes: int, *, seed: int) -> Tensor:
    """``(n,)`` one wrong label for each sample, uniform over the other classes: a function of its id and the seed."""
    if data.targets.ndim != 1 or data.targets.is_floating_point():
        raise DataError(f"fedau: needs one class label for each sample, got targets of {tuple(data.targets.shape)}")
    drawn = torch.tensor([seed_of(f"{seed}|{i}") % (classes - 1) for i in data.ids.tolist()], dtype=data.targets.dtype)
    return drawn + (drawn >= data.targets).to(drawn.dtype)


def blended(params: Params, drift: Mapping[str, Tensor], alpha: float) -> Params:
    """The model with (1−α)W + αA = W + α(A − W) in place of its last layer W.

    Args:
        params: the model.
        drift: A − W, by the names of the last layer's tensors.
        alpha: α as in the authors' code; the paper's is 1 − α.
    """
    return params | {name: torch.add(params[name], drift[name], alpha=alpha) for name in drift}


def subtracted(params: Params, auxiliary: Mapping[str, Tensor], factor: float) -> Params:
    """The model with W − cA in place of its last layer W: for a class, whose label A has learnt to answer."""
    return params | {name: torch.sub(params[name], auxiliary[name], alpha=factor) for name in auxiliary}


def head_of(params: Mapping[str, Tensor], head: str) -> Params:
    """The tensors of the module ``head``."""
    return {name: tensor for name, tensor in params.items() if name.rpartition(".")[0] == head}


def auxiliary_work(state: State, part: Part, local: Local, *, start: Params, labels: int) -> Work:
    """Training of a copy of the last layer from ``start``; ``labels`` is the seed of the wrong labels."""
    options = {**local.options(0), "labels": labels}
    return Work("auxiliary", state.params, state.buffers, part, options=options, extras=start)


def _cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """One pass of the whole model, then the training of the copy on its features."""
    trained = Local.from_options(work.options).samples(n)
    return {"samples": float(n), "flops": float(task.flops * n + 6 * tree.count(work.extras) * trained)}


@client_work("auxiliary", _cost, answers="extras")
def _auxiliary(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Train the head in ``extras`` on the frozen features of ``params``. Replies the head.

    Labels: wrong ones; if the request is for classes, the class itself, which is what every sample carries.
    """
    task, head = client.task, module.get_submodule(client.task.head)
    own = dict(head.named_parameters(prefix=task.head))
    if own.keys() != work.extras.keys():
        raise MethodError(f"fedau: the last layer is {sorted(own)}, but was sent as {sorted(work.extras)}")
    request = client.requests.get(work.request)
    whole_class = request is not None and request.scopes == {"class"}
    labels = data.targets if whole_class else wrong_labels(data, task.classes, seed=int(work.options["labels"]))
    features = penultimate(module, task.head, data.inputs)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(work.extras[name])
    local = Local.from_options(work.options)
    loss = train(head, task.loss, Data(features, labels, data.ids), local, seed=seed)
    return Reply(0, client.name, tree.clone(own), metrics={"loss": finite(loss), "whole_class": float(whole_class)})


@dataclass(frozen=True)
class FedAU(Method):
    """FedAU after the fact, as Lethe's tables must have used it.

    The holders of the data to forget train a copy of the last layer on wrong labels, on features of the frozen model:
    one wrong label for each sample, drawn once. The server blends the copy into the last layer; for a class it
    subtracts instead. The blend alone costs much utility; FedAvg on the retained data brings it back.

    Defaults: the authors' α and c; the rest from a small search on the conformance suite's problem, one seed, for
    little left of the data to forget within 5 points of Origin's utility. Continued training was not looked at.

    Attributes:
        alpha: α of the blend, at client and sample level.
        factor: c of the subtraction, at class level.
        auxiliary: how the copy is trained in a round.
        rounds: of the copy's training; several holders are averaged after each.
        restore_rounds: of FedAvg after the blend.
        label_seed: of the wrong labels; None: the experiment's.
        local: local recipe of FedAvg; None: the experiment's.
    """

    name: ClassVar[str] = "fedau"
    mixes: ClassVar[bool] = False  # a class is subtracted, all else is blended in

    alpha: float = 0.9
    factor: float = 0.5
    auxiliary: Local = Local(lr=0.1, epochs=10)
    rounds: int = 1
    restore_rounds: int = 4
    label_seed: int | None = None
    local: Local | None = None

    def __post_init__(self) -> None:
        _check(self.name, self.alpha, self.restore_rounds)
        if self.factor <= 0 or self.rounds < 1:
            raise ConfigError("fedau: factor must be positive and rounds at least 1")

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        return self.filled({"local": local, "label_seed": seed})

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        def auxiliary(federation: Federation, state: State, t: int) -> State:
            return self.train_copy(federation, state, t, task.head)

        restore = [Phase("restore", fedavg(self.recipe), self.restore_rounds)] if self.restore_rounds else []
        return [Phase("auxiliary", auxiliary, self.rounds), Phase("blend", self.blend), *restore]

    def train_copy(self, federation: Federation, state: State, t: int, head: str) -> State:
        """One round of A, from W in the first; the model stays as it is."""
        begin = head_of(state.params, head) if t == 0 else _under(HEAD, state.scratch)
        work = auxiliary_work(state, "forget", self.auxiliary, start=begin, labels=self.label_seed or 0)
        mean = average(federation.run(work))
        auxiliary = {HEAD + name: tensor for name, tensor in mean.tensors.items()}
        whole_class = torch.tensor(mean.metrics.get("whole_class", 0.0))
        return replace(state, scratch={**state.scratch, **auxiliary, WHOLE_CLASS: whole_class})

    def blend(self, federation: Federation, state: State, t: int) -> State:
        """The one linear operation, at the server."""
        auxiliary = _under(HEAD, state.scratch)
        if bool(state.scratch[WHOLE_CLASS]):
            return replace(state, params=subtracted(state.params, auxiliary, self.factor))
        drift = {name: tensor - state.params[name] for name, tensor in auxiliary.items()}
        return replace(state, params=blended(state.params, drift, self.alpha))


@dataclass(frozen=True)
class FedAUInTraining(Method):
    """FedAU as its paper has it: the auxiliary heads are trained while the model learns, before anybody asks.

    In the paper the auxiliary loss also trains the extractor. Here it may not: what a method records changes no model.
    In each round every client trains a copy of the last layer on wrong labels, on the frozen features of the model that
    the round began with. Nobody knows yet who will ask, so all its samples count as data to forget, and only client
    level is served. Clients keep nothing: each copy starts at the round's W, and the server adds up how far it went,
    D ← γD + (A − W), which is the paper's A ← (1−γ)W + γA to first order.

    At the request the drift of the client that leaves is blended in, and all drifts are dropped: each of them was
    measured from layers that had learnt from everybody.

    Attributes:
        alpha: α of the blend.
        carry: γ, what is left of a drift after a round.
        auxiliary: how the copies are trained in a round.
        restore_rounds: of FedAvg after the blend.
        label_seed: of the wrong labels; None: the experiment's.
        local: local recipe of FedAvg; None: the experiment's.
    """

    name: ClassVar[str] = "fedau-in-training"
    scopes: ClassVar[frozenset[Scope]] = frozenset({"client"})
    needs: ClassVar[frozenset[str]] = frozenset({"history", "per-client"})
    repeats: ClassVar[bool] = False  # all drifts go at the first request

    alpha: float = 0.9
    carry: float = 0.5
    auxiliary: Local = Local(lr=0.1)
    restore_rounds: int = 4
    label_seed: int | None = None
    local: Local | None = None

    def __post_init__(self) -> None:
        _check(self.name, self.alpha, self.restore_rounds)
        if not 0 <= self.carry < 1:
            raise ConfigError(f"{self.name}.carry: must lie in [0, 1), got {self.carry}")

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        return self.filled({"local": local, "label_seed": seed})

    def training(self, step: Step) -> Step:
        """The round itself goes first, and so gets the seed that it has without recording."""

        def recorded(federation: Federation, state: State, t: int) -> State:
            after = step(federation, state, t)
            begin = head_of(state.params, list(state.params)[-1].rpartition(".")[0])  # clients check that it is
            work = auxiliary_work(state, "all", self.auxiliary, start=begin, labels=self.label_seed or 0)
            drifts = {}
            for reply in separate(federation.run(work), 1)[0]:
                for name, tensor in reply.tensors.items():
                    key = f"{DRIFT}{reply.client}/{name}"
                    before = state.memory.get(key, torch.zeros_like(tensor))
                    drifts[key] = self.carry * before + (tensor - begin[name])
            return replace(after, memory=after.memory | drifts)

        return recorded

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        restore = [Phase("restore", fedavg(self.recipe), self.restore_rounds)] if self.restore_rounds else []
        return [Phase("blend", self.blend), *restore]

    def blend(self, federation: Federation, state: State, t: int) -> State:
        """Ask who holds the data to forget, then do the linear operation at the server."""
        look = Work("evaluate", state.params, state.buffers, "forget", options={"limit": 1})
        (holders,) = separate(federation.run(look), 1)
        found = [_under(f"{DRIFT}{holder.client}/", state.memory) for holder in holders]
        if not all(found):
            raise MethodError(
                "fedau-in-training: no head was trained for who is to be forgotten; train the model with this method "
                "listed, or use fedau, which trains the head after the request"
            )
        drift = {name: torch.stack([one[name] for one in found]).mean(0) for name in found[0]}
        kept = {name: tensor for name, tensor in state.memory.items() if not name.startswith(DRIFT)}
        return replace(state, params=blended(state.params, drift, self.alpha), memory=kept)


def _check(name: str, alpha: float, restore_rounds: int) -> None:
    if not 0 < alpha <= 1:
        raise ConfigError(f"{name}.alpha: must lie in (0, 1], got {alpha}")
    if restore_rounds < 0:
        raise ConfigError(f"{name}.restore_rounds: must not be negative, got {restore_rounds}")


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> Params:
    """The entries below ``prefix``, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
