"""A small federation whose every round the tests can redo by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from letheon.client import Client
from letheon.data import Data
from letheon.middleware import Excluding, Quorum
from letheon.phase import State
from letheon.request import Request
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.vision import Digits
from letheon.testing.scene import Tap


@dataclass(frozen=True, eq=False)
class Small:
    """Three clients with 10, 14 and 20 digits; "b" is to be forgotten. ``tap`` notes what is asked and answered."""

    task: Digits
    clients: dict[str, Data]
    request: Request
    start: State
    tap: Tap


@contextmanager
def federation_of_three(*, norm: bool) -> Iterator[Small]:
    """With a model with or without BatchNorm."""
    task = Digits(norm=norm)
    data = task.train()
    clients = {n: data.take(torch.arange(*span)) for n, span in {"a": (0, 10), "b": (10, 24), "c": (24, 44)}.items()}
    forget = Request("client", client="b")
    members = [Client(name, share, task) for name, share in clients.items()]
    for member in members:
        member.admit(forget)
    with InProcess(members, workers=1) as runtime:
        guarded = Excluding(Quorum(runtime), request=forget.id)
        yield Small(task, clients, forget, task.init(3), Tap(guarded))
