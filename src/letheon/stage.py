"""A stage of a run: phases driven to the end, cached under the digest of all that went into it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from letheon import tree
from letheon.curve import Point, points_of
from letheon.errors import Diverged, JournalError
from letheon.files import read_sealed, write, write_sealed
from letheon.journal import Companion, DiskJournal, load_state, save_state
from letheon.middleware import Cost, Metered, Quorum
from letheon.phase import LOG, Observer, Phase, State, drive
from letheon.work import Federation

log = logging.getLogger(__name__)

Saved = tuple[str, int, State]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a stage leaves behind.

    Attributes:
        state: the model at its end; the last good one if it diverged.
        points: the curve; the first point is the model that the stage began with.
        costs: of each phase.
        events: quarantined replies.
        logs: by name, what the method logged, in the order of rounds.
        diverged: empty, or why the stage stopped early.
    """

    state: State
    points: list[Point]
    costs: list[Cost]
    events: list[dict[str, Any]]
    logs: Mapping[str, list[Any]]
    diverged: str = ""


class Logs:
    """Keeps what methods log: the entries ``log/…`` of each round's scratch, as nested lists of numbers."""

    def __init__(self) -> None:
        self.entries: dict[str, list[Any]] = {}

    def observe(self, phase: str, done: int, state: State) -> None:
        """Take this round's entries."""
        for name, tensor in state.scratch.items():
            if name.startswith(LOG):
                self.entries.setdefault(name.removeprefix(LOG), []).append(_finite(tensor.tolist()))

    def dump(self) -> Any:
        """As plain data."""
        return self.entries

    def load(self, data: Any) -> None:
        """The inverse of ``dump``."""
        self.entries = dict(data)


def _finite(value: Any) -> Any:
    """JSON has no infinities; a huge number says the same in a log."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return 1e300 if math.isnan(value) else max(-1e300, min(1e300, value))


class _Last:
    """Remembers the last good state: a round that diverges leaves none."""

    def __init__(self, state: State) -> None:
        self.state = state

    def observe(self, phase: str, done: int, state: State) -> None:
        self.state = state


@dataclass(frozen=True, slots=True)
class _Resumed:
    """A journal that has been read: reading it again would report its damage again."""

    journal: DiskJournal
    saved: Saved | None

    def load(self) -> Saved | None:
        return self.saved

    def save(self, phase: str, done: int, state: State) -> None:
        self.journal.save(phase, done, state)


class Chart(Companion, Protocol):
    """What watches the model of a stage: a ``Curve``, or nothing."""

    points: list[Point]

    def observe(self, phase: str, done: int, state: State) -> None:
        """Look at the state after a round."""
        ...


class Stage:
    """One stage in its folder.

    Args:
        folder: of this stage alone.
        owner: digest of everything that determines the result.
        meter, quorum: of the federation that the stage runs on, new for the stage.
        curve: draws the stage's curve.
    """

    def __init__(self, folder: Path, *, owner: str, meter: Metered, quorum: Quorum, curve: Chart) -> None:
        self._folder = folder
        self._owner = owner
        self._meter, self._quorum, self._curve = meter, quorum, curve
        self._logs = Logs()
        companions: dict[str, Companion] = {
            "curve": curve,
            "meter": meter,
            "quorum": quorum,
            "logs": self._logs,
        }
        self._journal = DiskJournal(folder / "journal", owner=owner, companions=companions)

    def run(self, phases: Sequence[Phase], federation: Federation, start: State, *, seed: int) -> Outcome:
        """Drive the phases from ``start``, continuing after the last good round if there is one.

        The meter observes first: evaluation is not part of a round's time.
        """
        saved = self._saved(phases)
        if saved is None:
            self._curve.observe("start", 0, start)
        last, diverged = _Last(saved[2] if saved else start), ""
        observers: list[Observer] = [self._meter.observe, self._quorum.observe, self._logs.observe]
        observers += [self._curve.observe, last.observe]
        try:
            journal = _Resumed(self._journal, saved)
            state = drive(phases, federation, start, seed=seed, journal=journal, observers=observers)
        except Diverged as error:
            state, diverged = last.state, str(error)
            self._quorum.observe("diverged", 0, state)
            log.warning("%s: diverged: %s", self._folder.name, error)
        outcome = Outcome(
            State(state.params, state.buffers, state.memory),
            self._curve.points,
            self._meter.phases,
            self._quorum.events,
            self._logs.entries,
            diverged,
        )
        self._keep(outcome)
        return outcome

    def _saved(self, phases: Sequence[Phase]) -> Saved | None:
        saved = self._journal.load()
        if saved and all(phase.name != saved[0] for phase in phases):
            raise JournalError(
                f"{self._folder}: the journal is in phase {saved[0]!r}, which this version of Letheon does not have; "
                "remove the folder to run the stage from its start, or resume with the version that wrote it"
            )
        return saved

    def _keep(self, outcome: Outcome) -> None:
        model = save_state(outcome.state, {"owner": self._owner})
        write(self._folder / "model.safetensors", model)
        result = {
            "owner": self._owner,
            "digest": tree.digest(outcome.state.params | outcome.state.buffers),
            "curve": [asdict(point) for point in outcome.points],
            "costs": [asdict(cost) for cost in outcome.costs],
            "events": outcome.events,
            "logs": outcome.logs,
            "diverged": outcome.diverged,
        }
        write_sealed(self._folder / "result.json", result)  # last: a stage is complete once this is there
        self._journal.clear()


def finished(folder: Path, owner: str) -> Outcome | None:
    """The outcome of a complete stage, or None if there is none of this owner; damaged ones are named and redone."""
    if not (folder / "result.json").is_file():
        return None
    try:
        result = read_sealed(folder / "result.json")
        state, metadata = load_state(folder / "model.safetensors")
        if result.get("owner") != owner or metadata.get("owner") != owner:
            others = f"{result.get('owner')}, its model to {metadata.get('owner')}"
            raise JournalError(f"belongs to {others}, not to {owner}")
        if result.get("digest") != tree.digest(state.params | state.buffers):
            raise JournalError("model.safetensors is not the model that result.json speaks of")
        return _outcome(state, result)
    except JournalError as error:
        log.warning("%s: %s; the stage has to be run again", folder.name, error)
        return None


def _outcome(state: State, result: Mapping[str, Any]) -> Outcome:
    try:
        costs, points = [Cost(**row) for row in result["costs"]], points_of(result["curve"])
        return Outcome(state, points, costs, result["events"], result["logs"], result["diverged"])
    except (KeyError, TypeError) as error:
        raise JournalError(f"result.json was written by another version of Letheon ({error!r})") from error
