"""SIGKILL at any moment: a resumed run ends bit-identical to an unbroken one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from letheon import files, pipeline
from letheon.curve import Point
from letheon.experiment import Experiment
from letheon.methods.fine_tuning import FineTuning
from letheon.pipeline import Run
from letheon.tasks.target import Target
from letheon.tasks.vision import Digits

Findings = dict[str, Any]
Find = Callable[[Run], Findings]
Start = Callable[[Callable[[], object]], int]
Killer = Callable[[Path, bytes], None]

KILLED = -signal.SIGKILL
WRITES = 31
"""Of a whole run: experiment.json, population.json, 15 rounds, a model and a result for each of 7 stages."""


STAGES = ["origin"]
STAGES += [f"{label}.{part}" for label in ("retrain", "lethe", "detach") for part in ("continue", "unlearn")]
TABLE = """
clients = 3
train_rounds = 2
continue_rounds = 2
task = {name = "digits", norm = true}
method = {name = "lethe", rounds = 2, restore_rounds = 1}
request = {min_forget = 20, trigger = {size = 2, margin = 0}}
local = {lr = 0.05}
"""
"""The same experiment as the fixture's."""


def ended(pid: int) -> int:
    """The exit status of a child, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.1.tmp")


def half_way(path: Path, content: bytes) -> None:
    """Dies with half of the content in the temporary file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary(path).write_bytes(content[: len(content) // 2])
    kill_self()


def before_the_rename(path: Path, content: bytes) -> None:
    """Dies when all of the content is in the temporary file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary(path).write_bytes(content)
    kill_self()


def after_the_rename(path: Path, content: bytes) -> None:
    """Dies when the file has its name, before anything is tidied up."""
    files.write(path, content)
    kill_self()


def run_with_death(experiment: Experiment, folder: Path, killer: Killer, *, at: int) -> None:
    """Runs, resuming if need be, and dies in the write number ``at``, counted from 1."""
    whole, count = files.write, 0

    def counted(path: Path, content: bytes) -> None:
        nonlocal count
        count += 1
        if count == at:
            replace_write(whole)
            killer(path, content)
        whole(path, content)

    def replace_write(write: Callable[[Path, bytes], None]) -> None:
        for module in (files, sys.modules["letheon.journal"], sys.modules["letheon.stage"]):
            module.write = write  # type: ignore[attr-defined]

    replace_write(counted)
    pipeline.run(experiment, folder, resume=True, workers=1)


def is_half_kept(folder: Path) -> bool:
    """Whether a stage has its model but not its result: both are then written again."""
    return any(not model.with_name("result.json").exists() for model in folder.rglob("model.safetensors"))


@pytest.mark.parametrize(
    ("killer", "at"),
    [
        pytest.param(half_way, 2, id="half_way"),
        pytest.param(before_the_rename, 2, id="before_the_rename"),
        pytest.param(after_the_rename, 1, id="after_the_rename"),
    ],
)
def test_a_run_that_dies_in_every_single_write_ends_as_if_nothing_had_happened(
    *, experiment: Experiment, tmp_path: Path, expected: Findings, findings: Find, start: Start, killer: Killer, at: int
) -> None:
    folder, deaths = tmp_path / "run", 0
    while not (folder / "population.json").exists() and deaths <= WRITES:
        number = at + is_half_kept(folder)
        status = ended(start(lambda n=number: run_with_death(experiment, folder, killer, at=n)))  # type: ignore[misc]
        assert status in (KILLED, 0)
        deaths += status == KILLED
    assert deaths == WRITES - (at > 1)  # nobody dies in the very first write who dies in second ones
    assert findings(pipeline.load(folder)) == expected


def test_what_a_killed_writer_had_begun_is_removed_when_the_run_resumes(
    experiment: Experiment, tmp_path: Path, start: Start
) -> None:
    folder = tmp_path / "run"
    assert ended(start(lambda: run_with_death(experiment, folder, half_way, at=3))) == KILLED
    assert len(list(folder.rglob("*.tmp"))) == 1
    pipeline.run(experiment, folder, resume=True)
    assert list(folder.rglob("*.tmp")) == []


class Ticking(pipeline.Silent):
    """Writes a byte into a pipe for each round that was evaluated, and stops at the last one until it is killed."""

    def __init__(self, pipe: int, *, last: int) -> None:
        self._pipe = pipe
        self._left = last

    def point_reached(self, stage: str, point: Point) -> None:
        os.write(self._pipe, b".")
        self._left -= 1
        if not self._left:
            signal.pause()


def killed_after(experiment: Experiment, folder: Path, start: Start, *, points: int, delay: float) -> int:
    """Runs in a child and kills it some time after so many rounds, at the latest when it has done one more."""
    ours, theirs = os.pipe()
    ticking = Ticking(theirs, last=points + 1)
    # One worker: with two at once, kernels crash in a process that was forked from one whose threads have computed.
    pid = start(lambda: pipeline.run(experiment, folder, resume=True, workers=1, listener=ticking))
    os.close(theirs)
    for _ in range(points):
        assert os.read(ours, 1) == b"."
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    os.close(ours)
    return ended(pid)


@pytest.mark.parametrize("seed", range(6))
def test_a_run_that_is_killed_at_three_random_moments_ends_as_if_nothing_had_happened(
    *, experiment: Experiment, tmp_path: Path, expected: Findings, findings: Find, start: Start, seed: int
) -> None:
    rng, folder = random.Random(seed), tmp_path / "run"
    for _ in range(3):
        points, delay = rng.randint(1, 2), rng.uniform(0.0, 0.01)  # of 15 rounds, at most 9: it is never over before
        assert killed_after(experiment, folder, start, points=points, delay=delay) == KILLED
    assert not (folder / "population.json").exists()
    assert findings(pipeline.run(experiment, folder, resume=True)) == expected
    assert findings(pipeline.load(folder)) == expected


def test_workers_in_processes_of_their_own_are_resumed_too(tmp_path: Path, findings: Find, start: Start) -> None:
    target = Target(min_forget=20)
    experiment = Experiment(
        Digits(dropout=0.3), FineTuning(rounds=1), clients=2, request=target, train_rounds=1, continue_rounds=1
    )
    pipeline.run(experiment, tmp_path / "unbroken", workers=2)
    assert killed_after(experiment, tmp_path / "run", start, points=3, delay=0.02) == KILLED
    resumed = findings(pipeline.run(experiment, tmp_path / "run", resume=True, workers=1))
    assert resumed == findings(pipeline.load(tmp_path / "unbroken"))


SCRIPT = """
import sys
from pathlib import Path
from letheon import pipeline
from letheon.experiment import Experiment

class Telling(pipeline.Silent):
    def point_reached(self, stage, point):
        print(stage, point.phase, point.round, flush=True)

pipeline.run(Experiment.load(Path(sys.argv[1])), Path(sys.argv[2]), resume=True, listener=Telling())
"""


def test_a_fresh_interpreter_that_is_killed_while_unlearning_is_continued_by_another(
    experiment: Experiment, tmp_path: Path, expected: Findings, findings: Find
) -> None:
    folder, file = tmp_path / "run", tmp_path / "experiment.toml"
    file.write_text(TABLE)
    assert Experiment.load(file).digest == experiment.digest
    command = [sys.executable, "-c", SCRIPT, str(file), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("lethe.unlearn rectify 1"):
                process.kill()
    assert process.returncode == KILLED
    assert sorted(path.parent.name.split("-")[0] for path in folder.rglob("result.json")) == STAGES[:3]
    assert findings(pipeline.run(experiment, folder, resume=True)) == expected
