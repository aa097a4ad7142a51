"""One client on a module of the caller's, in the caller's thread, on whatever device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from letheon.client import Client
from letheon.work import Reply, Work


class Alone:
    """A federation with one client: central training is a special case, and needs no copy of a large model.

    Args:
        client: who holds everything.
        module: the model that works are done with, on whatever device; overwritten by each.

    Class attributes:
        gives: what of ``Method.needs`` can be had.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"history", "per-client", "text"})

    def __init__(self, client: Client, module: nn.Module) -> None:
        self.client = client
        self._module = module

    def run(self, *works: Work) -> Iterator[Reply]:
        for index, work in enumerate(works):
            if work.asks(self.client.name) and len(self.client.part(work)):
                yield replace(self.client.execute(work, self._module), work=index)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many intra-op threads in this thread's kernels, then what there was before. The number can change bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
