"""Checks without disturbance: what a method may ask, change and keep."""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from letheon import config, tree
from letheon.client import KINDS
from letheon.errors import Excluded, MethodError
from letheon.experiment import Experiment
from letheon.methods.base import ALL_SCOPES, Method
from letheon.middleware import DryRun
from letheon.phase import State
from letheon.request import Part, Scope
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.testing.faults import rebuilt
from letheon.testing.scene import FOREIGN, Altered, Backwards, Scene, Tap, Watch, demand, digest, small
from letheon.tree import Params
from letheon.work import Reply, Work


def config_round_trips(method: Method, scope: Scope) -> None:
    """The method is a frozen dataclass that goes through TOML and JSON unchanged."""
    demand(dataclasses.is_dataclass(method), "is no dataclass; its fields would be its configuration")
    demand(method.name, "has no name; give it one as a ClassVar")
    known = ", ".join(sorted(ALL_SCOPES))
    demand(method.scopes and method.scopes <= ALL_SCOPES, f"must claim scopes out of {known}, not {method.scopes}")
    try:
        setattr(method, "local", method.local)  # noqa: B010 (mypy would see the frozen field)
    except dataclasses.FrozenInstanceError:
        pass
    else:
        raise AssertionError("is not frozen; decorate it with @dataclass(frozen=True)")
    table = json.loads(json.dumps(config.plain(method)))
    again = rebuilt(method, table)
    demand(again == method, f"does not come back from its own configuration {table}: {again}")
    demand(config.digest(again) == config.digest(method), "equal settings have different digests")
    filled = small(scope).configured(method)
    demand(type(filled) is type(method) and filled.local is not None, "configured() must fill in the field local")


def unclaimed_scopes_are_refused(method: Method, scope: Scope) -> None:
    """An experiment takes the method at the scopes that it claims, and refuses it at others before any work.

    It takes it for a second request if the method says that it can be asked again, and refuses it if not; likewise for
    requests of two scopes that are served together.
    """
    for asked in sorted(ALL_SCOPES):
        claimed = asked in method.scopes
        try:
            Experiment(Digits(), method, request=Target(asked))
        except MethodError as error:
            demand(not claimed, f"claims scope {asked!r}, yet the experiment refuses it: {error}")
        else:
            demand(claimed, f"does not claim scope {asked!r}, yet an experiment takes it")
    elsewhere = Trigger(corner="top-left")
    again = _refusal(method, Target(scope), then=(Target(scope, trigger=elsewhere),))
    demand(method.repeats or again, "says that it serves one request only, yet an experiment takes a second one")
    demand(not (method.repeats and again), f"can be asked again, it says, yet the experiment refuses: {again}")
    for other in sorted(method.scopes - {scope}):
        mixed = _refusal(method, Target(scope, also=(Target(other, trigger=elsewhere),)))
        demand(method.mixes or mixed, f"says that it mixes no scopes, yet an experiment takes {scope} with {other}")
        demand(not (method.mixes and mixed), f"mixes scopes, it says, yet the experiment refuses: {mixed}")


def _refusal(method: Method, request: Target, *, then: tuple[Target, ...] = ()) -> str:
    """Why an experiment does not take the method; empty if it does."""
    try:
        Experiment(Digits(), method, request=request, then=then)
    except MethodError as error:
        return str(error)
    return ""


def same_twice(method: Method, scope: Scope) -> None:
    """Two runs give the same bits, whatever the global generators are at, and leave those alone."""
    scene, digests = small(scope, norm=True), []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            before = _generators()
            digests.append(digest(scene.run(method)))
            quiet = _generators() == before
        demand(quiet, "moves a global random generator; draw from a torch.Generator seeded by seed_of(…)")
    demand(digests[0] == digests[1], "two runs from the same start with the same seed differ")


def _generators() -> bytes:
    """The state of all global random generators."""
    return pickle.dumps((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()))


def client_order_does_not_matter(method: Method, scope: Scope) -> None:
    """Clients listed in reverse: the same bits. Replies handed over in reverse: the same up to rounding."""
    demand_order_does_not_matter(method, small(scope, norm=True))


def demand_order_does_not_matter(method: Method, scene: Scene) -> None:
    """The same, in a given scene."""
    expected = scene.reference(method).end
    with scene.runtime(backwards=True) as runtime:
        listed = scene.drive(method, scene.guarded(runtime))
    demand(digest(listed) == digest(expected), "the result depends on the order in which clients are listed")
    arrived = scene.run(method, inside=Backwards)
    for name, tensor in (expected.params | expected.buffers).items():
        off = _distance((arrived.params | arrived.buffers)[name], tensor)
        # Sums in another order differ in their last bits, and training carries that on.
        demand(off < 1e-3, f"{name} depends on the order in which replies arrive (relative difference {off:.2g})")


