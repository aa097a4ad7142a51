"""Methods that are wrong on purpose, one fault each: a check earns its place by catching one of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from letheon import tree
from letheon.errors import MethodError, RoundError
from letheon.methods.base import Method, fedavg, train_work
from letheon.phase import Phase, State, Step
from letheon.request import Scope
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.work import Federation, average


@dataclass(frozen=True)
class Broken(Method):
    """Three rounds of ``step``. Each leaf has one fault in it."""

    local: Local | None = None

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("step", self.step, 3)]

    def step(self, federation: Federation, state: State, t: int) -> State:
        return fedavg(self.recipe)(federation, state, t)


@dataclass(frozen=True)
class NoOp(Broken):
    """Says that it unlearns."""

    name: ClassVar[str] = "no-op"

    def step(self, federation: Federation, state: State, t: int) -> State:
        return state


@dataclass(frozen=True)
class Collapse(Broken):
    """Forgets everything: the answer is always 5, which is not what the data to forget carry."""

    name: ClassVar[str] = "collapse"

    def step(self, federation: Federation, state: State, t: int) -> State:
        params = tree.zeros_like(state.params)
        params["head.bias"][5] = 1.0
        return replace(state, params=params)


@dataclass(frozen=True)
class Explode(Broken):
    """Blows the weights up."""

    name: ClassVar[str] = "explode"

    def step(self, federation: Federation, state: State, t: int) -> State:
        return replace(state, params=tree.scale(state.params, 1e3))


@dataclass(frozen=True)
class ByArrival(Broken):
    """The sooner a reply comes, the more it counts."""

    name: ClassVar[str] = "by-arrival"

    def step(self, federation: Federation, state: State, t: int) -> State:
        replies = federation.run(train_work(state, "retain", self.recipe, t))
        mean = average(replace(reply, weight=1.0 / (i + 1)) for i, reply in enumerate(replies))
        return replace(state.moved(mean.tensors), buffers=mean.buffers)


@dataclass(frozen=True)
class ByThreads(Broken):
    """The step depends on how many threads there are."""

    name: ClassVar[str] = "by-threads"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        return replace(moved, params=tree.scale(moved.params, 1.0 - 1e-3 * threading.active_count()))


@dataclass(frozen=True)
class NamesClient(Broken):
    """Keeps a tensor under the name of the client that left."""

    name: ClassVar[str] = "names-client"
    needs: ClassVar[frozenset[str]] = frozenset({"history"})

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        for reply in federation.run(train_work(state, "forget", self.recipe, t)):
            norm = torch.tensor(tree.norm(reply.tensors))
            moved = replace(moved, memory=moved.memory | {f"norm/{reply.client}": norm})
        return moved


@dataclass(frozen=True)
class KeepsUpdate(Broken):
    """Keeps what was learnt from the data to forget, scaled and under an innocent name."""

    name: ClassVar[str] = "keeps-update"
    needs: ClassVar[frozenset[str]] = frozenset({"history"})

    def step(self, federation: Federation, state: State, t: int) -> State:
        forget = average(federation.run(train_work(state, "forget", self.recipe, t)))
        moved = super().step(federation, state, t)
        return replace(moved, memory=moved.memory | {"direction": -0.5 * forget.tensors["head.weight"]})


@dataclass(frozen=True)
class KeepsScratch(Broken):
    """Carries what should be dropped at the end in a memory that nobody declared."""

    name: ClassVar[str] = "keeps-scratch"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        return replace(moved, memory=moved.memory | {"adapter.up": torch.ones(3)})


@dataclass(frozen=True)
class DropsMemory(Broken):
    """Builds its state anew and loses what other methods keep there."""

    name: ClassVar[str] = "drops-memory"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        return State(moved.params, moved.buffers)


@dataclass(frozen=True)
class MutatesStart(Broken):
    """Works on the tensors that it was given."""

    name: ClassVar[str] = "mutates-start"

    def step(self, federation: Federation, state: State, t: int) -> State:
        mean = average(federation.run(train_work(state, "retain", self.recipe, t)))
        for name, tensor in state.params.items():
            tensor.add_(mean.tensors[name])
        return replace(state, buffers=mean.buffers)


@dataclass(frozen=True)
class MutatesLater(Broken):
    """Leaves the start alone, but not the state of the round before."""

    name: ClassVar[str] = "mutates-later"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        if t:
            state.params["head.bias"].zero_()
        return moved


@dataclass(frozen=True)
class RectifiesBuffers(Broken):
    """Treats running statistics as weights, and negates them with the rest."""

    name: ClassVar[str] = "rectifies-buffers"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        return replace(moved, buffers={n: -b if n.endswith("running_var") else b for n, b in moved.buffers.items()})


@dataclass(frozen=True)
class ForgetBuffers(Broken):
    """Takes the running statistics of the data to forget along."""

    name: ClassVar[str] = "forget-buffers"

    def step(self, federation: Federation, state: State, t: int) -> State:
        forget = average(federation.run(train_work(state, "forget", self.recipe, t)))
        return replace(super().step(federation, state, t), buffers=forget.buffers)


@dataclass(frozen=True)
class FloatCounters(Broken):
    """Averages batch counters as if they were numbers like any other."""

    name: ClassVar[str] = "float-counters"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        return replace(moved, buffers={n: b.float() for n, b in moved.buffers.items()})


@dataclass(frozen=True)
class TrainsOnAll(Broken):
    """Trains on what it should forget."""

    name: ClassVar[str] = "trains-on-all"

    def step(self, federation: Federation, state: State, t: int) -> State:
        return fedavg(self.recipe, "all")(federation, state, t)


@dataclass(frozen=True)
class HiddenDraw(Broken):
    """Draws from torch's global generator."""

    name: ClassVar[str] = "hidden-draw"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        return moved.moved({name: 1e-3 * torch.rand_like(p) for name, p in moved.params.items()})


