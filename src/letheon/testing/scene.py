"""The small federations in which methods are checked, and the federations that watch or disturb them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise

import torch

from letheon import config, tree
from letheon.client import Client
from letheon.data import Data
from letheon.methods.base import Method, fedavg
from letheon.middleware import Excluding, Quorum
from letheon.phase import Journal, Observer, Phase, State, Step, drive
from letheon.request import Part, Request, Scope
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.base import Task
from letheon.tasks.vision import Digits
from letheon.training import Local
from letheon.work import Federation, Reply, Work

Wrap = Callable[[Federation], Federation]

FORGOTTEN = "north"
LATER = "south"
"""The client of a second request."""
RETAINED = "west"
SIZES = {"east": 40, FORGOTTEN: 30, LATER: 50, RETAINED: 36}
"""Samples of each client. No size is a multiple of another, so that weights matter."""
FOREIGN = "conformance/kept"
"""A memory that belongs to someone else and must come through."""


def demand(condition: object, message: str) -> None:
    """Raise ``AssertionError`` unless the condition holds. A statement would vanish under ``python -O``."""
    if not condition:
        raise AssertionError(message)


def same(inner: Federation) -> Federation:
    """No wrapping."""
    return inner


def digest(state: State) -> str:
    """Of everything in a state."""
    parts = {"params": state.params, "buffers": state.buffers, "memory": state.memory, "scratch": state.scratch}
    return tree.digest({f"{part}/{name}": t for part, tensors in parts.items() for name, t in tensors.items()})


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """An undisturbed run of a method, to compare others with.

    Attributes:
        start: what it began with.
        end: what it came to.
        calls: the works that it asked for, call by call, and the replies that it got.
        phases: the names of its phases.
    """

    start: State
    end: State
    calls: Sequence[tuple[tuple[Work, ...], Sequence[Reply]]]
    phases: Sequence[str]

    def asked(self) -> dict[Part, list[int]]:
        """For each part, the numbers of the calls that asked for it."""
        asked: dict[Part, list[int]] = {}
        for number, (works, _) in enumerate(self.calls):
            for part in {work.part for work in works}:
                asked.setdefault(part, []).append(number)
        return asked


@dataclass(frozen=True, eq=False)
class Scene:
    """A federation with a request against it, and how it came to its model.

    Attributes:
        task: model and loss.
        clients: data by name.
        request: admitted at every client.
        local: the experiment's recipe.
        train_rounds: FedAvg rounds behind Origin.
        seed: of everything.
        before: the same federation with the request that was served first; a method starts from what it left there.
    """

    task: Task
    clients: Mapping[str, Data]
    request: Request
    local: Local
    train_rounds: int
    seed: int
    before: Scene | None = None
    _references: dict[tuple[type[Method], str], Reference] = field(default_factory=dict, repr=False)

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests admitted, in the order in which they are served."""
        return (*(self.before.requests if self.before else ()), self.request)

    def configured(self, method: Method) -> Method:
        """The method with what it leaves open filled in, as ``Experiment`` does it."""
        return method.configured(replace(self.local, first_round=self.train_rounds), self.train_rounds, self.seed)

    def runtime(self, *, workers: int = 1, backwards: bool = False, admitted: bool = True) -> InProcess:
        """A new runtime; its clients have nothing in common with those of another."""
        names = sorted(self.clients, reverse=backwards)
        clients = [Client(name, self.clients[name], self.task) for name in names]
        for client in clients if admitted else ():
            for request in self.requests:
                client.admit(request)
        return InProcess(clients, workers=workers)

    def guarded(self, inner: Federation) -> Federation:
        """The stack in which the pipeline runs methods, without the meter."""
        return Excluding(Quorum(inner), request=self.request.id)

    def trained(self, hook: Callable[[Step], Step], *, inside: Wrap = same) -> State:
        """FedAvg on all data from fresh weights, with a method's hook into the rounds."""
        with self.runtime(admitted=False) as runtime:
            phase = Phase("train", hook(fedavg(self.local, "all")), self.train_rounds)
            return drive([phase], Quorum(inside(runtime)), self.task.init(self.seed), seed=self.seed)

    def trained_by(self, method: Method, *, inside: Wrap = same) -> State:
        """The model of a method that has a training run of its own."""
        with self.runtime(admitted=False) as runtime:
            phases = method.origin(self.task, self.local, self.train_rounds)
            return drive(phases, Quorum(inside(runtime)), self.task.init(self.seed), seed=self.seed)

    @cached_property
    def origin(self) -> State:
        """The model at the request, if no method recorded anything on the way."""
        return self.trained(lambda step: step)

    def start(self, method: Method, *, inside: Wrap = same) -> State:
        """What the method begins with: a copy of its own, with a foreign memory; ``inside`` wraps its own training."""
        if self.before:
            left = self.before.reference(method).end
            return State(tree.clone(left.params), tree.clone(left.buffers), tree.clone(left.memory))
        if type(method).origin is not Method.origin:
            state = self.trained_by(self.configured(method), inside=inside)
        elif type(method).training is not Method.training:
            state = self.trained(self.configured(method).training, inside=inside)
        else:
            state = self.origin
        memory = tree.clone(state.memory) | {FOREIGN: torch.arange(4.0)}
        return State(tree.clone(state.params), tree.clone(state.buffers), memory)

    def drive(
        self,
        method: Method,
        federation: Federation,
        *,
        start: State | None = None,
        journal: Journal | None = None,
        observers: Sequence[Observer] = (),
    ) -> State:
        """Unlearn."""
        begin = start or self.start(method)
        phases = self.configured(method).phases(begin, self.task)
        seed = self.seed + len(self.requests)
        return drive(phases, federation, begin, seed=seed, journal=journal, observers=observers)

    def run(self, method: Method, *, inside: Wrap = same) -> State:
        """Unlearn with the usual stack; ``inside`` wraps the runtime below it."""
        with self.runtime() as runtime:
            return self.drive(method, self.guarded(inside(runtime)))

    def reference(self, method: Method) -> Reference:
        """The undisturbed run of a method; done once for equal settings."""
        key = type(method), config.digest(method)
        if key not in self._references:
            start, phases = self.start(method), list[str]()
            with self.runtime() as runtime:
                tap = Tap(self.guarded(runtime))
                observers = [lambda phase, done, state: phases.append(phase)]
                end = self.drive(method, tap, start=start, observers=observers)
            self._references[key] = Reference(start, end, tap.calls, phases)
        return self._references[key]


