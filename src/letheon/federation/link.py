"""A SuperLink and SuperNodes on this machine, offline, each with a folder of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from letheon.errors import ConfigError
from letheon.federation.processes import Processes
from letheon.files import write

HOST = "127.0.0.1"
CONNECTION = "here"
START_S = 60.0
"""Seconds that a SuperLink has to come up: on a busy machine it takes many."""

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
}
"""What keeps flwr off the network and out of package installation, and lets it look for work often."""


class Link:
    """A running SuperLink. Made by ``linked``."""

    def __init__(self, folder: Path, processes: Processes, port: int) -> None:
        self.folder = folder
        self.address = f"{HOST}:{port}"
        self.processes = processes

    def add(self, name: str, node_config: str, *, port: int) -> int:
        """Start a SuperNode; returns its pid."""
        command = ["flower-supernode", "--superlink", self.address, "--insecure"]
        command += ["--host", HOST, "--port", str(port), "--node-config", node_config]
        return self.processes.start(name, command)

    def run(self, app: Path) -> Iterator[str]:
        """Run an app, and give the lines of its ServerApp's log until it ends."""
        command = ["flwr", "run", str(app), CONNECTION, "--stream"]
        with subprocess.Popen(
            command,
            env=environment_of(self.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for us
        ) as process:
            try:
                assert process.stdout is not None
                yield from process.stdout
            finally:
                process.kill()


def environment_of(folder: Path) -> dict[str, str]:
    """The environment of flwr's commands: with the configuration in ``folder``, and offline."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **OFFLINE, "PATH": path, "FLWR_HOME": str(folder / "home")}


def demand_flwr() -> None:
    """Raise ``ConfigError`` unless flwr is installed."""
    if find_spec("flwr") is None:
        raise ConfigError("this needs Flower, which is not installed; install letheon[flower]")


@contextmanager
def linked(folder: Path) -> Iterator[Link]:
    """A SuperLink with its state in ``folder``; it and all nodes that are added are ended on leaving."""
    demand_flwr()
    (port,) = free_ports(1)
    settings = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{HOST}:{port}"\n'
    write(folder / "home/config.toml", (settings + "insecure = true\n").encode())
    processes = Processes(folder / "logs", environment_of(folder))
    try:
        command = ["flower-superlink", "--host", HOST, "--port", str(port), "--insecure"]
        command += ["--database", str(folder / "superlink.db"), "--disable-runtime-dependency-installation"]
        processes.start("superlink", command)
        processes.wait(lambda: _is_healthy(f"http://{HOST}:{port}/health"), "the SuperLink", seconds=START_S)
        yield Link(folder, processes, port)
    finally:
        processes.stop()


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _is_healthy(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
        return bool(answer.status == 200)
    return False
