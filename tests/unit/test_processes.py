"""Processes of a federation on this machine: ended whatever happens, with what they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from letheon.errors import ConfigError, LetheonError
from letheon.experiment import Experiment
from letheon.federation import link, processes
from letheon.federation.processes import Processes
from letheon.federation.telling import Telling, heard, tell
from letheon.life import owners
from letheon.methods.detach import Detach
from letheon.runtimes.terms import Deployment, Terms
from letheon.tasks.vision import Digits

EXPERIMENT = Experiment(Digits(), Detach())
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(100)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(100)
"""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Processes]:
    group = Processes(tmp_path / "logs", os.environ)
    yield group
    group.stop()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_said(group: Processes, name: str) -> str:
    group.wait(lambda: bool(group.log(name).read_text()), f"a word of {name}", seconds=60)
    return group.log(name).read_text()


@pytest.mark.parametrize("is_killed", [False, True], ids=["alive", "killed"])
def test_what_a_process_started_is_ended_too_even_when_it_has_lost_its_parent(
    group: Processes, is_killed: bool
) -> None:
    pid = group.start("parent", [sys.executable, "-c", PARENT])
    child = int(until_said(group, "parent"))
    assert group.family() == {pid, child}
    if is_killed:
        os.kill(pid, signal.SIGKILL)
    group.stop()
    assert not is_alive(pid)
    assert not is_alive(child)


def test_a_process_that_does_not_listen_is_killed(group: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 0.3)
    pid = group.start("deaf", [sys.executable, "-c", DEAF])
    until_said(group, "deaf")
    group.stop()
    assert not is_alive(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_processes_end_when_whoever_started_them_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, time
from pathlib import Path
from letheon.federation.processes import Processes
print(Processes(Path({str(tmp_path)!r}), os.environ).start("sleeper", ["sleep", "100"]), flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(1)  # the sleeper has to become one
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
    until = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(pid)


def test_a_process_that_ends_too_early_is_named_with_its_last_words(group: Processes) -> None:
    group.start("brief", [sys.executable, "-c", "print('no such port')"])
    with pytest.raises(LetheonError, match=r"brief: ended while waiting for Godot; its log ends: no such port"):
        group.wait(lambda: False, "Godot", seconds=60)


def test_waiting_comes_to_an_end(group: Processes) -> None:
    with pytest.raises(LetheonError, match="Godot: not there after 0 s; see"):
        group.wait(lambda: False, "Godot", seconds=0.1)


def test_flwr_s_commands_are_kept_off_the_network(tmp_path: Path) -> None:
    environment = link.environment_of(tmp_path)
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert (environment["FLWR_TELEMETRY_ENABLED"], environment["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert environment["FLWR_HOME"] == str(tmp_path / "home")


def test_without_flwr_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from letheon.federation import local

    monkeypatch.setattr(link, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Flower, which is not installed; install letheon\[flower\]"):
        local.run(replace(EXPERIMENT, flower=Deployment()), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_events_are_heard_as_they_were_told_and_other_lines_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    Telling().stage_started("origin", 3)
    tell("failed", error='a "reason"\nin two lines')
    first, second = capsys.readouterr().out.splitlines()
    assert heard(f"2026-01-01 INFO {first}") == {"event": "stage_started", "stage": "origin", "rounds": 3}
    assert heard(second) == {"event": "failed", "error": 'a "reason"\nin two lines'}
    for line in ("", "Starting", "letheon says nothing", "letheon says []", 'letheon says {"x": 1}'):
        assert heard(line) is None


def test_where_an_experiment_runs_is_none_of_its_digest() -> None:
    other = replace(EXPERIMENT, flower=Deployment(Terms(deadline_s=5), security="authenticated"))
    assert other.digest == EXPERIMENT.digest
    assert owners(other) == owners(EXPERIMENT)


def test_a_security_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"flower.security: unknown 'none'; use open, authenticated"):
        Deployment(security="none")  # type: ignore[arg-type]