def worker_count_does_not_matter(method: Method, scope: Scope) -> None:
    """One worker and two give the same bits."""
    scene = small(scope, norm=True)
    with scene.runtime(workers=2) as runtime:
        two = scene.drive(method, scene.guarded(runtime))
    demand(digest(two) == digest(scene.reference(method).end), "the result depends on the number of workers")


def states_are_untouched(method: Method, scope: Scope) -> None:
    """Neither the start, nor any later state, nor the clients' data is changed in place."""
    scene, watch = small(scope, norm=True), Watch()
    start = scene.start(method)
    watch.note("the start", start)
    data = {name: (d.inputs, d.targets, d.ids) for name, d in scene.clients.items()}
    before = {name: tuple(t.clone() for t in tensors) for name, tensors in data.items()}
    with scene.runtime() as runtime:
        scene.drive(method, scene.guarded(runtime), start=start, observers=[watch.observe])
    watch.demand_untouched()
    for name, tensors in data.items():
        kept = all(torch.equal(a, b) for a, b in zip(tensors, before[name], strict=True))
        demand(kept, f"the data of client {name} was changed in place")


def names_and_shapes_are_kept(method: Method, scope: Scope) -> None:
    """The unlearned model has the names, shapes and dtypes of the one before, is finite, and needs no gradient."""
    reference = small(scope, norm=True).reference(method)
    for part in ("params", "buffers"):
        old, new = getattr(reference.start, part), getattr(reference.end, part)
        try:
            tree.check_same(old, new, part)
        except ValueError as error:
            raise AssertionError(f"the model's {error}") from error
        demand(tree.is_finite(new), f"the model's {part} are not finite")
        demand(not any(t.requires_grad for t in new.values()), f"the model's {part} carry gradients; detach them")


def training_hook_changes_no_model(method: Method, scope: Scope) -> None:
    """What the method records while the model learns leaves the model itself bit-identical."""
    scene = small(scope, norm=True)
    hooked = scene.trained(scene.configured(method).training)
    for part in ("params", "buffers"):
        equal = tree.digest(getattr(hooked, part)) == tree.digest(getattr(scene.origin, part))
        demand(equal, f"training() changes the model's {part}; it may record only")


def only_plain_work_on_admitted_parts(method: Method, scope: Scope) -> None:
    """Work is on ``retain`` or ``forget``, of a registered kind, and plain data."""
    try:
        calls = small(scope, norm=True).reference(method).calls
    except Excluded as error:
        raise AssertionError(f"asks for data that the request excludes: {error}") from error
    for work in (work for works, _ in calls for work in works):
        demand(work.part in ("retain", "forget"), f"asks {work.kind!r} on part {work.part!r} after the request")
        demand(work.kind in KINDS, f"asks for {work.kind!r}, which no @client_work registers")
        plain = all(isinstance(value, bool | int | float | str) for value in work.options.values())
        demand(plain, f"the options of {work.kind!r} are not all scalars: {dict(work.options)}")
        loose = [n for n, t in (work.params | work.buffers | work.extras).items() if not isinstance(t, Tensor)]
        demand(not loose, f"{work.kind!r} sends what is no tensor: {loose}")


def can_be_planned(method: Method, scope: Scope) -> None:
    """A dry run, in which no client trains, reaches the end: that is how ``letheon plan`` prices a method."""
    scene = small(scope, norm=True)
    parts: tuple[Part, ...] = ("all", "forget", "retain")
    sizes: dict[str, dict[str, int]] = {
        name: {part: len(scene.request.select(name, data, part)) for part in parts}
        for name, data in scene.clients.items()
    }
    scene.drive(method, DryRun(sizes, scene.task))


def buffers_follow_the_retain_stream(method: Method, scope: Scope) -> None:
    """After each round every buffer is what it was, or lies among those that the retain stream gave back.

    The replies of the forget stream carry buffers that are far off, so that any use of them shows.
    """
    scene = small(scope, norm=True)
    start = scene.start(method)
    with scene.runtime() as runtime:
        tap = Tap(Altered(runtime, _estranged))
        rounds = _Buffers(start, tap)
        scene.drive(method, scene.guarded(tap), start=start, observers=[rounds.observe])


def _estranged(call: int, work: Work, reply: Reply) -> Reply:
    """A forget reply with buffers that no retained client could have."""
    if work.part != "forget":
        return reply
    return dataclasses.replace(reply, buffers={n: b + 1000 for n, b in reply.buffers.items()})


