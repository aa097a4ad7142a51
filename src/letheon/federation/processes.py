"""Processes that are ended whatever happens, and whose words are kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from letheon.errors import LetheonError

PATIENCE_S = 10.0
"""Seconds that a process has to end after SIGTERM."""

# Runs what follows in its place, and has the kernel end it when its parent is gone, even by SIGKILL.
_TIED = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Processes:
    """A group of named processes.

    Args:
        logs: folder for what they print.
        environment: theirs.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._mark = f"LETHEON_FAMILY={uuid4()}"
        self._environment = dict(environment) | dict([self._mark.split("=")])
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str]) -> int:
        """Start a process; returns its pid."""
        with self.log(name).open("ab") as log:
            self._started[name] = subprocess.Popen(
                [sys.executable, "-c", _TIED, *command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us, who then end them in order
            )
        return self._started[name].pid

    def log(self, name: str) -> Path:
        """Where a process's words are."""
        return self._logs / f"{name}.log"

    def wait(self, is_ready: Callable[[], bool], what: str, *, seconds: float) -> None:
        """Wait until something is the case.

        Raises:
            LetheonError: it is not after so many seconds, or a process has ended.
        """
        until = time.monotonic() + seconds
        while not is_ready():
            for name, process in self._started.items():
                if process.poll() is not None:
                    raise LetheonError(f"{name}: ended while waiting for {what}; {self.last_words(name)}")
            if time.monotonic() > until:
                raise LetheonError(f"{what}: not there after {seconds:.0f} s; see {self._logs}")
            time.sleep(0.1)

    def last_words(self, name: str, lines: int = 5) -> str:
        """The end of a process's log."""
        text = self.log(name).read_text(errors="replace").strip().splitlines()
        return "its log ends: " + " | ".join(line.strip() for line in text[-lines:]) if text else "its log is empty"

    def family(self) -> set[int]:
        """Them, what they started, and so on, even what has lost its parent: all that inherited their environment.

        Only they themselves where there is no /proc.
        """
        found = {process.pid for process in self._started.values()}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it may end while we look, or be somebody else's
                if self._mark.encode() in path.read_bytes().split(b"\0"):
                    found.add(int(path.parent.name))
        return found

    def stop(self) -> None:
        """End the family: SIGTERM, and after ``PATIENCE_S`` SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            family, until = self.family(), time.monotonic() + PATIENCE_S
            for pid in filter(_runs, family):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            while any(map(_runs, family)) and time.monotonic() < until:
                for process in self._started.values():
                    process.poll()
                time.sleep(0.05)
        for process in self._started.values():
            process.wait()
        self._started.clear()


def _runs(pid: int) -> bool:
    """Whether there is such a process; one that has ended and that nobody has asked about does not count."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:
        return not Path("/proc/self/stat").exists()  # where there is no /proc: it answered to kill