@cache
def small(scope: Scope, *, norm: bool = False) -> Scene:
    """Four clients with 156 digits, and one thing to forget at ``scope``; ``norm``: the model has buffers.

    At client level ``FORGOTTEN`` goes. At class and sample level several clients hold some of what goes, but
    ``RETAINED`` always has something left, and each holder has enough for BatchNorm.
    """
    task = Digits(norm=norm)
    _ = task.layers, task.flops, task.draws  # found out once: what that takes is not the doing of a method
    data = task.train()
    bounds = list(accumulate(SIZES.values(), initial=0))
    clients = {name: data.take(torch.arange(*span)) for name, span in zip(SIZES, pairwise(bounds), strict=True)}
    ids = torch.cat([clients[FORGOTTEN].ids[:8], clients["south"].ids[:5]])
    request = {
        "client": Request("client", client=FORGOTTEN),
        "class": Request("class", label=3),
        "samples": Request("samples", samples=tuple(ids.tolist())),
    }[scope]
    request.check(clients)
    return Scene(task, clients, request, Local(lr=0.05, batch_size=16), train_rounds=2, seed=0)


@cache
def second(scope: Scope) -> Scene:
    """``small(scope, norm=True)`` with another request of the scope after the first; at sample level they overlap."""
    first = small(scope, norm=True)
    return replace(first, request=_another(scope), before=first, _references={})


@cache
def together(scope: Scope, other: Scope, *, backwards: bool = False) -> Scene:
    """``small(scope, norm=True)`` with another request served in the same pass; ``backwards``: named in reverse."""
    first = small(scope, norm=True)
    requests = [first.request, _another(other)]
    one, two = reversed(requests) if backwards else requests
    request = replace(one, also=(two,))
    request.check(first.clients)
    return replace(first, request=request, _references={})


def _another(scope: Scope) -> Request:
    clients = small(scope, norm=True).clients
    ids = torch.cat([clients[FORGOTTEN].ids[4:12], clients["east"].ids[:6]])
    request = {
        "client": Request("client", client=LATER),
        "class": Request("class", label=7),
        "samples": Request("samples", samples=tuple(ids.tolist())),
    }[scope]
    request.check(clients)
    return request


class Tap:
    """Notes what goes through: one entry for each call, with its works and the replies to them."""

    def __init__(self, inner: Federation) -> None:
        self._inner = inner
        self.calls: list[tuple[tuple[Work, ...], list[Reply]]] = []

    def run(self, *works: Work) -> Iterator[Reply]:
        replies: list[Reply] = []
        self.calls.append((works, replies))
        for reply in self._inner.run(*works):
            replies.append(reply)
            yield reply


class Altered:
    """Changes replies on their way; ``change`` gets the number of the call, the work and the reply, None drops it."""

    def __init__(self, inner: Federation, change: Callable[[int, Work, Reply], Reply | None]) -> None:
        self._inner = inner
        self._change = change
        self._calls = 0

    def run(self, *works: Work) -> Iterator[Reply]:
        call, self._calls = self._calls, self._calls + 1
        for reply in self._inner.run(*works):
            changed = self._change(call, works[reply.work], reply)
            if changed is not None:
                yield changed


class Backwards:
    """Hands the replies over in reverse order."""

    def __init__(self, inner: Federation) -> None:
        self._inner = inner

    def run(self, *works: Work) -> Iterator[Reply]:
        return reversed(list(self._inner.run(*works)))


class Watch:
    """An observer that notes every state with its digest, to see later whether someone changed it in place."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, State, str]] = []

    def note(self, place: str, state: State) -> None:
        """Note a state."""
        self._seen.append((place, state, digest(state)))

    def observe(self, phase: str, done: int, state: State) -> None:
        """Note the state after a round."""
        self.note(f"the state after round {done} of {phase!r}", state)

    def demand_untouched(self) -> None:
        """Raise ``AssertionError`` if a state is no longer what it was."""
        for place, state, before in self._seen:
            demand(digest(state) == before, f"{place} was changed in place; a step returns a new state")
