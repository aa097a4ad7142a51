from __future__ import annotations

import csv
import io
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from letheon import pipeline, tree
from letheon.experiment import Experiment

METHODS = ["retrain", "lethe", "fine-tuning", "not", "puf", "noise", "detach"]
Command = Callable[..., tuple[int, str, str]]


def test_a_run_prints_one_json_row_for_each_method(first_run: tuple[int, str, str]) -> None:
    rows = json.loads(first_run[1])
    assert [row["method"] for row in rows] == METHODS
    assert {row["seed"] for row in rows} == {3}
    assert all(0 <= row["mu_low"] <= row["mu"] <= row["mu_high"] <= 100 for row in rows)


def test_a_run_is_written_where_file_seed_and_digest_say(place: Path, run_folder: Path) -> None:
    digest = Experiment.load(place / "tiny.toml", ["seed=3"]).digest
    assert run_folder.name == f"tiny-seed3-{digest[:8]}"
    assert (run_folder / "report.html").is_file()


def test_progress_in_a_pipe_is_one_plain_line_for_each_stage(first_run: tuple[int, str, str]) -> None:
    code, out, err = first_run
    assert code == 0
    assert "\x1b" not in out + err
    lines = err.splitlines()
    assert lines[0] == "digits, tiny"
    assert lines[2].split()[:4] == ["1/15", "origin", "3", "rounds"]
    assert [line.split()[0] for line in lines[2:]] == [f"{i}/15" for i in range(1, 16)]
    assert all("KR" in line and "MU" in line for line in lines[2:])


def test_the_table_of_a_finished_run_ends_with_the_path_of_the_report(
    place: Path, run_folder: Path, command: Command
) -> None:
    words = ("run", place / "tiny.toml", "--set", "seed=3", "--out", run_folder, "--resume", "--quiet")
    code, out, err = command(*words)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"Report: {run_folder / 'report.html'}"
    assert all(name in out for name in METHODS)
    assert "\x1b" not in out


def test_compare_gives_the_rows_that_the_run_gave(
    run_folder: Path, command: Command, first_run: tuple[int, str, str]
) -> None:
    assert json.loads(command("compare", run_folder, "--json")[1]) == json.loads(first_run[1])


def test_compare_knows_every_format(
    run_folder: Path, command: Command, first_run: tuple[int, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("letheon.report.table.compare_rows", lambda runs: json.loads(first_run[1]) if runs else [])
    assert all(name in command("compare", run_folder)[1] for name in METHODS)
    rows = list(csv.DictReader(io.StringIO(command("compare", run_folder, "--csv")[1])))
    assert [row["method"] for row in rows] == METHODS
    assert command("compare", run_folder, "--markdown")[1].startswith("|")


def test_report_is_written_where_it_was_asked_for(run_folder: Path, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "own.html"
    assert command("report", run_folder, "--out", path) == (0, f"{path}\n", "")
    assert "</html>" in path.read_text()


SHOW = """
import sys, time
from types import SimpleNamespace
from letheon.cli.interrupt import Stop
from letheon.cli.progress import Position, following
from letheon.cli.terminal import stderr
with following(stderr(), Position([("origin", {"train": 2})]), Stop(), quiet=False) as listener:
    listener.stage_started("origin", 2)
    point = SimpleNamespace(phase="train", round=1, kr=1.0, mu=2.0)
    listener.point_reached("origin", point)
    time.sleep(0.3)
    listener.stage_finished("origin", SimpleNamespace(points=[point], diverged=""), cached=False)
"""


def in_terminal(**settings: str) -> bytes:
    """Everything that a short run writes to its terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80"} | settings
    line = [sys.executable, "-c", SHOW]
    process = subprocess.Popen(line, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    assert process.wait() == 0, seen
    return seen


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other end is closed
        return b""


def test_a_terminal_sees_a_live_display() -> None:
    seen = in_terminal()
    assert b"\x1b[?25l" in seen  # the cursor is hidden while lines move
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l")  # and back in the end
    assert b"1/2 rounds" in seen


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colours_sees_plain_lines(settings: dict[str, str]) -> None:
    seen = in_terminal(**settings)
    assert b"\x1b" not in seen
    assert b"1/1  origin      1 round   KR   1.0 %  MU   2.0 %  0:00" in seen


LONG = """
clients = 4
train_rounds = 25
continue_rounds = 2
compare = [{name = "retrain", rounds = 20}]
task = {name = "digits"}
request = {min_forget = 50, trigger = {size = 2, margin = 0}}
method = {name = "fine-tuning", rounds = 2}
"""


def interrupted(process: subprocess.Popen[str], stage: Path, number: int) -> str:
    """Stop a run as soon as ``stage`` has done some rounds; returns what it says on stderr."""
    deadline = time.monotonic() + 60
    while len(list(stage.glob("journal/round-*"))) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out == ""
    assert process.returncode == 128 + number, err
    return err


def test_a_run_that_was_stopped_twice_ends_with_the_models_of_an_unbroken_one(
    tmp_path: Path, begin: Callable[..., subprocess.Popen[str]], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long.toml").write_text(LONG)
    experiment = Experiment.load(tmp_path / "long.toml")
    owners, stages = pipeline.owners(experiment), tmp_path / "out" / "stages"
    words = ["run", "long.toml", "--out", "out", "--json"]
    for name, number in (("origin", signal.SIGINT), ("retrain.unlearn", signal.SIGTERM)):
        stage = stages / pipeline.stage_folder(name, owners[name])
        err = interrupted(begin(tmp_path, *words), stage, number)
        assert not (stage / "result.json").exists()  # it was stopped in the middle
        assert "Traceback" not in err
        again = shlex.split(err.splitlines()[-1])
        assert again == ["letheon", "run", "long.toml", "--out", "out", "--json", "--resume"]
        words = again[1:]
    monkeypatch.chdir(tmp_path)
    code, out, _ = command(*words)
    assert code == 0
    assert [row["method"] for row in json.loads(out)] == ["retrain", "fine-tuning", "detach"]

    broken = pipeline.load(tmp_path / "out")
    whole = pipeline.run(experiment, tmp_path / "whole")
    for label in experiment.methods:
        for one, other in ((broken.unlearned, whole.unlearned), (broken.continued, whole.continued)):
            assert tree.digest(one[label].state.params) == tree.digest(other[label].state.params)
            assert one[label].points == other[label].points