class _Buffers:
    """Compares the buffers of each round with those before it and with the replies."""

    def __init__(self, start: State, tap: Tap) -> None:
        self._before = start.buffers
        self._tap = tap
        self._read = 0

    def observe(self, phase: str, done: int, state: State) -> None:
        new = self._tap.calls[self._read :]
        self._read = len(self._tap.calls)
        replies = [r.buffers for works, answers in new for r in answers if works[r.work].part == "retain" and r.buffers]
        place = f"after round {done} of {phase!r}"
        demand(state.buffers.keys() == self._before.keys(), f"{place} the model has other buffers than before")
        for name, buffer in state.buffers.items():
            demand(buffer.dtype == self._before[name].dtype, f"{place} buffer {name} is {buffer.dtype}")
            demand(bool(torch.isfinite(buffer).all()), f"{place} buffer {name} is not finite")
            if name.endswith("running_var"):
                demand(bool((buffer > 0).all()), f"{place} {name} is not positive; buffers are no parameters")
            low, high = _hull(name, [self._before, *replies])
            inside = bool((buffer >= low).all()) and bool((buffer <= high).all())
            demand(inside, f"{place} buffer {name} is neither what it was nor among what the retain stream replied")
        self._before = state.buffers


def _hull(name: str, trees: Sequence[Params]) -> tuple[Tensor, Tensor]:
    """Elementwise limits of a buffer; a pooled variance may exceed the largest by the spread of the means."""
    values = torch.stack([t[name] for t in trees])
    low, high = values.amin(0), values.amax(0)
    if not values.is_floating_point():
        return low, high
    mean = name.removesuffix("running_var") + "running_mean"
    if name.endswith("running_var") and mean in trees[0]:
        means = torch.stack([t[mean] for t in trees])
        high = high + (means.amax(0) - means.amin(0)) ** 2
    slack = 1e-6 + 1e-5 * values.abs().amax(0)  # float32
    return low - slack, high + slack


def nothing_is_kept(method: Method, scope: Scope) -> None:
    """What is left names no forgotten client, holds nothing that it sent, and no memory that was not declared."""
    demand_nothing_is_kept(method, small(scope, norm=True))


def demand_nothing_is_kept(method: Method, scene: Scene) -> None:
    """The same, in a given scene and of all requests that were served in it."""
    reference = scene.reference(method)
    start, end = reference.start, reference.end
    demand(not end.scratch, f"scratch outlives the method: {sorted(end.scratch)}")
    kept = FOREIGN in end.memory and torch.equal(end.memory[FOREIGN], start.memory[FOREIGN])
    demand(kept, "the memory of another method was changed or dropped; carry state.memory along")
    new = sorted(end.memory.keys() - start.memory.keys())
    declared = method.needs or method.remembers
    demand(declared or not new, f"leaves {new} in memory, which outlives the request, and declares no needs")
    gone = frozenset[str]().union(*(request.clients for request in scene.requests))
    for client in sorted(gone):
        _demand_unnamed(client, [*reference.phases, *end.params, *end.buffers, *end.memory])
    calls = [*(scene.before.reference(method).calls if scene.before else ()), *reference.calls]
    sent = [r for works, replies in calls for r in replies if works[r.work].part == "forget" or r.client in gone]
    _demand_unknown({name: t for name, t in end.memory.items() if name != FOREIGN}, sent)


def _demand_unnamed(client: str, names: Iterable[str]) -> None:
    for name in names:
        demand(client not in name, f"{name!r} names the forgotten client {client!r}")


def _demand_unknown(memory: Params, sent: Sequence[Reply]) -> None:
    """No memory may be a multiple of what a holder of forgotten data sent."""
    updates = [(reply.client, tensor) for reply in sent for tensor in reply.tensors.values() if tensor.numel() > 1]
    for name, kept in memory.items():
        for client, update in updates:
            demand(not _is_multiple(kept, update), f"memory {name!r} is what {client} sent, who held forgotten data")


def _is_multiple(a: Tensor, b: Tensor) -> bool:
    if a.numel() != b.numel() or not (a.is_floating_point() and b.is_floating_point()):
        return False
    x, y = a.double().flatten(), b.double().flatten()
    return float(torch.dot(x, y).abs()) > 0.999 * float(x.norm() * y.norm()) > 0.0


def _distance(a: Tensor, b: Tensor) -> float:
    x, y = a.double(), b.double()
    return float((x - y).norm() / y.norm().clamp_min(1e-12))
