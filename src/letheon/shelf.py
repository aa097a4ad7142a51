"""Where the stages of a run stand: each is taken from there if it is complete, or else driven to its end and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from letheon.curve import Curve, Point
from letheon.journal import DiskJournal
from letheon.life import stage_folder, stage_seed
from letheon.middleware import Metered, Quorum
from letheon.phase import Phase, State
from letheon.stage import Outcome, Stage, finished
from letheon.work import Federation

Stack = Callable[[Federation], Federation]


class Listener(Protocol):
    """Follows a run, to show progress. ``letheon.cli`` has one for terminals."""

    def stage_started(self, stage: str, rounds: int) -> None:
        """A stage of so many rounds begins, or is continued."""
        ...

    def point_reached(self, stage: str, point: Point) -> None:
        """A round has been evaluated."""
        ...

    def stage_finished(self, stage: str, outcome: Outcome, *, cached: bool) -> None:
        """A stage is complete; ``cached``: it was complete before."""
        ...


class Silent:
    """A listener that shows nothing."""

    def stage_started(self, stage: str, rounds: int) -> None:
        """Nothing."""

    def point_reached(self, stage: str, point: Point) -> None:
        """Nothing."""

    def stage_finished(self, stage: str, outcome: Outcome, *, cached: bool) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """The stages of one run.

    Attributes:
        place: the folder that holds theirs.
        runtime: what they run on; each is metered and guarded on its own.
        evaluate: gives the point of a state, after every round.
        listener: hears of each stage.
        seed: of the run.
        minimum: usable replies that a round needs for each of its works.
        outlier_factor: of ``Quorum``.
    """

    place: Path
    runtime: Federation
    evaluate: Callable[[str, int, State], Point]
    listener: Listener
    seed: int
    minimum: int = 1
    outlier_factor: float | None = None

    def folder(self, name: str, owner: str) -> Path:
        """Of one stage."""
        return self.place / stage_folder(name, owner)

    def stage(self, name: str, owner: str, phases: Sequence[Phase], start: State, *, stack: Stack) -> Outcome:
        """The outcome of a stage.

        Args:
            name: of the stage.
            owner: digest of everything that determines the outcome.
            phases: to be driven, if it is not there.
            start: the state to drive them from.
            stack: what wraps the federation, such as the exclusion of an admitted request.
        """
        folder = self.folder(name, owner)
        done = finished(folder, owner)
        if done is not None:
            DiskJournal(folder / "journal", owner=owner).clear()  # a kill may have come between result and clearing
            self.listener.stage_finished(name, done, cached=True)
            return done
        self.listener.stage_started(name, sum(phase.rounds for phase in phases))
        meter = Metered(self.runtime)
        quorum = Quorum(meter, minimum=self.minimum, outlier_factor=self.outlier_factor)
        curve = Curve(self.evaluate, lambda point: self.listener.point_reached(name, point))
        stage = Stage(folder, owner=owner, meter=meter, quorum=quorum, curve=curve)
        outcome = stage.run(phases, stack(quorum), start, seed=stage_seed(self.seed, name))
        self.listener.stage_finished(name, outcome, cached=False)
        return outcome
