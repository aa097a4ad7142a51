"""Where a run stands, and how to show it: live in a terminal, line by line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from letheon.cli.interrupt import Stop
from letheon.cli.terminal import is_plain, say
from letheon.cli.units import clock

if TYPE_CHECKING:
    from letheon.curve import Point
    from letheon.stage import Outcome

EVERY = 10
"""Without a terminal, one line in so many rounds."""
NAME_WIDTH = 30

STOPPING = "stopping after this round; Ctrl-C again stops at once"

Stages = Sequence[tuple[str, Mapping[str, int]]]
"""Each stage with the rounds of its phases, in the order in which they run."""


class Position:
    """Where a run stands among its stages, and how fast it moves.

    Args:
        stages: what there is to do.
        now: a clock in seconds.
    """

    def __init__(self, stages: Stages, now: Callable[[], float] = time.monotonic) -> None:
        self._stages = {name: dict(phases) for name, phases in stages}
        self._before: dict[str, int] = {}
        self.total = 0
        for name, phases in self._stages.items():
            self._before[name] = self.total
            self.total += sum(phases.values())
        self._now = now
        self._born = now()
        self._worked, self._started, self._stage_started = 0, 0.0, 0.0
        self.stage, self.done, self.in_stage = "", 0, 0
        self.point: Point | None = None

    def start(self, stage: str) -> None:
        """A stage begins, or is continued."""
        self.stage, self.point, self.in_stage = stage, None, 0
        self.done = self._before[stage]
        self._stage_started = self._now()
        self._started = self._started or self._stage_started

    def reach(self, point: Point) -> None:
        """A round is done."""
        self.point = point
        phases = self._stages[self.stage]
        if point.phase in phases:
            names = list(phases)
            self.in_stage = sum(phases[name] for name in names[: names.index(point.phase)]) + point.round
            self._worked += 1
        self.done = self._before[self.stage] + self.in_stage

    def finish(self, stage: str) -> None:
        """A stage is complete, whatever number of rounds it took."""
        self.stage = stage
        self.done = self._before[stage] + self.rounds

    @property
    def rounds(self) -> int:
        """Rounds of the stage."""
        return sum(self._stages[self.stage].values())

    @property
    def phase_rounds(self) -> int:
        """Rounds of the phase."""
        return self._stages[self.stage].get(self.point.phase, 0) if self.point else 0

    @property
    def place(self) -> str:
        """``3/11``, padded."""
        number, count = list(self._stages).index(self.stage) + 1, len(self._stages)
        return f"{number:>{len(str(count))}}/{count}"

    @property
    def title(self) -> str:
        """The stage as it is shown: ``lethe: unlearn``."""
        label, dot, kind = self.stage.rpartition(".")
        return short(label, f": {kind}") if dot else kind

    @property
    def label(self) -> str:
        """Whose stage it is, for where the phase is shown beside it."""
        return short(self.stage.rpartition(".")[0] or self.stage, "")

    @property
    def width(self) -> int:
        """Of the longest title."""
        return max(min(NAME_WIDTH, len(name) + 1) for name in self._stages)

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self._now() - self._born

    @property
    def stage_seconds(self) -> float:
        """Seconds since the stage began."""
        return self._now() - self._stage_started

    @property
    def left(self) -> float | None:
        """Seconds left at the pace so far; None before the first round."""
        if not self._worked:
            return None
        return (self._now() - self._started) / self._worked * (self.total - self.done)


def short(label: str, end: str) -> str:
    """A title of at most ``NAME_WIDTH`` characters; a long label loses its tail."""
    room = NAME_WIDTH - len(end)
    return (label if len(label) <= room else label[: room - 1] + "…") + end


def scores(point: Point) -> str:
    """KR and MU in columns."""
    return f"KR {point.kr:5.1f} %  MU {point.mu:5.1f} %"


class Lines:
    """A listener that prints a line for each stage, and one in ``EVERY`` rounds."""

    def __init__(self, console: Console, position: Position, stop: Stop) -> None:
        self._console = console
        self._position = position
        self._stop = stop
        self._width = position.width

    def stage_started(self, stage: str, rounds: int) -> None:
        """Take note. From now on the run stops between rounds only."""
        self._position.start(stage)
        self._stop.waits = True
        self._stop.check()

    def point_reached(self, stage: str, point: Point) -> None:
        """Say where the run stands, now and then."""
        at = self._position
        at.reach(point)
        self._stop.check()
        if at.in_stage and at.in_stage % EVERY == 0 and at.in_stage < at.rounds:
            name, left = f"{at.place}  {at.title:<{self._width}}", f"{clock(at.left or 0)} left"
            self.say(f"{name}  round {at.in_stage:>3}/{at.rounds}  {scores(point)}  {left}")

    def stage_finished(self, stage: str, outcome: Outcome, *, cached: bool) -> None:
        """One line for the stage; a second one if it diverged."""
        at = self._position
        at.finish(stage)
        rounds = sum(1 for point in outcome.points if point.phase != "start")
        counted = f"{rounds:>4} round{'s' if rounds != 1 else ' '}"
        took = "done before" if cached else clock(at.stage_seconds)
        self.say(f"{at.place}  {at.title:<{self._width}}  {counted}  {scores(outcome.points[-1])}  {took}")
        if outcome.diverged:
            self.say(f"diverged: {outcome.diverged}", style="yellow")
        self._stop.waits = False
        self._stop.check()

    def say(self, text: str, *, style: str = "") -> None:
        """One line."""
        say(self._console, text, style=style)


class Quiet(Lines):
    """A listener that only knows where the run stands."""

    def say(self, text: str, *, style: str = "") -> None:
        pass


class Display(Lines):
    """A listener with two lines that move at the bottom of the terminal; finished stages stay above them."""

    def __init__(self, console: Console, position: Position, stop: Stop) -> None:
        super().__init__(console, position, stop)
        self._spinner = Spinner("dots")

    def point_reached(self, stage: str, point: Point) -> None:
        self._position.reach(point)
        self._stop.check()

    def __rich__(self) -> RenderableType:
        where, columns = Table.grid(padding=(0, 1)), self._where()
        where.add_column()
        for column in columns:
            where.add_column(no_wrap=not column.no_wrap)  # a text that is cut needs a column that gives way
        where.add_row(self._spinner, *columns)
        return Group(where, self._how_far()) if self._position.stage else where

    def _where(self) -> list[Text]:
        """Columns of the upper line; where there is little room, the label gives way."""
        at = self._position
        if self._stop.signal:
            return [Text(STOPPING, style="yellow")]
        if not at.stage:
            return [Text("preparing the data")]
        columns = [Text(f"stage {at.place.strip()} ")]
        columns.append(Text(at.label, style="bold", no_wrap=True, overflow="ellipsis"))
        if at.point is not None and at.phase_rounds:
            columns.append(Text(f" {at.point.phase} {at.point.round}/{at.phase_rounds} "))
        if at.point is not None:
            columns.append(Text(scores(at.point), style="cyan"))
        return columns

    def _how_far(self) -> RenderableType:
        at = self._position
        left = "" if at.left is None else f"  about {clock(at.left)} left"
        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(1, at.total), completed=at.done, width=28)
        line.add_row(" ", bar, Text(f"{at.done}/{at.total} rounds  {clock(at.elapsed)}{left}"))
        return line


@contextmanager
def following(console: Console, position: Position, stop: Stop, *, quiet: bool) -> Iterator[Lines]:
    """A listener that suits the console, shown while this is open."""
    if quiet:
        yield Quiet(console, position, stop)
    elif is_plain():
        yield Lines(console, position, stop)
    else:
        display = Display(console, position, stop)
        with Live(display, console=console, refresh_per_second=8, transient=True):
            yield display


@contextmanager
def waiting(console: Console, text: str, *, quiet: bool) -> Iterator[None]:
    """A spinner in a terminal, for what has no rounds to count."""
    if quiet or is_plain():
        yield
    else:
        with console.status(text, spinner="dots"):
            yield
