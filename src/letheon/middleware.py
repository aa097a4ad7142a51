"""Federations that wrap a federation: metering, quorum, exclusion. ``Seeded`` lives beside ``drive``.

The usual stack is ``Excluding(Quorum(Metered(runtime)))``, with ``cohort.Sampled`` in the middle if not everybody
trains in every round.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from letheon import tree
from letheon.client import KINDS, LARGEST_LOSS
from letheon.errors import Diverged, Excluded, RoundError
from letheon.outliers import Judged, demand_factor, outlying
from letheon.phase import State
from letheon.work import Federation, Reply, Work

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Cost:
    """What one phase has cost so far.

    Attributes:
        rounds: round trips: one step of FedAvg is one, a line search has one for each trial.
        bytes_down: sent to clients; what several works of one message share is sent once.
        bytes_up: sent by clients.
        samples: samples that passed through a model at clients.
        flops: 2 for each multiply-accumulate; a training sample counts as three forward passes.
        seconds: wall time of the rounds, evaluation not included.
        storage: bytes that the server kept beyond the model (``State.memory``) after its last round so far.
    """

    phase: str
    rounds: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    samples: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    storage: int = 0


class Metered:
    """Counts what goes through. As an observer it books the round that has just ended under its phase."""

    def __init__(self, inner: Federation) -> None:
        self._inner = inner
        self._open = Cost("")
        self.phases: list[Cost] = []

    def run(self, *works: Work) -> Iterator[Reply]:
        started = time.perf_counter()
        self._open.rounds += 1
        sent: dict[str, set[int]] = {}
        for reply in self._inner.run(*works):
            self._count(works[reply.work], reply, sent.setdefault(reply.client, set()))
            yield reply
        self._open.seconds += time.perf_counter() - started

    def _count(self, work: Work, reply: Reply, sent: set[int]) -> None:
        for tensors in (work.params, work.buffers, work.extras):
            new = {n: t for n, t in tensors.items() if id(t) not in sent}
            self._open.bytes_down += tree.n_bytes(new)
            sent.update(id(t) for t in new.values())
        self._open.bytes_up += tree.n_bytes(reply.tensors) + tree.n_bytes(reply.buffers)
        self._open.samples += _told(reply, "samples")
        self._open.flops += _told(reply, "flops")

    def observe(self, phase: str, done: int, state: State) -> None:
        """Book the open round."""
        if not self.phases or self.phases[-1].phase != phase:
            self.phases.append(Cost(phase))
        booked, new = self.phases[-1], self._open
        for name in ("rounds", "bytes_down", "bytes_up", "samples", "flops", "seconds"):
            setattr(booked, name, getattr(booked, name) + getattr(new, name))
        booked.storage = tree.n_bytes(state.memory)
        self._open = Cost("")

    def dump(self) -> Any:
        """The booked costs as plain data, for the journal."""
        return [asdict(cost) for cost in self.phases]

    def load(self, data: Any) -> None:
        """The inverse of ``dump``."""
        self.phases = [Cost(**row) for row in data]


def _told(reply: Reply, name: str) -> float:
    """A number of a reply that nobody has checked yet; one that no client can mean would end the books of all."""
    value = reply.metrics.get(name, 0.0)
    return value if _is_meant(value) else 0.0


class Quorum:
    """Lets usable replies through, quarantines the others by name, and refuses a round with too few.

    A reply is unusable if the client reported an error, if a tensor or its weight is not finite, or if its tensors do
    not match what was sent, and, with an ``outlier_factor``, if its update is too long. Events are kept with phase and
    round for the report.

    Args:
        inner: the federation to guard.
        minimum: usable replies that each work needs; work on the data to forget needs one.
        outlier_factor: how many times the median norm of the replies to a work a reply's may be, see ``outlying``;
            the replies of a round are then all held at once. None: replies are not compared, and pass one by one.
    """

    def __init__(self, inner: Federation, *, minimum: int = 1, outlier_factor: float | None = None) -> None:
        demand_factor(outlier_factor)
        self._inner = inner
        self._minimum = minimum
        self._outlier_factor = outlier_factor
        self._open: list[dict[str, Any]] = []
        self._told: set[tuple[str, str]] = set()
        self.events: list[dict[str, Any]] = []

    def run(self, *works: Work) -> Iterator[Reply]:
        usable: Counter[int] = Counter()
        reasons: list[list[str]] = [[] for _ in works]
        for reply, reason in self._judged(works):
            if not reason:
                usable[reply.work] += 1
                yield reply
                continue
            reasons[reply.work].append(f"{reply.client}: {reason}")
            self._open.append({"client": reply.client, "reason": reason})
            self._tell(reply.client, reason)
        for index, work in enumerate(works):
            # The data to forget may have one holder only, and of a cohort no more can answer than were asked.
            needed = 1 if work.part == "forget" else self._minimum
            needed = needed if work.clients is None else min(needed, len(set(work.clients)))
            if usable[index] < needed:
                raise _refusal(work, usable[index], needed, reasons[index])

    def _tell(self, client: str, reason: str) -> None:
        """A warning once: a client that can never take part would repeat it in every round."""
        level = logging.INFO if (client, reason) in self._told else logging.WARNING
        self._told.add((client, reason))
        log.log(level, "client %s quarantined in this round, and in later ones as need be: %s", client, reason)

    def _judged(self, works: Sequence[Work]) -> Iterator[Judged]:
        judged = ((reply, fault(works[reply.work], reply)) for reply in self._inner.run(*works))
        return judged if self._outlier_factor is None else outlying(judged, works, self._outlier_factor)

    def observe(self, phase: str, done: int, state: State) -> None:
        """Give the open events their place."""
        self.events += [{"phase": phase, "round": done} | event for event in self._open]
        self._open = []

    def dump(self) -> Any:
        """The events as plain data, for the journal."""
        return self.events

    def load(self, data: Any) -> None:
        """The inverse of ``dump``."""
        self.events = list(data)


_NOT_FINITE = "its reply is not finite (NaN or infinity)"


LARGEST_WEIGHT = 2.0**53
"""Samples of one client. Sums over clients stay finite, and a number of samples exact."""


def _is_meant(value: float) -> bool:
    """Whether a client can mean a number: no NaN, nor one whose sums leave the finite numbers."""
    return abs(value) <= LARGEST_LOSS


def fault(work: Work, reply: Reply) -> str:
    """Why a reply cannot be used, or nothing."""
    if reply.error:
        return reply.error
    if not (tree.is_finite(reply.tensors) and tree.is_finite(reply.buffers)):
        return _NOT_FINITE
    if not 0.0 <= reply.weight <= LARGEST_WEIGHT:
        return f"its weight is {reply.weight}"
    broken = [name for name, value in reply.metrics.items() if not _is_meant(value)]
    if broken:
        return f"its {broken[0]} is {reply.metrics[broken[0]]}"
    expected = KINDS[work.kind].expected(work) if work.kind in KINDS else None
    if expected is not None:
        try:
            tree.check_same(expected[0], reply.tensors, "its reply does not match what was sent")
            tree.check_same(expected[1], reply.buffers, "its buffers do not match what was sent")
        except ValueError as error:
            return str(error)
    return ""


def _refusal(work: Work, usable: int, minimum: int, reasons: Sequence[str]) -> RoundError:
    told = "; ".join(reasons[:5]) + (" …" if len(reasons) > 5 else "")
    # Clients that could not take part anyway do not hide that the model has left the finite numbers.
    not_finite = sum(reason.endswith(_NOT_FINITE) for reason in reasons)
    kind = Diverged if not_finite and usable + not_finite >= minimum else RoundError
    told = told or f"no {'other ' if usable else ''}client holds the part {work.part!r}"
    return kind(
        f"round refused: {usable} usable replies to {work.kind!r} on {work.part!r}, {minimum} needed ({told}). "
        "The model of the round before is kept."
    )


class Excluding:
    """Enforces an admitted request: names it in every work, and refuses work on ``all`` data.

    Args:
        inner: the federation to guard.
        request: id of the request being served.
    """

    def __init__(self, inner: Federation, *, request: str) -> None:
        self._inner = inner
        self._request = request

    def run(self, *works: Work) -> Iterator[Reply]:
        for work in works:
            if work.part == "all":
                raise Excluded(
                    f"work {work.kind!r} on all data after request {self._request} was admitted; "
                    "use part='retain' (what is left) or 'forget' (what is to go)"
                )
        return self._inner.run(*(replace(work, request=self._request) for work in works))


class DryRun:
    """A federation that trains nothing: zero updates, but the true sizes, samples and FLOPs. For ``letheon plan``.

    Args:
        sizes: for each client, the samples it holds of each part.
        task: prices the work.
    """

    def __init__(self, sizes: Mapping[str, Mapping[str, int]], task: Any) -> None:
        self._sizes = sizes
        self._task = task

    def run(self, *works: Work) -> Iterator[Reply]:
        empty: tuple[tree.Params, tree.Params] = ({}, {})
        answers = [KINDS[work.kind].expected(work) or empty for work in works]
        zeros = [tree.zeros_like(tensors) for tensors, _ in answers]
        for client in sorted(self._sizes):
            for index, work in enumerate(works):
                n = self._sizes[client][work.part]
                if n and work.asks(client):
                    metrics = {"accuracy": 1.0, "loss": 0.0} | KINDS[work.kind].cost(self._task, work, n)
                    yield Reply(index, client, zeros[index], answers[index][1], weight=float(n), metrics=metrics)


class Recording:
    """Takes notes of usable replies on their way and changes nothing: the tap of a method that records a training run.

    Args:
        inner: the federation to listen to.
        note: the entries to keep of a reply.
        kind: of the work whose replies are noted; what other methods ask in the same round is none of it.

    Attributes:
        notes: the entries of all replies so far.
    """

    def __init__(
        self, inner: Federation, note: Callable[[Reply], Mapping[str, Tensor]], *, kind: str = "train"
    ) -> None:
        self._inner = inner
        self._note = note
        self._kind = kind
        self.notes: tree.Params = {}

    def run(self, *works: Work) -> Iterator[Reply]:
        for reply in self._inner.run(*works):
            if works[reply.work].kind == self._kind and not reply.error and reply.weight > 0:
                self.notes.update(self._note(reply))
            yield reply
