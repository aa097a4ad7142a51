"""The clients of an experiment as sites: on machines of their own, on data that everybody could make."""

from __future__ import annotations

from pathlib import Path

from letheon.errors import ConfigError
from letheon.experiment import Experiment
from letheon.runtimes.exclusions import Exclusions
from letheon.runtimes.site import Site


def simulated(experiment: Experiment, client: str, table: Path) -> Site:
    """A client of an experiment: it makes its own share of the data, and knows what the requests stand for.

    Args:
        experiment: the same on every machine.
        client: its name.
        table: file of its exclusion table.

    Raises:
        ConfigError: the experiment has no such client.
    """
    population = experiment.populate()
    if client not in population.clients:
        known = ", ".join(population.clients)
        raise ConfigError(f"no client {client!r} in this experiment, which has {known}; correct the node's name")
    for request in population.requests:
        if request.scope == "samples":
            Exclusions(table).file(request)
    return Site(client, population.clients[client], experiment.task, table, lives="many")
