"""A terminal to type in, and one small finished run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from letheon.cli import main

TINY = """
title = "digits, tiny"
clients = 4
train_rounds = 3
continue_rounds = 3
compare = ["fine-tuning", "not", "puf", "noise"]
task = {name = "digits"}
request = {scope = "client", min_forget = 50, trigger = {size = 2, margin = 0}}
local = {lr = 0.05}
method = {name = "lethe"}
"""


class Said(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _undo_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands set what belongs to a process; here many of them share one."""
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "GITHUB_ACTIONS", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    log, threads = logging.getLogger("letheon"), torch.get_num_threads()
    handlers, level = list(log.handlers), log.level
    yield
    torch.set_num_threads(threads)
    log.handlers = handlers
    log.setLevel(level)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command line in this process."""

    def call(*words: str | Path) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Said(int(ended.value.code or 0), out, err)

    return call


def start(folder: Path, *words: str | Path, **settings: str) -> subprocess.Popen[str]:
    """Run a command line in a process of its own, in ``folder``, without a terminal."""
    hidden = ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "COLUMNS")
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | settings
    line = [sys.executable, "-m", "letheon.cli", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(scope="session")
def begin() -> Callable[..., subprocess.Popen[str]]:
    """``start``, for tests that need the process itself."""
    return start


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``tiny.toml``."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.toml").write_text(TINY)
    return folder


@pytest.fixture(scope="session")
def first_run(place: Path) -> Said:
    """``letheon run tiny.toml --set seed=3 --json``, in ``place``."""
    process = start(place, "run", "tiny.toml", "--set", "seed=3", "--json")
    out, err = process.communicate(timeout=120)
    return Said(process.returncode, out, err)


@pytest.fixture(scope="session")
def run_folder(place: Path, first_run: Said) -> Path:
    """Where ``first_run`` has put its run."""
    assert first_run.code == 0, first_run.err
    (folder,) = (place / "runs").iterdir()
    return folder
