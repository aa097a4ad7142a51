"""The clients of an experiment as sites: on machines of their own, on data that everybody could make."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch

from letheon.data import Data
from letheon.errors import ConfigError
from letheon.experiment import Experiment
from letheon.files import write
from letheon.runtimes.exclusions import Exclusions
from letheon.runtimes.site import Site


def simulated(experiment: Experiment, client: str, folder: Path, *, run: int = 0) -> Site:
    """A client of an experiment: it makes its own share of the data, and knows what the requests stand for.

    Args:
        experiment: the same on every machine.
        client: its name.
        folder: for its exclusion table, and for its share of the data, which is made once a run.
        run: number of the run.

    Raises:
        ConfigError: the experiment has no such client.
    """
    table, kept = folder / f"{client}.db", folder / f"{client}-{run}.safetensors"
    if not kept.is_file():
        _make(experiment, client, table, kept)
    data = Data(**safetensors.torch.load_file(kept))
    return Site(client, data, experiment.task, table, lives="many")


def _make(experiment: Experiment, client: str, table: Path, kept: Path) -> None:
    population = experiment.populate()
    if client not in population.clients:
        known = ", ".join(population.clients)
        raise ConfigError(f"no client {client!r} in this experiment, which has {known}; correct the node's name")
    for request in population.requests:
        if request.scope == "samples":
            Exclusions(table).file(request, id=request.id)  # everybody makes the same population
    data = population.clients[client]
    for old in kept.parent.glob(f"{client}-*.safetensors"):
        old.unlink()
    tensors = {"inputs": data.inputs, "targets": data.targets, "ids": data.ids}
    write(kept, safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}))
