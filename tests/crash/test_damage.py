"""Damaged, foreign and unwritable files: what is lost is said and done again, and nothing else is."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from letheon import pipeline
from letheon.curve import Point
from letheon.errors import ConfigError, JournalError
from letheon.experiment import Experiment
from letheon.pipeline import Run
from letheon.stage import Outcome

Findings = dict[str, Any]
Find = Callable[[Run], Findings]
Start = Callable[[Callable[[], object]], int]


class Stopping(pipeline.Silent):
    """Ends a run, as Ctrl-C would, when a stage has come to a point."""

    def __init__(self, stage: str, phase: str, round: int) -> None:
        self._place = (stage, phase, round)

    def point_reached(self, stage: str, point: Point) -> None:
        if (stage, point.phase, point.round) == self._place:
            raise KeyboardInterrupt


class Noting(pipeline.Silent):
    """Notes what was computed, and which stages were there already."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self.cached: list[str] = []

    def point_reached(self, stage: str, point: Point) -> None:
        self.points.append(f"{stage} {point.phase} {point.round}")

    def stage_finished(self, stage: str, outcome: Outcome, *, cached: bool) -> None:
        if cached:
            self.cached.append(stage)


@pytest.fixture
def interrupted(experiment: Experiment, tmp_path: Path) -> Path:
    """A run that was stopped in Lethe's restoring round: its journal holds both rounds of rectification."""
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(experiment, tmp_path / "run", listener=Stopping("lethe.unlearn", "restore", 1))
    return tmp_path / "run"


@pytest.fixture
def finished(unbroken: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(unbroken, tmp_path / "run"))


def rounds(folder: Path) -> list[Path]:
    """The journal's files, newest last."""
    return sorted(folder.rglob("round-*.safetensors"))


def stage(folder: Path, name: str) -> Path:
    (found,) = (folder / "stages").glob(f"{name}-*")
    return found


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip_a_bit_of_a_tensor(path: Path) -> None:
    flip(path, path.stat().st_size - 1000)


def flip_a_bit_of_the_metadata(path: Path) -> None:
    content = path.read_bytes()
    flip(path, content.index(b'kr\\":') + len(b'kr\\": ') + 1)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES = [truncate, flip_a_bit_of_a_tensor, flip_a_bit_of_the_metadata]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_round_is_named_and_the_one_before_it_used(
    *,
    interrupted: Path,
    experiment: Experiment,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
    expected: Findings,
    findings: Find,
) -> None:
    assert len(rounds(interrupted)) == 2
    newest = rounds(interrupted)[-1]
    damage(newest)
    noting = Noting()
    resumed = pipeline.run(experiment, interrupted, resume=True, listener=noting)
    assert noting.points[0] == "lethe.unlearn rectify 2"
    assert len([r for r in caplog.records if str(newest) in r.message and r.levelno == logging.WARNING]) == 1
    assert findings(resumed) == expected


def test_without_a_good_round_the_stage_starts_anew(
    interrupted: Path, experiment: Experiment, expected: Findings, findings: Find
) -> None:
    for path in rounds(interrupted):
        truncate(path)
    noting = Noting()
    resumed = pipeline.run(experiment, interrupted, resume=True, listener=noting)
    assert noting.cached == ["origin", "retrain.unlearn", "retrain.continue"]
    assert noting.points[0] == "lethe.unlearn start 0"
    assert findings(resumed) == expected


