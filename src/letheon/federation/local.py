"""An experiment on Flower, all on this machine: a SuperLink, a SuperNode for each client, the app, and their end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from letheon import config, pipeline
from letheon.curve import points_of
from letheon.errors import ConfigError, LetheonError
from letheon.experiment import Experiment
from letheon.federation.link import demand_flwr, linked, start_nodes
from letheon.federation.telling import heard
from letheon.files import write
from letheon.folder import claim, data_digest, stages, versions
from letheon.life import owners, stage_folder
from letheon.pipeline import Listener, Run, Silent
from letheon.report.toml import as_toml
from letheon.stage import finished

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
    demand_flwr()
    population = experiment.populate()
    data = data_digest(population)
    cache = claim(folder, experiment, data=data, cache=cache, resume=resume)
    place, names = folder.resolve() / "flower", list(population.clients)
    app = _app(experiment, place, {"folder": folder.resolve(), "cache": cache or "", "workers": workers or 0})
    follow = _Following(experiment, stages(folder, cache, used=versions(), data=data), listener or Silent())
    security = experiment.flower.security if experiment.flower else "open"
    with linked(place, security=security) as link:
        start_nodes(link, names, security=security)
        follow.lines(link.run(app))
    try:
        return pipeline.load(folder, cache=cache)
    except ConfigError as error:
        raise LetheonError(f"the ServerApp ended early; {follow.last_words}; see {place / 'logs'}") from error


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
    """Hands on to a listener what the ServerApp tells."""

    def __init__(self, experiment: Experiment, stages: Path, listener: Listener) -> None:
        self._owners = owners(experiment)
        self._stages = stages
        self._listener = listener
        self._said: list[str] = []

    @property
    def last_words(self) -> str:
        """The end of what else was said."""
        return "it said: " + " | ".join(self._said[-5:])

    def lines(self, lines: Iterable[str]) -> None:
        """Follow until the end.

        Raises:
            LetheonError: the run failed, for the reason that it gives.
        """
        for line in lines:
            event = heard(line)
            if event is None:
                self._said.append(line.strip())
            elif event["event"] == "failed":
                raise LetheonError(event["error"])
            else:
                self._hear(event)

    def _hear(self, event: dict[str, Any]) -> None:
        stage = event["stage"]
        if event["event"] == "stage_started":
            self._listener.stage_started(stage, event["rounds"])
        elif event["event"] == "point_reached":
            self._listener.point_reached(stage, points_of([event["point"]])[0])
        else:
            outcome = finished(self._stages / stage_folder(stage, self._owners[stage]), self._owners[stage])
            if outcome is not None:
                self._listener.stage_finished(stage, outcome, cached=event["cached"])
