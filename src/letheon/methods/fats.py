"""FATS: exact unlearning by training that depends on little data (Tao et al., VLDB 2024, arXiv 2401.11018)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from letheon.errors import ConfigError, MethodError
from letheon.methods.base import Method
from letheon.methods.draws import cohort_of, recomputation
from letheon.phase import Phase, State, seed_of
from letheon.request import Part
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Work, average, separate

_SINCE, _FROM, _SEED, _ROUNDS, _CLIENT = "fats/since", "fats/from", "fats/seed", "fats/rounds", "fats/client/"


@dataclass(frozen=True, slots=True)
class Entry:
    """What the server keeps of one round.

    Attributes:
        model: params and buffers that the round began with, ``params/…`` and ``buffers/…``.
        seed: of the round's draws.
        drawn: how often each client of the cohort was drawn.
    """

    model: Params
    seed: int
    drawn: Counter[str]

    @classmethod
    def of(cls, state: State, cohort: Iterable[str], seed: int) -> Self:
        """Of a round that begins with ``state``."""
        model = {f"params/{name}": tensor for name, tensor in state.params.items()}
        return cls(model | {f"buffers/{name}": tensor for name, tensor in state.buffers.items()}, seed, Counter(cohort))

    def memory(self, t: int) -> Params:
        """As entries of ``State.memory``, to be kept as round ``t``."""
        drawn = {f"drawn/{client}": torch.tensor(times) for client, times in sorted(self.drawn.items())}
        return {
            _place(t) + name: tensor for name, tensor in (self.model | drawn | {"seed": _integer(self.seed)}).items()
        }

    @classmethod
    def at(cls, memory: Params, t: int) -> Self:
        """The inverse of ``memory``."""
        entry = {name.removeprefix(_place(t)): tensor for name, tensor in memory.items() if name.startswith(_place(t))}
        drawn = {n.removeprefix("drawn/"): int(times) for n, times in entry.items() if n.startswith("drawn/")}
        model = {n: tensor for n, tensor in entry.items() if n.startswith(("params/", "buffers/"))}
        return cls(model, int(entry["seed"]), Counter(drawn))

    def begun(self, state: State) -> State:
        """``state`` with the model that the round began with."""
        parts = [
            {n.removeprefix(prefix): t for n, t in self.model.items() if n.startswith(prefix)}
            for prefix in ("params/", "buffers/")
        ]
        return replace(state, params=parts[0], buffers=parts[1])


def _place(t: int) -> str:
    return f"fats/round-{t:06d}/"


def _integer(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int64)


def rounds_in(memory: Params) -> int:
    """How many rounds have been kept."""
    return sum(name.startswith("fats/round-") and name.endswith("/seed") for name in memory)


def before(memory: Params, t: int) -> Params:
    """The memory without the rounds from ``t`` on."""
    return {n: tensor for n, tensor in memory.items() if not (n.startswith("fats/round-") and n >= _place(t))}


@dataclass(frozen=True)
class FATS(Method):
    """Training in small random cohorts and batches, so that most data can go without a trace.

    Each of R rounds draws K clients with replacement; each of them takes E local steps, each on a fresh batch of b.
    To unlearn, every holder says in which round one of its samples to forget was first in a batch. Was none, then the
    model is as if they had never been there, and stays. Else everything from that round on is drawn and computed
    anew on the retained data; of the round itself the draws of clients that retain something are kept, since it was
    not for those that it is repeated. The result is distributed exactly as a training run without the data.

    It trains its own Origin. The model of every round, the draws and their seeds stay in memory; the batches follow
    from the seeds, so that no list of samples leaves a client. All holders of data to forget must answer. The promise
    ends with continued training, which is plain FedAvg.

    The chance that anything is computed anew is at most ρ_S = RKEb/(MN) for a sample and ρ_C = RK/M for
    a client (``letheon.methods.draws``; ``letheon plan`` tells the bound for the request): FATS pays off only where
    K, E and b are so small that these are well below 1.

    Attributes:
        cohort: K, clients drawn in each round, with replacement; at least as many as a quorum needs.
        steps: E, local steps.
        batch_size: b, samples of a local step.
        rounds: R; None: as many as the experiment's Origin has.
        seed: of all draws; None: the experiment's.
        local: optimizer and learning rate; None: the experiment's. Its epochs and batch size are not used.
    """

    name: ClassVar[str] = "fats"
    needs: ClassVar[frozenset[str]] = frozenset({"history", "per-client"})

    cohort: int = 4
    steps: int = 20
    batch_size: int = 16
    rounds: int | None = None
    seed: int | None = None
    local: Local | None = None

    def __post_init__(self) -> None:
        for name in ("cohort", "steps", "batch_size", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"fats.{name}: must be at least 1, got {value}")

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        return self.filled({"local": local, "rounds": train_rounds, "seed": seed})

    @property
    def recipe(self) -> Local:
        """The local recipe in force, with E and b, from round 0 on."""
        return replace(self.local or Local(), steps=self.steps, batch_size=self.batch_size, first_round=0)

    def remarks(self, sizes: Mapping[str, Mapping[str, int]]) -> Sequence[str]:
        bound = recomputation(sizes, self.recipe, rounds=self.rounds or 1, cohort=self.cohort)
        return (f"fats: rounds are run again with probability {100 * bound:.3g} % at most",)

    def origin(self, task: Task, local: Local, rounds: int) -> Sequence[Phase]:
        own = self.configured(local, rounds, 0)

        def train(federation: Federation, state: State, t: int) -> State:
            seed = seed_of(f"{own.seed}|fats|{t}")
            return own.round(
                federation, state, t, part="all", cohort=cohort_of(_names(state), own.cohort, seed), seed=seed
            )

        return [Phase("census", census), Phase("train", train, own.rounds or 1)]

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        rounds = self.rounds or max(rounds_in(start.memory), 1)
        return [Phase("locate", self.locate), Phase("recompute", self.recompute, rounds, until=_is_complete)]

    def locate(self, federation: Federation, state: State, t: int) -> State:
        """Find the round from which on everything has to be drawn anew; the model stays as it is."""
        rounds = rounds_in(state.memory)
        if not rounds:
            raise MethodError("fats: this model has no record of its draws; start from fats' own training")
        # Since the last request draws were from retained data: of those rounds nothing is asked, they are run again.
        known = int(state.memory.get(_SINCE, _integer(rounds)))
        entries = [Entry.at(state.memory, r) for r in range(known)]
        works = (self._question(state, entries), Work("census", state.params, state.buffers, "retain"))
        reports, holders = separate(federation.run(*works), 2)
        # One that does not say is taken to have been drawn at once; so is everybody in a dry run.
        first = min([known, *(max(int(reply.metrics.get("first", 0)), 0) for reply in reports)])
        found = {_CLIENT + reply.client: torch.tensor(reply.weight) for reply in holders}
        return replace(state, scratch=found | {_FROM: _integer(first), _ROUNDS: _integer(rounds)})

    def _question(self, state: State, entries: Sequence[Entry]) -> Work:
        """To the holders of data to forget: the seeds of all rounds, and how often each client was drawn in them."""
        clients = sorted({client for entry in entries for client in entry.drawn})
        times = {f"times/{c}": torch.tensor([e.drawn[c] for e in entries], dtype=torch.int64) for c in clients}
        seeds = torch.tensor([entry.seed for entry in entries], dtype=torch.int64)
        options = self.recipe.options(0)
        return Work(
            "fats-first", state.params, state.buffers, "forget", options=options, extras=times | {"seeds": seeds}
        )

    def recompute(self, federation: Federation, state: State, i: int) -> State:
        """The ``i``-th round from the first affected one on; nothing, if there is none."""
        first = int(state.scratch[_FROM])
        if first == int(state.scratch[_ROUNDS]):
            return state
        names, kept = _names(state), tuple[str, ...]()
        if i == 0:
            entry = Entry.at(state.memory, first)
            memory = before(state.memory, first) | {_SINCE: _integer(first)}
            # The old seed is the root of the new ones: no draw repeats, in this request or a later one.
            state = replace(entry.begun(state), memory=memory, scratch=state.scratch | {_SEED: _integer(entry.seed)})
            kept = tuple(client for client in sorted(entry.drawn.elements()) if client in names)
        seed = seed_of(f"{int(state.scratch[_SEED])}|{i}")
        cohort = kept + cohort_of(names, self.cohort - len(kept), seed)
        return self.round(federation, state, first + i, part="retain", cohort=cohort, seed=seed)

    def round(
        self, federation: Federation, state: State, t: int, *, part: Part, cohort: tuple[str, ...], seed: int
    ) -> State:
        """Round ``t`` with the cohort, each draw of a client weighing the same; it is kept in memory."""
        options = self.recipe.options(t) | {"draws": seed}
        work = Work("fats", state.params, state.buffers, part, options=options, clients=cohort)
        replies = federation.run(work)
        mean = average(replace(r, weight=float(cohort.count(r.client)) if r.weight > 0 else 0.0) for r in replies)
        memory = state.memory | Entry.of(state, cohort, seed).memory(t)
        return replace(state.moved(mean.tensors), buffers=mean.buffers, memory=memory)


def census(federation: Federation, state: State, t: int) -> State:
    """Ask who is there; the names go to the scratch."""
    (holders,) = separate(federation.run(Work("census", state.params, state.buffers, "all")), 1)
    return replace(state, scratch={_CLIENT + reply.client: torch.tensor(reply.weight) for reply in holders})


def _names(state: State) -> list[str]:
    """Who can be drawn, in order."""
    return sorted(name.removeprefix(_CLIENT) for name in state.scratch if name.startswith(_CLIENT))


def _is_complete(state: State) -> bool:
    return rounds_in(state.memory) == int(state.scratch[_ROUNDS])
