"""A stage of a run: phases driven to the end, cached under the digest of all that went into it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from letheon import tree
from letheon.curve import Curve, Point, points_of
from letheon.errors import Diverged, JournalError
from letheon.files import read_sealed, write, write_sealed
from letheon.journal import Companion, DiskJournal, load_state, save_state
from letheon.methods.lethe import AMPLIFIED, alignment_log
from letheon.methods.rectify import COLUMNS
from letheon.middleware import Cost, Metered, Quorum
from letheon.phase import Observer, Phase, State, drive
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
        alignments: for each rectification round, the rows of the alignment log (columns ``COLUMNS``).
        diverged: empty, or why the stage stopped early.
        amplified: steps taken in Lethe's ascent and the mean loss reached, in nats; empty without one.
    """

    state: State
    points: list[Point]
    costs: list[Cost]
    events: list[dict[str, Any]]
    alignments: list[list[list[float]]]
    diverged: str = ""
    amplified: tuple[float, ...] = ()


class Alignments:
    """Keeps the alignment log of every rectification round, and what the ascent before them reached."""

    def __init__(self) -> None:
        self.rounds: list[list[list[float]]] = []
        self.amplified: tuple[float, ...] = ()

    def observe(self, phase: str, done: int, state: State) -> None:
        """Take the log out of the state, if there is a new one."""
        if phase == "amplify" and AMPLIFIED in state.scratch:
            self.amplified = tuple(_finite(value) for value in state.scratch[AMPLIFIED].tolist())
        rows = alignment_log(state)
        if rows is not None and phase == "rectify":
            self.rounds.append([[_finite(value) for value in row] for row in rows.tolist()])

    def dump(self) -> Any:
        """As plain data."""
        return {"rounds": self.rounds, "amplified": list(self.amplified)}

    def load(self, data: Any) -> None:
        """The inverse of ``dump``."""
        self.rounds, self.amplified = data["rounds"], tuple(data["amplified"])


def _finite(value: float) -> float:
    """JSON has no infinities; a huge number says the same in a log."""
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


class Stage:
    """One stage in its folder.

    Args:
        folder: of this stage alone.
        owner: digest of everything that determines the result.
        meter, quorum: of the federation that the stage runs on, new for the stage.
        curve: draws the stage's curve.
    """

    def __init__(self, folder: Path, *, owner: str, meter: Metered, quorum: Quorum, curve: Curve) -> None:
        self._folder = folder
        self._owner = owner
        self._meter, self._quorum, self._curve = meter, quorum, curve
        self._alignments = Alignments()
        companions: dict[str, Companion] = {
            "curve": curve,
            "meter": meter,
            "quorum": quorum,
            "alignments": self._alignments,
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
        observers: list[Observer] = [self._meter.observe, self._quorum.observe, self._alignments.observe]
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
            self._alignments.rounds,
            diverged,
            self._alignments.amplified,
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
            "alignments": {
                "columns": list(COLUMNS),
                "rounds": outcome.alignments,
                "amplified": list(outcome.amplified),
            },
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
        log.warning("%s: %s; the stage is run again", folder.name, error)
        return None


def _outcome(state: State, result: Mapping[str, Any]) -> Outcome:
    try:
        costs, points = [Cost(**row) for row in result["costs"]], points_of(result["curve"])
        logged = result["alignments"]
        events, diverged = result["events"], result["diverged"]
        return Outcome(state, points, costs, events, logged["rounds"], diverged, tuple(logged["amplified"]))
    except (KeyError, TypeError) as error:
        raise JournalError(f"result.json was written by another version of Letheon ({error!r})") from error
