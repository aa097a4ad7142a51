"""State, phases, and the loop that drives them: all that the runtime knows of a method."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from torch import Tensor

from letheon import tree
from letheon.tree import Params
from letheon.work import Federation, Reply, Work

LOG = "log/"


@dataclass(frozen=True, slots=True)
class State:
    """A model on its way, split by how long each part lives.

    Attributes:
        params: trainable and communicated.
        buffers: BatchNorm statistics; they have their own averaging rule and are never rectified or negated.
        memory: outlives the request (a projection basis, a stored history): a liability, listed in the report.
        scratch: dropped when the method ends (Lethe's adapter). Entries named ``log/…`` are of this round alone and
            are recorded for the report; see ``logged``.
    """

    params: Params
    buffers: Params = field(default_factory=dict)
    memory: Params = field(default_factory=dict)
    scratch: Params = field(default_factory=dict)

    def moved(self, delta: Mapping[str, Tensor], scale: float = 1.0) -> Self:
        """The state with ``params + scale·delta``."""
        return replace(self, params=tree.add(self.params, delta, scale))

    def logged(self, **rows: Tensor) -> Self:
        """The state with this round's log entries; those of the round before are gone."""
        kept = {name: tensor for name, tensor in self.scratch.items() if not name.startswith(LOG)}
        return replace(self, scratch=kept | {LOG + name: tensor for name, tensor in rows.items()})


Step = Callable[[Federation, State, int], State]
Observer = Callable[[str, int, State], None]
"""Called with (phase, rounds done in it, state) after every round; sees every state and changes none."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One step, repeated ``rounds`` times or until ``until`` holds."""

    name: str
    step: Step
    rounds: int = 1
    until: Callable[[State], bool] | None = None


class Journal(Protocol):
    """Where ``drive`` leaves its state after every round, and finds it again."""

    def load(self) -> tuple[str, int, State] | None:
        """(phase, rounds done in it, state) of the last good round, or None."""
        ...

    def save(self, phase: str, done: int, state: State) -> None:
        """Keep the state; must be atomic."""
        ...


class Seeded:
    """Gives every work its seed: a hash of (run seed, phase, round, call). Counted, not carried."""

    def __init__(self, inner: Federation, *, seed: int, phase: str, round: int) -> None:
        self._inner = inner
        self._place = f"{seed}|{phase}|{round}"
        self._calls = 0

    def run(self, *works: Work) -> Iterator[Reply]:
        seed = seed_of(f"{self._place}|{self._calls}")
        self._calls += 1
        # Works asked for together share the seed, so that two streams over the same data see the same order.
        return self._inner.run(*(replace(work, seed=seed) for work in works))


def seed_of(text: str) -> int:
    """A 63-bit seed from text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def drive(
    phases: Sequence[Phase],
    federation: Federation,
    state: State,
    *,
    seed: int,
    journal: Journal | None = None,
    observers: Sequence[Observer] = (),
) -> State:
    """Go through ``phases`` from ``state`` and return the last state, without its scratch.

    With a journal, a run that was interrupted continues after its last good round and ends bit-identical to an
    unbroken one: seeds depend on the place in the run only.
    """
    _check_names(phases)
    at, done, state = _resume(phases, journal, state)
    for phase in phases[at:]:
        while done < phase.rounds and not (done and phase.until and phase.until(state)):
            state = phase.step(Seeded(federation, seed=seed, phase=phase.name, round=done), state, done)
            done += 1
            for observe in observers:
                observe(phase.name, done, state)
            if journal is not None:
                journal.save(phase.name, done, state)
        done = 0
    return replace(state, scratch={})


def _check_names(phases: Sequence[Phase]) -> None:
    names = [phase.name for phase in phases]
    if len(set(names)) != len(names):
        raise ValueError(f"phases: names must differ, they place the seeds and the journal: {names}")


def _resume(phases: Sequence[Phase], journal: Journal | None, state: State) -> tuple[int, int, State]:
    saved = journal.load() if journal is not None else None
    if saved is None:
        return 0, 0, state
    name, done, state = saved
    return [phase.name for phase in phases].index(name), done, state
