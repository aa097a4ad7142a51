from __future__ import annotations

import os
import signal
import subprocess
import sys
from io import StringIO

import pytest
from rich.console import Console

from letheon.cli.interrupt import Stop, Stopped, stoppable
from letheon.cli.progress import NAME_WIDTH, Display, Lines, Position, short
from letheon.cli.run import resume_command
from letheon.cli.terminal import is_plain
from letheon.cli.units import amount, clock, duration
from letheon.curve import Point
from letheon.phase import State
from letheon.stage import Outcome

STAGES = [
    ("origin", {"train": 20}),
    ("lethe.unlearn", {"amplify": 1, "rectify": 2}),
    ("lethe.continue", {"continue": 4}),
]


class Clock:
    """Goes on when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def point(phase: str, round: int) -> Point:
    return Point(phase, round, kr=12.5, mu=80.0, forget_loss=1.0, forget_bits="", test_correct=(), attack=None)


def outcome(*points: Point, diverged: str = "") -> Outcome:
    return Outcome(State({}), list(points), [], [], {}, diverged)


def test_the_time_left_is_the_rounds_left_at_the_pace_of_the_rounds_done_now() -> None:
    now = Clock()
    at = Position(STAGES, now)
    assert at.total == 27
    at.start("origin")
    assert at.left is None
    for round in range(11, 16):  # resumed after round 10: those rounds took no time now
        now.now += 2.0
        at.reach(point("train", round))
    assert at.done == 15
    assert at.left == pytest.approx(2.0 * 12)


def test_rounds_of_earlier_phases_and_stages_count_as_done() -> None:
    at = Position(STAGES, Clock())
    at.finish("origin")
    at.start("lethe.unlearn")
    at.reach(point("start", 0))
    assert at.done == 20
    at.reach(point("rectify", 1))
    assert (at.done, at.in_stage, at.rounds, at.phase_rounds, at.place) == (22, 2, 3, 2, "2/3")


def test_a_stage_that_ends_early_leaves_no_rounds_behind() -> None:
    at = Position(STAGES, Clock())
    at.start("origin")
    at.reach(point("train", 3))
    at.finish("origin")
    assert at.done == 20


def lines(*, until: int) -> list[str]:
    file = StringIO()
    shown = Lines(Console(file=file, force_terminal=False, width=80), Position(STAGES, Clock()), Stop())
    shown.stage_started("origin", 20)
    points = [point("train", round) for round in range(1, until + 1)]
    for reached in points:
        shown.point_reached("origin", reached)
    shown.stage_finished("origin", outcome(point("start", 0), *points, diverged="all is NaN"), cached=False)
    shown.stage_finished("lethe.unlearn", outcome(point("rectify", 2)), cached=True)
    return file.getvalue().splitlines()


def test_plain_progress_says_something_every_tenth_round_and_at_the_end_of_a_stage() -> None:
    tenth, done, diverged, cached = lines(until=20)
    assert tenth == "1/3  origin           round  10/20  KR  12.5 %  MU  80.0 %  0:00 left"
    assert done == "1/3  origin             20 rounds  KR  12.5 %  MU  80.0 %  0:00"
    assert diverged == "diverged: all is NaN"
    assert cached == "2/3  lethe: unlearn      1 round   KR  12.5 %  MU  80.0 %  done before"


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_display_fits_the_terminal_and_names_stage_phase_and_scores(width: int) -> None:
    long = "lethe(gamma.kind=constant, gamma.value=0.3, adapter.cap=None)"
    at = Position([("origin", {"train": 300}), (f"{long}.unlearn", {"rectify": 100})], Clock())
    stop = Stop()
    shown = Display(Console(file=StringIO(), width=width), at, stop)
    shown.stage_started(f"{long}.unlearn", 100)
    shown.point_reached(f"{long}.unlearn", point("rectify", 7))
    console = Console(file=StringIO(), width=width)
    with console.capture() as seen:
        console.print(shown)
    text = seen.get()
    assert all(len(line) <= width for line in text.splitlines())
    assert len(text.splitlines()) == 2
    for part in (
        "stage 2/2",
        "lethe(gamma.kind=",
        "rectify 7/100",
        "KR  12.5 %",
        "MU  80.0 %",
        "307/400 rounds",
        "left",
    ):
        assert part in text
    stop.signal = signal.SIGINT
    with console.capture() as seen:
        console.print(shown)
    assert "Ctrl-C again stops at once" in seen.get()


def test_a_long_label_loses_its_tail_and_keeps_the_kind_of_stage() -> None:
    title = short("lethe(gamma.kind=constant, gamma.value=0.3)", ": continue")
    assert len(title) == NAME_WIDTH
    assert title.endswith("…: continue")
    assert short("lethe", ": continue") == "lethe: continue"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_settings_of_the_environment_turn_the_live_display_off(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert not is_plain()
    monkeypatch.setenv(name, value)
    assert is_plain()


def test_the_command_to_resume_repeats_what_was_typed() -> None:
    words = ["run", "my file.toml", "--set", "seed=1", "--out", "there"]
    assert resume_command(words) == "letheon run 'my file.toml' --set seed=1 --out there --resume"
    assert resume_command([*words, "--resume"]) == resume_command(words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_raised_as_stopped_and_the_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped, stoppable("", notice="") as stop:
        os.kill(os.getpid(), number)
    assert stopped.value.code == 128 + number
    assert stop.signal == number
    assert signal.getsignal(number) is before


def test_between_two_rounds_is_where_a_run_stops(capfd: pytest.CaptureFixture[str]) -> None:
    with stoppable("", notice="soon\n") as stop:
        shown = Lines(Console(file=StringIO()), Position(STAGES, Clock()), stop)
        shown.stage_started("origin", 20)
        os.kill(os.getpid(), signal.SIGINT)
        assert capfd.readouterr().err == "soon\n"
        with pytest.raises(Stopped):
            shown.point_reached("origin", point("train", 1))


def test_between_two_stages_a_run_stops_at_once() -> None:
    with stoppable("", notice="") as stop:
        shown = Lines(Console(file=StringIO()), Position(STAGES, Clock()), stop)
        shown.stage_started("origin", 20)
        shown.stage_finished("origin", outcome(point("train", 20)), cached=False)
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_signal_ends_the_process_at_once_with_its_last_words() -> None:
    code = (
        "import os, signal\nfrom letheon.cli.interrupt import Stopped, stoppable\n"
        "with stoppable('last words\\n', notice=''):\n"
        "    try: os.kill(os.getpid(), signal.SIGINT)\n"
        "    except Stopped: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", "last words\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.00 kB"),
        (4288, "4.29 kB"),
        (13928, "13.9 kB"),
        (482_000, "482 kB"),
        (1e21, "1000 EB"),
    ],
)
def test_amounts_have_three_digits_and_a_decimal_prefix(value: float, text: str) -> None:
    assert amount(value, "B") == text


def test_times_are_short() -> None:
    assert [clock(s) for s in (0, 7.4, 59.6, 750, 3723)] == ["0:00", "0:07", "1:00", "12:30", "1:02:03"]
    assert [duration(s) for s in (0.41, 12, 240, 7800)] == ["0.4 s", "12 s", "4 min", "2 h 10 min"]
