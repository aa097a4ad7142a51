"""A SuperLink and SuperNodes on this machine, offline."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from letheon.errors import ConfigError, LetheonError
from letheon.federation.processes import Processes
from letheon.files import write
from letheon.runtimes.terms import Security

if TYPE_CHECKING:
    from letheon.federation.keys import Certificates

HOST = "127.0.0.1"
CONNECTION = "here"
START_S = 120.0
"""Seconds that a SuperLink has to come up: two on a quiet machine, many on a busy one."""

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

    def __init__(self, folder: Path, processes: Processes, *, port: int, certificates: Certificates | None) -> None:
        self._folder = folder
        self._port = port
        self._certificates = certificates
        self.processes = processes

    def start(self) -> None:
        """Start the SuperLink and wait until it answers."""
        command = ["flower-superlink", "--host", HOST, "--port", str(self._port)]
        command += ["--disable-runtime-dependency-installation", *self._served]
        command += ["--enable-supernode-auth"] if self._certificates else []
        self.processes.start("superlink", command)
        self.processes.wait(self._is_healthy, "the SuperLink", seconds=START_S)

    @property
    def _served(self) -> list[str]:
        """How a server of ours shows who it is."""
        if self._certificates is None:
            return ["--insecure"]
        files = self._certificates
        named = {"ssl-ca-certfile": files.authority, "ssl-certfile": files.certificate, "ssl-keyfile": files.key}
        return [word for name, path in named.items() for word in (f"--{name}", str(path))]

    def _is_healthy(self) -> bool:
        files = self._certificates
        context = ssl.create_default_context(cafile=str(files.authority)) if files else None
        url = f"http{'s' if files else ''}://{HOST}:{self._port}/health"
        with suppress(OSError), urllib.request.urlopen(url, timeout=1, context=context) as answer:
            return bool(answer.status == 200)
        return False

    def register(self, name: str) -> None:
        """Make a key for a node and tell the SuperLink of it; from then on the node of that name has to hold it."""
        from letheon.federation.keys import key_pair  # not at the top: it needs what comes with flwr

        public = key_pair(self._key(name))
        self.command("supernode", "register", str(public), CONNECTION, "--name", name)

    def add(self, name: str, node_config: str, *, port: int) -> int:
        """Start a SuperNode; returns its pid. Where nodes prove who they are, it uses the key in its name."""
        command = ["flower-supernode", "--superlink", f"{HOST}:{self._port}", "--host", HOST, "--port", str(port)]
        command += ["--node-config", node_config, *self._served]
        if self._certificates:
            command += ["--root-certificates", str(self._certificates.authority), "--max-retries", "3"]
            command += ["--auth-supernode-private-key", str(self._key(name))]
        return self.processes.start(name, command)

    def _key(self, name: str) -> Path:
        return self._folder / "keys" / name

    @contextmanager
    def run(self, app: Path) -> Iterator[Iterable[str]]:
        """Run an app: the lines of its ServerApp's log until it ends."""
        with subprocess.Popen(
            ["flwr", "run", str(app), CONNECTION, "--stream"],
            env=environment_of(self._folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for us
        ) as process:
            try:
                assert process.stdout is not None
                yield process.stdout
            finally:
                process.kill()

    def command(self, *words: str) -> str:
        """What one of flwr's own commands prints.

        Raises:
            LetheonError: it failed.
        """
        environment = environment_of(self._folder)
        done = subprocess.run(["flwr", *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LetheonError(f"flwr {' '.join(words)}: failed: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout


def environment_of(folder: Path) -> dict[str, str]:
    """The environment of flwr's commands: with the configuration in ``folder``, and offline."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **OFFLINE, "PATH": path, "FLWR_HOME": str(folder / "home")}


def demand_flwr() -> None:
    """Raise ``ConfigError`` unless flwr is installed."""
    if find_spec("flwr") is None:
        raise ConfigError("this needs Flower, which is not installed; install letheon[flower]")


@contextmanager
def linked(folder: Path, *, security: Security = "open") -> Iterator[Link]:
    """A SuperLink with its files in ``folder``; it and all nodes that are added are ended on leaving."""
    demand_flwr()
    certificates = None
    if security == "authenticated":
        from letheon.federation.keys import certify

        certificates = certify(folder / "certificates", HOST)
    (port,) = free_ports(1)
    trust = f'root-certificates = "{certificates.authority}"' if certificates else "insecure = true"
    settings = [f'[superlink]\ndefault = "{CONNECTION}"', f'[superlink.{CONNECTION}]\naddress = "{HOST}:{port}"', trust]
    write(folder / "home/config.toml", ("\n".join(settings) + "\n").encode())
    processes = Processes(folder / "logs", environment_of(folder))
    try:
        link = Link(folder, processes, port=port, certificates=certificates)
        link.start()
        yield link
    finally:
        processes.stop()


def start_nodes(link: Link, names: Sequence[str], *, security: Security) -> dict[str, int]:
    """A SuperNode for each client, under the client's name; returns their pids."""
    for name in names if security == "authenticated" else ():
        link.register(name)
    ports = free_ports(len(names))
    return {name: link.add(name, f'client="{name}"', port=port) for name, port in zip(names, ports, strict=True)}


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
