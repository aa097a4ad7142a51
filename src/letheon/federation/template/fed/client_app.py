"""A site. Put your own data into ``samples``; there is nothing else to change here."""

from pathlib import Path

import torch
from flwr.app import Context

from letheon.data import Data
from letheon.federation.service import Service
from letheon.runtimes.flower import client_app, identity
from letheon.runtimes.site import Site

SERVICE = Service.load(Path(__file__).with_name("federation.toml"))


def samples(name: str) -> Data:
    """All samples of the site ``name``.

    Ids must be the same at every call: a request to forget names samples by id, and only you know which they are.
    To begin with, each site takes its share of a public data set, so that the federation runs as it is.
    """
    data = SERVICE.task.train()
    share = sorted(SERVICE.clients).index(name)
    return data.take(torch.arange(share, len(data), len(SERVICE.clients)))


def site(context: Context) -> Site:
    """Called for every message. The node's configuration gives its name and the file of its exclusion table."""
    name, table = identity(context, SERVICE.clients)
    return Site(name, samples(name), SERVICE.task, table)


app = client_app(site)