@dataclass(frozen=True)
class SeedsGlobally(Broken):
    """Reproducible, at the price of everybody else's generator."""

    name: ClassVar[str] = "seeds-globally"

    def step(self, federation: Federation, state: State, t: int) -> State:
        torch.manual_seed(t)
        moved = super().step(federation, state, t)
        return moved.moved({name: 1e-3 * torch.rand_like(p) for name, p in moved.params.items()})


@dataclass(frozen=True)
class SkipsEmpty(Broken):
    """Calls a round without anybody a round."""

    name: ClassVar[str] = "skips-empty"

    def step(self, federation: Federation, state: State, t: int) -> State:
        try:
            replies = list(federation.run(train_work(state, "retain", self.recipe, t)))
        except RoundError:
            return state
        return state.moved(average(replies).tensors) if replies else state


@dataclass(frozen=True)
class SwallowsErrors(Broken):
    """Goes on with the retain stream alone when the forget stream fails."""

    name: ClassVar[str] = "swallows-errors"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        try:
            forget = average(federation.run(train_work(state, "forget", self.recipe, t)))
        except RoundError:
            return moved
        return moved.moved(forget.tensors, -1.0)


@dataclass(frozen=True)
class NeedsEveryone(Broken):
    """Knows by name who has to answer."""

    name: ClassVar[str] = "needs-everyone"

    def step(self, federation: Federation, state: State, t: int) -> State:
        replies = {reply.client: reply for reply in federation.run(train_work(state, "retain", self.recipe, t))}
        return state.moved(average(replies[name] for name in ("east", "south", "west")).tensors)


@dataclass(frozen=True)
class AttributeMomentum(Broken):
    """Keeps its velocity where no journal finds it."""

    name: ClassVar[str] = "attribute-momentum"
    velocity: dict[str, Tensor] = field(default_factory=dict, init=False, compare=False)

    def step(self, federation: Federation, state: State, t: int) -> State:
        mean = average(federation.run(train_work(state, "retain", self.recipe, t)))
        for name, update in mean.tensors.items():
            self.velocity[name] = update + 0.5 * self.velocity.get(name, torch.zeros_like(update))
        return replace(state.moved(self.velocity), buffers=mean.buffers)


