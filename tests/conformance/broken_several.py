"""Methods that are wrong on purpose with several requests, one after another or together; sound with one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from broken_methods import Broken, ByArrival
from torch import Tensor, nn

from letheon import tree
from letheon.client import KINDS, Client, client_work
from letheon.data import Data
from letheon.methods.base import train_work
from letheon.middleware import Recording
from letheon.phase import State, Step
from letheon.work import Federation, Reply, Work, average


@client_work("label-only", KINDS["train"].cost)
def _label_only(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Training on the class that the request names."""
    label = client.requests[work.request].label
    own = data if label is None else client.data.take(client.data.targets == label)
    return KINDS["train"].do(client, work, own if len(own) > 1 else data, module, seed)


@dataclass(frozen=True)
class FirstMember(Broken):
    """Its clients look at the request themselves, and see the first of those served together."""

    name: ClassVar[str] = "first-member"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        forget = average(federation.run(replace(train_work(state, "forget", self.recipe, t), kind="label-only")))
        return moved.moved(forget.tensors, -0.1)


@dataclass(frozen=True)
class FirstHolder(Broken):
    """Takes it that one client holds all that is to be forgotten."""

    name: ClassVar[str] = "first-holder"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        holder, *_ = federation.run(train_work(state, "forget", self.recipe, t))
        return moved.moved(holder.tensors, -0.1)


@dataclass(frozen=True)
class ErasesOne(Broken):
    """Keeps a number on each client while the model learns, and erases that of one client at the request."""

    name: ClassVar[str] = "erases-one"
    needs: ClassVar[frozenset[str]] = frozenset({"history"})

    def training(self, step: Step) -> Step:
        def recorded(federation: Federation, state: State, t: int) -> State:
            recording = Recording(federation, lambda reply: {f"erases-one/{reply.client}": torch.ones(1)})
            after = step(recording, state, t)
            return replace(after, memory=after.memory | recording.notes)

        return recorded

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        holder, *_ = federation.run(train_work(state, "forget", self.recipe, t))
        kept = {name: tensor for name, tensor in moved.memory.items() if name != f"erases-one/{holder.client}"}
        return replace(moved, memory=kept)


@dataclass(frozen=True)
class BrokenAgain(Broken):
    """Sound until it is asked a second time: what it keeps of the first request changes how it works."""

    needs: ClassVar[frozenset[str]] = frozenset({"history"})

    def step(self, federation: Federation, state: State, t: int) -> State:
        served = "served" in state.memory
        moved = self.again(federation, state, t) if served else super().step(federation, state, t)
        return replace(moved, memory=moved.memory | {"served": torch.ones(1)}) if t == 2 else moved

    def again(self, federation: Federation, state: State, t: int) -> State:
        raise NotImplementedError


@client_work("own-retain", KINDS["train"].cost)
def _own_retain(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Training on what the request at hand leaves, whatever was asked before."""
    left = client.requests[work.request].select(client.name, client.data, "retain")
    return KINDS["train"].do(client, work, left, module, seed)


@dataclass(frozen=True)
class ResolvesItself(Broken):
    """Its clients select what is retained themselves, and only know of the request at hand."""

    name: ClassVar[str] = "resolves-itself"

    def step(self, federation: Federation, state: State, t: int) -> State:
        work = replace(train_work(state, "retain", self.recipe, t), kind="own-retain")
        mean = average(federation.run(work))
        return replace(state.moved(mean.tensors), buffers=mean.buffers)


@dataclass(frozen=True)
class ByArrivalAgain(BrokenAgain):
    """Orders by arrival once it has served a request."""

    name: ClassVar[str] = "by-arrival-again"

    def again(self, federation: Federation, state: State, t: int) -> State:
        return ByArrival(self.local).step(federation, state, t)


@dataclass(frozen=True)
class AttributeAgain(BrokenAgain):
    """Gathers momentum where no journal finds it, once it has served a request."""

    name: ClassVar[str] = "attribute-again"
    velocity: dict[str, Tensor] = field(default_factory=dict, init=False, compare=False)

    def again(self, federation: Federation, state: State, t: int) -> State:
        mean = average(federation.run(train_work(state, "retain", self.recipe, t)))
        for name, update in mean.tensors.items():
            self.velocity[name] = update + 0.5 * self.velocity.get(name, torch.zeros_like(update))
        return replace(state.moved(self.velocity), buffers=mean.buffers)


@dataclass(frozen=True)
class NamesRetained(Broken):
    """Keeps a number on each retained client, and forgets to drop it when that client goes, too."""

    name: ClassVar[str] = "names-retained"
    needs: ClassVar[frozenset[str]] = frozenset({"history"})

    def step(self, federation: Federation, state: State, t: int) -> State:
        replies = list(federation.run(train_work(state, "retain", self.recipe, t)))
        norms = {f"norm/{reply.client}": torch.tensor(tree.norm(reply.tensors)) for reply in replies}
        mean = average(replies)
        return replace(state.moved(mean.tensors), buffers=mean.buffers, memory=state.memory | norms)


@dataclass(frozen=True)
class KeepsRetained(Broken):
    """Keeps a retained client's update, without a name, and has it still when that client goes, too."""

    name: ClassVar[str] = "keeps-retained"
    needs: ClassVar[frozenset[str]] = frozenset({"history"})

    def step(self, federation: Federation, state: State, t: int) -> State:
        replies = list(federation.run(train_work(state, "retain", self.recipe, t)))
        longest = max(replies, key=lambda reply: reply.weight).tensors["head.weight"]
        mean = average(replies)
        kept = {"longest": longest} | state.memory
        return replace(state.moved(mean.tensors), buffers=mean.buffers, memory=kept)


@dataclass(frozen=True)
class Once(Broken):
    """Not broken: serves one request, and says so."""

    name: ClassVar[str] = "once"
    repeats: ClassVar[bool] = False


@dataclass(frozen=True)
class MixesNone(Broken):
    """Not broken: serves requests of one scope together, and says so."""

    name: ClassVar[str] = "mixes-none"
    mixes: ClassVar[bool] = False
