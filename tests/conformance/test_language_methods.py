"""Every listed language method, alone and with COP: what all methods owe, on a stream of two requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from letheon import config, registry, tree
from letheon.client import Client
from letheon.errors import Excluded, RequestError
from letheon.journal import DiskJournal
from letheon.methods.base import Method
from letheon.methods.descent import Cop, Descent
from letheon.methods.language import LanguageMethod
from letheon.middleware import Excluding, Quorum
from letheon.phase import Phase, State, drive
from letheon.request import Request
from letheon.runtimes.alone import Alone, threads
from letheon.tasks.text import Questions
from letheon.text.descent import Recipe
from letheon.text.trajectory import Suppression
from letheon.training import Local
from letheon.work import Work
from text_toys import Toys, pair


class Blind(Toys):
    """Toys of which only the first five people are asked about, so that others can be held out."""

    def questions(self) -> Mapping[str, Questions]:
        return {"retain": Questions({str(i): pair(i) for i in range(5)})}


TASK = Blind()
NAMES = registry.names("method", language=True)
TUNING = Recipe(lr=1e-3, epochs=2, batch_size=2)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "rmu": {"block": "model.layers.0"},
    "tfr-net": {"suppression": Suppression(hot=0.8, level=0.5, hits=1, first_budget=0.05, budget=0.05)},
}
"""What a tiny model needs."""


def made(name: str, *, held: bool) -> LanguageMethod:
    method: Any = registry.get("method", name)(**SETTINGS.get(name, {}))
    method = replace(method, tuning=TUNING) if hasattr(method, "tuning") else method
    method = replace(method, cop=Cop()) if held else method
    assert isinstance(method, LanguageMethod)
    return method


def keeps(method: LanguageMethod) -> bool:
    return method.remembers or with_cop(method)


def with_cop(method: LanguageMethod) -> bool:
    return isinstance(method, Descent) and method.cop is not None


METHODS = [made(name, held=False) for name in NAMES]
METHODS += [made(method.name, held=True) for method in METHODS if isinstance(method, Descent)]
CASES = [pytest.param(method, id=f"{method.name}{'+cop' if with_cop(method) else ''}") for method in METHODS]


class Holder:
    """The holder of all texts, who admits one request after another."""

    def __init__(self) -> None:
        self.client = Client("holder", TASK.train(), TASK)
        self._module = TASK.prototype()

    def serve(self, method: Method, state: State, number: int, **how: Any) -> State:
        request = Request("samples", samples=tuple(TASK.requests()[number]))
        if request.id not in self.client.requests:
            self.client.admit(request)
        federation = Excluding(Quorum(Alone(self.client, self._module)), request=request.id)
        phases: Sequence[Phase] = method.phases(state, TASK)
        return drive(phases, federation, state, seed=number, **how)


def digest(state: State) -> str:
    return tree.digest(state.params | state.buffers | {f"memory/{n}": t for n, t in state.memory.items()})


@pytest.mark.parametrize("method", CASES)
def test_it_is_frozen_and_its_table_gives_it_back(method: LanguageMethod) -> None:
    with pytest.raises(FrozenInstanceError):
        method.local = Local()
    assert config.build(Method, config.plain(method), "x.toml") == method  # type: ignore[type-abstract]


@pytest.mark.parametrize("method", CASES)
def test_it_does_the_same_twice_and_leaves_its_start_alone(method: LanguageMethod) -> None:
    start = TASK.init(0)
    before = digest(start)
    states = []
    for _ in range(2):
        holder = Holder()
        state = holder.serve(method, start, 0)
        states.append(holder.serve(method, state, 1))
    assert digest(start) == before
    assert digest(states[0]) == digest(states[1])
    assert states[0].params.keys() == start.params.keys()
    assert all(states[0].params[n].shape == start.params[n].shape for n in start.params)
    assert any(not torch.equal(states[0].params[n], start.params[n]) for n in start.params)
    assert states[0].scratch == {}
    own = f"{method.name}/cop/" if with_cop(method) else f"{method.name}/"
    assert all(name.startswith(own) for name in states[0].memory)
    assert bool(states[0].memory) == keeps(method)


class Killed(Exception):
    """In place of a crash."""


@pytest.mark.parametrize("method", [case for case in CASES if case.id in ("npo+cop", "idk+cop", "dpo+cop", "tfr-net")])
def test_a_killed_request_goes_on_bit_for_bit(method: LanguageMethod, tmp_path: Path) -> None:
    holder = Holder()
    first = holder.serve(method, TASK.init(0), 0)
    expected = digest(holder.serve(method, first, 1))
    saved = DiskJournal(tmp_path, owner="x", companions={})

    class Kills:
        """Saves the first phase, and is killed before the next looks at what it left."""

        def load(self) -> None:
            return None

        def save(self, phase: str, done: int, state: State) -> None:
            saved.save(phase, done, state)
            raise Killed

    with pytest.raises(Killed):
        holder.serve(method, first, 1, journal=Kills())
    again = DiskJournal(tmp_path, owner="x", companions={})
    assert again.load() is not None
    assert digest(holder.serve(method, first, 1, journal=again)) == expected


@pytest.mark.parametrize("method", CASES)
def test_texts_forgotten_before_are_not_worked_on_again(method: LanguageMethod) -> None:
    """Their tokens are overwritten after the first request; the second must come out the same."""
    first = Holder().serve(method, TASK.init(0), 0)
    ends = []
    for spoilt in (False, True):
        holder = Holder()
        holder.serve(method, TASK.init(0), 0)
        if spoilt:
            gone = torch.isin(holder.client.data.ids, torch.tensor(TASK.requests()[0]))
            holder.client.data.inputs[gone] = 7
            holder.client.data.targets[gone] = 7
        ends.append(digest(holder.serve(method, first, 1)))
    assert ends[0] == ends[1]


def test_once_a_request_is_admitted_nobody_is_asked_for_everything() -> None:
    holder = Holder()
    state = TASK.init(0)
    holder.serve(made("ga", held=False), state, 0)
    federation = Excluding(Alone(holder.client, TASK.prototype()), request=next(iter(holder.client.requests)))
    with pytest.raises(Excluded):
        list(federation.run(Work("train", state.params, state.buffers, "all")))
    with pytest.raises(RequestError, match="never admitted"):
        list(Alone(holder.client, TASK.prototype()).run(Work("descend", state.params, part="forget", request="x")))
