"""Checks under disturbance: interrupted rounds, missing, late and broken replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from letheon import config, registry, tree
from letheon.errors import RoundError
from letheon.files import write
from letheon.journal import DiskJournal, load_state, save_state
from letheon.methods.base import Method
from letheon.middleware import Excluding, Quorum
from letheon.phase import State
from letheon.request import Part, Scope
from letheon.testing.scene import RETAINED, Altered, Scene, Watch, Wrap, demand, digest, same, small
from letheon.work import Federation, Reply, Work

START = "start.safetensors"
Change = Callable[[int, Work, Reply], Reply | None]


class _Stopped(Exception):
    """What interrupts a run."""


class _Stop:
    """Interrupts a run after a number of rounds, before the last of them is saved."""

    def __init__(self, rounds: int) -> None:
        self._left = rounds

    def observe(self, phase: str, done: int, state: State) -> None:
        self._left -= 1
        if self._left == 0:
            raise _Stopped


def resumes_bit_for_bit(method: Method, scope: Scope) -> None:
    """Interrupted in every round and resumed each time as if by a new process, the run ends with the same bits.

    A new process has the model at the request from a file.
    """
    demand_resumption(method, small(scope, norm=True))


def demand_resumption(method: Method, scene: Scene) -> None:
    """The same, in a given scene."""
    expected = scene.reference(method).end
    with TemporaryDirectory() as folder:
        write(Path(folder) / START, save_state(scene.start(method), {}))
        end = _resumed(scene, method, Path(folder), stop=1)
        demand(end is None, "has no round that could be interrupted")
        while end is None:
            end = _resumed(scene, method, Path(folder), stop=2)
    same_order = list(end.params) == list(expected.params) and list(end.buffers) == list(expected.buffers)
    demand(same_order, "tensors come back in another order, and sums over them depend on it")
    demand(
        digest(end) == digest(expected),
        "resumed runs differ from an unbroken one; what a round needs belongs in the State",
    )


def rebuilt(method: Method, table: Mapping[str, Any]) -> Method:
    """The method from its own table; it need not be listed, but methods that it is made of are."""

    def known(name: str) -> type:
        return type(method) if name == method.name else registry.get("method", name)

    return config.build(Method, table, "conformance", resolve={Method: known})  # type: ignore[type-abstract]


def _resumed(scene: Scene, method: Method, folder: Path, *, stop: int) -> State | None:
    """The end, or None if the run was interrupted in round ``stop`` of this attempt; that round is lost."""
    fresh = rebuilt(method, config.plain(method))
    journal = DiskJournal(folder / "journal", owner="conformance")
    start, _ = load_state(folder / START)
    observers = [_Stop(stop).observe]
    with scene.runtime() as runtime:
        try:
            return scene.drive(fresh, scene.guarded(runtime), start=start, journal=journal, observers=observers)
        except _Stopped:
            return None


def empty_cohorts_are_refused(method: Method, scope: Scope) -> None:
    """If no client answers for a part that the method asks for, the round is refused; it never counts as done."""
    scene = small(scope, norm=True)
    for part in scene.reference(method).asked():
        for quorum in (Quorum, same):
            with scene.runtime() as runtime:
                federation = Excluding(quorum(Altered(runtime, _without(part))), request=scene.request.id)
                _demand_refused(scene, method, federation, f"no client holds part {part!r}")


def missing_replies_are_survived_or_refused(method: Method, scope: Scope) -> None:
    """A round goes on without one retained client; with nothing but errors for a part it is refused."""
    scene = small(scope, norm=True)
    end = scene.run(method, inside=lambda inner: Altered(inner, _without_one))
    demand(tree.is_finite(end.params), f"the model is not finite when client {RETAINED} does not answer")
    for part, calls in scene.reference(method).asked().items():
        for at in sorted({calls[0], calls[-1]}):
            with scene.runtime() as runtime:
                federation = scene.guarded(Altered(runtime, _failing(part, at)))
                _demand_refused(scene, method, federation, f"every reply on {part!r} to request {at} is an error")


def nan_replies_do_no_harm(method: Method, scope: Scope) -> None:
    """A client whose update, weight or metrics are NaN is quarantined: it counts as missing."""
    scene = small(scope, norm=True)
    missing = digest(scene.run(method, inside=_altering(_gone)))
    end = scene.run(method, inside=_altering(_nan_reply))
    demand(digest(end) == missing, "a client whose reply is NaN changes the result, although quarantined")


def _demand_refused(scene: Scene, method: Method, federation: Federation, what: str) -> None:
    watch, start = Watch(), scene.start(method)
    watch.note("the start", start)
    try:
        scene.drive(method, federation, start=start, observers=[watch.observe])
    except RoundError:
        watch.demand_untouched()  # the old model is kept
        return
    raise AssertionError(f"goes on although {what}; let the RoundError through, the old model is kept")


def _without(part: Part) -> Change:
    return lambda call, work, reply: None if work.part == part else reply


def _failing(part: Part, at: int) -> Change:
    def change(call: int, work: Work, reply: Reply) -> Reply:
        is_hit = call == at and work.part == part
        return Reply(reply.work, reply.client, {}, error="out of order") if is_hit else reply

    return change


def _without_one(call: int, work: Work, reply: Reply) -> Reply | None:
    return None if reply.client == RETAINED and work.part == "retain" else reply


def _altering(spoil: Callable[[int, Reply], Reply | None]) -> Wrap:
    """Spoils the updates of one retained client; its replies without tensors are let alone."""

    def change(call: int, work: Work, reply: Reply) -> Reply | None:
        is_hit = reply.client == RETAINED and work.part == "retain" and reply.tensors
        return spoil(call, reply) if is_hit else reply

    return lambda inner: Altered(inner, change)


def _gone(call: int, reply: Reply) -> None:
    return None


def _nan_reply(call: int, reply: Reply) -> Reply:
    """A NaN by turns in the update, the weight and the metrics."""
    if call % 3 == 1:
        return replace(reply, weight=math.nan)
    if call % 3 == 2:
        return replace(reply, metrics=dict.fromkeys(reply.metrics, math.nan))
    name = next(iter(reply.tensors))
    spoilt = reply.tensors[name].clone()
    spoilt.view(-1)[0] = math.nan
    return replace(reply, tensors=reply.tensors | {name: spoilt})