@dataclass
class Mutable(Method):
    """Its settings can change under the run that it names."""

    name: ClassVar[str] = "mutable"
    local: Local | None = None

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("step", fedavg(self.recipe), 3)]


@dataclass(frozen=True)
class LosesSettings(Broken):
    """Does not come back from its own configuration."""

    name: ClassVar[str] = "loses-settings"
    rate: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", torch.rand(()).item())


@dataclass(frozen=True)
class Widens(Broken):
    """Hands back a model in another precision."""

    name: ClassVar[str] = "widens"

    def step(self, federation: Federation, state: State, t: int) -> State:
        moved = super().step(federation, state, t)
        return replace(moved, params={n: p.double() for n, p in moved.params.items()}) if t == 2 else moved


@dataclass(frozen=True)
class TiltsTraining(Broken):
    """Its hook does more than record."""

    name: ClassVar[str] = "tilts-training"

    def training(self, step: Step) -> Step:
        def tilted(federation: Federation, state: State, t: int) -> State:
            return replace(step(federation, state, t), params=tree.scale(state.params, 0.99))

        return tilted


@dataclass(frozen=True)
class NeedsMovement(Broken):
    """Cannot be priced beforehand: it fails where nobody trains."""

    name: ClassVar[str] = "needs-movement"

    def step(self, federation: Federation, state: State, t: int) -> State:
        mean = average(federation.run(train_work(state, "retain", self.recipe, t)))
        if tree.norm(mean.tensors) == 0.0:
            raise MethodError("needs-movement: nobody moved")
        return replace(state.moved(mean.tensors), buffers=mean.buffers)


@dataclass(frozen=True)
class CountsHeads(Broken):
    """Each client weighs the same, which takes single replies, and it does not say so."""

    name: ClassVar[str] = "counts-heads"

    def step(self, federation: Federation, state: State, t: int) -> State:
        work = train_work(state, "retain", self.recipe, t)
        mean = average(replace(reply, weight=float(reply.weight > 0)) for reply in federation.run(work))
        return replace(state.moved(mean.tensors), buffers=mean.buffers)


@dataclass(frozen=True)
class Greedy(Broken):
    """Says that it needs single replies, and averages them."""

    name: ClassVar[str] = "greedy"
    needs: ClassVar[frozenset[str]] = frozenset({"per-client"})


@dataclass(frozen=True)
class ClientOnly(Broken):
    """Not broken: serves one scope, and says so."""

    name: ClassVar[str] = "client-only"
    scopes: ClassVar[frozenset[Scope]] = frozenset({"client"})


@dataclass(frozen=True)
class FalselyModest(Broken):
    """Declares a failure that it does not have."""

    name: ClassVar[str] = "falsely-modest"
    known_failures: ClassVar[Mapping[str, str]] = {"same-twice": "it draws"}


@dataclass(frozen=True)
class Misspelt(Broken):
    """Declares the failure of a check that does not exist."""

    name: ClassVar[str] = "misspelt"
    known_failures: ClassVar[Mapping[str, str]] = {"forget": "too little"}


@dataclass(frozen=True)
class Candid(NoOp):
    """Declares what it cannot do."""

    name: ClassVar[str] = "candid"
    known_failures: ClassVar[Mapping[str, str]] = {"forgets": "it does nothing"}


@dataclass(frozen=True)
class Crashes(Broken):
    """Declares a failure, but then it is another one."""

    name: ClassVar[str] = "crashes"
    known_failures: ClassVar[Mapping[str, str]] = {"same-twice": "it draws"}

    def step(self, federation: Federation, state: State, t: int) -> State:
        raise ZeroDivisionError("t")