def test_the_journal_of_another_run_is_refused(
    *,
    interrupted: Path,
    experiment: Experiment,
    unbroken: Path,
    expected: Findings,
    findings: Find,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.copy(stage(unbroken, "lethe.continue") / "model.safetensors", rounds(interrupted)[-1])
    noting = Noting()
    resumed = pipeline.run(experiment, interrupted, resume=True, listener=noting)
    assert noting.points[0] == "lethe.unlearn rectify 2"
    assert rounds(interrupted) == []
    assert any("belongs to run" in r.message for r in caplog.records)
    assert findings(resumed) == expected


def half_written(folder: Path) -> None:
    truncate(folder / "result.json")


def zeroed(folder: Path) -> None:
    (folder / "result.json").write_bytes(bytes(500))


def not_text(folder: Path) -> None:
    (folder / "result.json").write_bytes(b"\xff\xfe\xfa")


def another_digit(folder: Path) -> None:
    text = (folder / "result.json").read_text()
    at = text.index('"kr": ') + len('"kr": ')
    (folder / "result.json").write_text(text[:at] + ("1" if text[at] != "1" else "2") + text[at + 1 :])


def no_model(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def damaged_model(folder: Path) -> None:
    flip_a_bit_of_a_tensor(folder / "model.safetensors")


@pytest.mark.parametrize("damage", [half_written, zeroed, not_text, another_digit, no_model, damaged_model])
def test_a_damaged_stage_is_run_again_and_no_other(
    *,
    finished: Path,
    experiment: Experiment,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
    expected: Findings,
    findings: Find,
) -> None:
    damage(stage(finished, "lethe.unlearn"))
    noting = Noting()
    again = pipeline.run(experiment, finished, resume=True, listener=noting)
    others = ["origin", "retrain.unlearn", "retrain.continue", "lethe.continue", "detach.unlearn", "detach.continue"]
    assert noting.cached == others
    assert any("run again" in r.message and "lethe.unlearn" in r.message for r in caplog.records)
    assert findings(again) == expected


def test_a_model_that_was_swapped_for_another_one_is_noticed(
    finished: Path, experiment: Experiment, expected: Findings, findings: Find, caplog: pytest.LogCaptureFixture
) -> None:
    other = stage(finished, "retrain.unlearn") / "model.safetensors"
    shutil.copy(other, stage(finished, "lethe.unlearn") / "model.safetensors")
    with pytest.raises(ConfigError, match=r"lethe\.unlearn is not complete"):
        pipeline.load(finished)
    assert any("belongs to" in r.message for r in caplog.records)
    assert findings(pipeline.run(experiment, finished, resume=True)) == expected


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets so many files be synced; then the disk is full."""

    def limit(syncs: int) -> None:
        sync, left = os.fsync, syncs

        def fsync(descriptor: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    return limit


@pytest.mark.parametrize("syncs", [0, 6, 7, 30])
def test_a_full_disk_ends_the_run_with_a_clear_error_and_it_resumes_when_there_is_space(
    *,
    experiment: Experiment,
    tmp_path: Path,
    full_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    expected: Findings,
    findings: Find,
    syncs: int,
) -> None:
    full_after(syncs)
    with pytest.raises(JournalError, match=r"cannot be written \(No space left on device\).*--resume"):
        pipeline.run(experiment, tmp_path / "run")
    assert list(tmp_path.rglob("*.tmp")) == []
    monkeypatch.undo()
    assert findings(pipeline.run(experiment, tmp_path / "run", resume=True)) == expected


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 100 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full_loses_no_round(
    experiment: Experiment, tiny_disk: Path, expected: Findings, findings: Find
) -> None:
    filler = tiny_disk / "filler"
    filler.write_bytes(bytes(32 * 1024))
    with pytest.raises(JournalError, match="No space left on device"):
        pipeline.run(experiment, tiny_disk / "run")
    kept = {path: path.read_bytes() for path in rounds(tiny_disk)}
    assert kept
    with pytest.raises(JournalError, match="No space left on device"):
        pipeline.run(experiment, tiny_disk / "run", resume=True)
    assert {path: path.read_bytes() for path in rounds(tiny_disk)} == kept
    shutil.copytree(tiny_disk / "run", tiny_disk.parent / "run")
    assert findings(pipeline.run(experiment, tiny_disk.parent / "run", resume=True)) == expected


def test_two_processes_in_one_folder_do_not_disturb_each_other(
    experiment: Experiment, tmp_path: Path, expected: Findings, findings: Find, start: Start
) -> None:
    folder = tmp_path / "run"
    pids = [start(lambda: pipeline.run(experiment, folder, resume=True, workers=1)) for _ in range(3)]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0, 0]
    assert findings(pipeline.load(folder)) == expected


def test_a_folder_that_holds_another_run_is_refused(experiment: Experiment, finished: Path) -> None:
    before = (finished / "experiment.json").read_bytes()
    with pytest.raises(ConfigError, match=r"holds run .* choose another --out"):
        pipeline.run(replace(experiment, seed=1), finished, resume=True)
    with pytest.raises(ConfigError, match=r"this very run.*--resume"):
        pipeline.run(experiment, finished)
    assert (finished / "experiment.json").read_bytes() == before


def test_a_finished_run_is_not_computed_again(
    experiment: Experiment, finished: Path, expected: Findings, findings: Find
) -> None:
    noting = Noting()
    assert findings(pipeline.run(experiment, finished, resume=True, listener=noting)) == expected
    assert noting.points == []
    assert len(noting.cached) == 7
