"""An experiment on Flower, all on this machine: a SuperLink, a SuperNode for each client, the app, and their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from letheon import config, pipeline
from letheon.curve import points_of
from letheon.errors import LetheonError
from letheon.experiment import Experiment
from letheon.federation.link import demand_flwr, linked, start_nodes
from letheon.federation.telling import heard
from letheon.files import write
from letheon.folder import claim, data_digest, stages, versions
from letheon.life import owners, stage_folder
from letheon.pipeline import Listener, Run, Silent
from letheon.report.toml import as_toml
from letheon.stage import Outcome, finished

_PROJECT = """\
[project]
name = "letheon-experiment"
version = "1.0.0"
description = "An experiment of Letheon's, as Letheon runs it on this machine"

[tool.flwr.app]
publisher = "letheon"

[tool.flwr.app.components]
serverapp = "experiment.apps:server"
clientapp = "experiment.apps:client"

[tool.flwr.app.config]
"""
_APPS = """\
from letheon.federation.experiment import client, server

__all__ = ["client", "server"]
"""


def run(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    cache: Path | None = None,
    workers: int | None = None,
    listener: Listener | None = None,
) -> Run:
    """As ``pipeline.run``, with the same result; the clients are processes of their own.

    What the processes print is in ``folder/flower/logs``. The clients' exclusion tables are in ``folder/flower/sites``.

    Raises:
        ConfigError: flwr is not installed, or as ``pipeline.run``.
        LetheonError: the run ended early; what is complete is kept, and ``resume`` continues.
    """
    app, clients, follow = prepared(experiment, folder, resume=resume, cache=cache, workers=workers)
    security = experiment.flower.security if experiment.flower else "open"
    with linked(folder.resolve() / "flower", security=security) as link:
        start_nodes(link, clients, security=security)
        with link.run(app) as lines:
            follow(listener or Silent(), lines)
    return pipeline.load(folder, cache=cache)


def prepared(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    cache: Path | None = None,
    workers: int | None = None,
) -> tuple[Path, list[str], Callable[[Listener, Iterable[str]], None]]:
    """Claim the folder and write the app; returns its path, the clients' names, and what hands a log on to a listener.

    The latter raises ``LetheonError`` if the run failed, or ended before all was done.
    """
    demand_flwr()
    population, place = experiment.populate(), folder.resolve() / "flower"
    data = data_digest(population)
    cache = claim(folder, experiment, data=data, cache=cache, resume=resume)
    app = _app(experiment, place, {"folder": folder.resolve(), "cache": cache or "", "workers": workers or 0})
    following = _Following(experiment, stages(folder, cache, used=versions(), data=data), place / "logs")
    return app, list(population.clients), following.follow


def _app(experiment: Experiment, place: Path, settings: dict[str, Any]) -> Path:
    """Write the app, and the experiment beside it."""
    write(place / "experiment.toml", as_toml(config.plain(experiment)).encode())
    settings = {"experiment": place / "experiment.toml", "sites": place / "sites"} | settings
    plain = {key: value if isinstance(value, int) else str(value) for key, value in settings.items()}
    write(place / "app/pyproject.toml", (_PROJECT + as_toml(plain)).encode())
    write(place / "app/experiment/__init__.py", b"")
    write(place / "app/experiment/apps.py", _APPS.encode())
    return place / "app"


class _Following:
    """Hands on to a listener what a ServerApp tells."""

    def __init__(self, experiment: Experiment, stages: Path, logs: Path) -> None:
        self._owners = owners(experiment)
        self._stages = stages
        self._logs = logs

    def follow(self, listener: Listener, lines: Iterable[str]) -> None:
        """Follow until the end."""
        said: list[str] = []
        for line in lines:
            event = heard(line)
            if event is None:
                said.append(line.strip())
            elif event["event"] == "failed":
                raise LetheonError(event["error"])
            else:
                self._hear(listener, event)
        if missing := [name for name in self._owners if self._outcome(name) is None]:
            told = " | ".join(said[-5:])
            raise LetheonError(f"the ServerApp ended early, before {missing[0]}; it said: {told}; see {self._logs}")

    def _outcome(self, stage: str) -> Outcome | None:
        owner = self._owners[stage]
        return finished(self._stages / stage_folder(stage, owner), owner)

    def _hear(self, listener: Listener, event: dict[str, Any]) -> None:
        stage, outcome = event["stage"], self._outcome(event["stage"])
        if event["event"] == "stage_started":
            listener.stage_started(stage, event["rounds"])
        elif event["event"] == "point_reached":
            listener.point_reached(stage, points_of([event["point"]])[0])
        elif outcome is not None:
            listener.stage_finished(stage, outcome, cached=event["cached"])
