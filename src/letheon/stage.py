"""A stage of a run: phases driven to the end, cached under the digest of all that went into it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from letheon import tree
from letheon.curve import Curve, Point, points_of
from letheon.errors import Diverged, JournalError
from letheon.files import write, write_json
from letheon.journal import Companion, DiskJournal, load_state, save_state
from letheon.methods.lethe import COLUMNS, alignment_log
from letheon.middleware import Cost, Metered, Quorum
from letheon.phase import Observer, Phase, State, drive
from letheon.work import Federation

log = logging.getLogger(__name__)


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
    """

    state: State
    points: list[Point]
    costs: list[Cost]
    events: list[dict[str, Any]]
    alignments: list[list[list[float]]]
    diverged: str = ""


class Alignments:
    """Keeps the alignment log of every rectification round."""

    def __init__(self) -> None:
        self.rounds: list[list[list[float]]] = []

    def observe(self, phase: str, done: int, state: State) -> None:
        """Take the log out of the state, if there is a new one."""
        rows = alignment_log(state)
        if rows is not None and phase == "rectify":
            self.rounds.append([[_finite(value) for value in row] for row in rows.tolist()])

    def dump(self) -> Any:
        """As plain data."""
        return self.rounds

    def load(self, data: Any) -> None:
        """The inverse of ``dump``."""
        self.rounds = data


def _finite(value: float) -> float:
    """JSON has no infinities; a huge number says the same in a log."""
    return max(-1e300, min(1e300, value)) if value == value else 1e300


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
        observers: list[Observer] = [self._meter.observe, self._quorum.observe, self._alignments.observe]
        observers.append(self._curve.observe)
        if self._journal.load() is None:
            self._curve.observe("start", 0, start)
        diverged = ""
        try:
            state = drive(phases, federation, start, seed=seed, journal=self._journal, observers=observers)
        except Diverged as error:
            saved = self._journal.load()
            state, diverged = (saved[2] if saved else start), str(error)
            log.warning("%s: diverged: %s", self._folder.name, error)
        outcome = Outcome(
            State(state.params, state.buffers, state.memory),
            self._curve.points,
            self._meter.phases,
            self._quorum.events,
            self._alignments.rounds,
            diverged,
        )
        self._keep(outcome)
        return outcome

    def _keep(self, outcome: Outcome) -> None:
        model = save_state(outcome.state, {"owner": self._owner})
        write(self._folder / "model.safetensors", model)
        result = {
            "owner": self._owner,
            "digest": tree.digest(outcome.state.params | outcome.state.buffers),
            "curve": [asdict(point) for point in outcome.points],
            "costs": [asdict(cost) for cost in outcome.costs],
            "events": outcome.events,
            "alignments": {"columns": list(COLUMNS), "rounds": outcome.alignments},
            "diverged": outcome.diverged,
        }
        write_json(self._folder / "result.json", result)  # last: a stage is complete once this is there
        self._journal.clear()


def finished(folder: Path, owner: str) -> Outcome | None:
    """The outcome of a complete stage, or None if there is none of this owner; damaged ones are named and redone."""
    path = folder / "result.json"
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text())
        state, metadata = load_state(folder / "model.safetensors")
    except (JournalError, json.JSONDecodeError) as error:
        log.warning("%s: %s; the stage is run again", folder.name, error)
        return None
    if result.get("owner") != owner or metadata.get("owner") != owner:
        log.warning("%s: belongs to %s, not to %s; the stage is run again", folder.name, result.get("owner"), owner)
        return None
    costs = [Cost(**row) for row in result["costs"]]
    rounds = result["alignments"]["rounds"]
    return Outcome(state, points_of(result["curve"]), costs, result["events"], rounds, result["diverged"])

