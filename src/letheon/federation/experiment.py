"""The Flower app that runs an experiment: the pipeline as ServerApp, simulated clients as ClientApps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from letheon.errors import ConfigError, LetheonError
from letheon.experiment import Experiment
from letheon.federation.telling import Telling, tell
from letheon.runtimes.flower import Flower, client_app, server_app
from letheon.runtimes.simulated import simulated
from letheon.runtimes.site import Site
from letheon.runtimes.terms import Deployment


def _main(grid: Grid, context: Context) -> None:
    """Run, or continue, the whole life of the experiment."""
    from letheon import pipeline  # not at the top: clients need none of it

    table: Mapping[str, Any] = context.run_config
    try:
        experiment = Experiment.load(Path(table["experiment"]))
        deployment = experiment.flower or Deployment()
        pipeline.run(
            experiment,
            Path(table["folder"]),
            resume=True,
            cache=Path(table["cache"]) if table["cache"] else None,
            workers=table["workers"] or None,
            listener=Telling(),
            runtime=Flower(grid, list(experiment.populate().clients), terms=deployment.terms),
        )
    except LetheonError as error:
        tell("failed", error=str(error))
        raise


def _site(context: Context) -> Site:
    """The node's client; which it is, the node's configuration says."""
    client, table = context.node_config.get("client"), context.run_config
    if not isinstance(client, str):
        raise ConfigError("this node's configuration names no client; start it with --node-config 'client=\"c000\"'")
    experiment = Experiment.load(Path(str(table["experiment"])))
    return simulated(experiment, client, Path(str(table["sites"])), run=context.run_id)


server, client = server_app(_main), client_app(_site)
