"""A client on a machine of its own: from an order to replies, whatever carries them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from letheon import registry
from letheon.client import KINDS, Client
from letheon.data import Data
from letheon.errors import Excluded, LetheonError, RequestError
from letheon.request import Request
from letheon.runtimes.exclusions import Exclusions
from letheon.runtimes.inprocess import InProcess
from letheon.runtimes.records import Order
from letheon.tasks.base import Task
from letheon.work import Reply, Work


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """What the owner of data gives.

    Attributes:
        name: the client's, as the server knows it.
        data: its samples; their ids must be the same at every call.
        task: model and loss.
        table: file of the exclusion table.
        lives: ``one``: what was admitted once is admitted for good, whatever the server says. ``many``: only within
            the life that the server names; for experiments, which compare methods on the same data.
    """

    name: str
    data: Data
    task: Task
    table: Path
    lives: Literal["one", "many"] = "one"

    def answer(self, order: Order) -> list[Reply]:
        """Admit the requests in force, then do the works; what cannot be done comes back as ``Reply.error``."""
        exclusions = Exclusions(self.table, life=order.life if self.lives == "many" else "")
        try:
            if order.client != self.name:
                raise LetheonError(f"the server takes this client for {order.client!r}; it is {self.name!r}")
            requests = exclusions.admit(order.admitted)
        except LetheonError as error:
            return [Reply(at, self.name, {}, error=str(error)) for at in order.works]
        refusals = {at: reason for at, work in order.works.items() if (reason := _refusal(work, order))}
        # Of a request about samples that nobody filed here, nothing lies here.
        doable = {
            at: work
            for at, work in order.works.items()
            if at not in refusals and (work.part != "forget" or work.request in requests)
        }
        replies = [Reply(at, self.name, {}, error=reason) for at, reason in refusals.items()]
        return sorted([*replies, *self._done(doable, requests)], key=lambda reply: reply.work)

    def _done(self, works: Mapping[int, Work], requests: dict[str, Request]) -> list[Reply]:
        places = list(works)
        # The runtime of one machine, with one client: the same threads and forks, hence the same bits.
        with InProcess([Client(self.name, self.data, self.task, requests)], workers=1) as runtime:
            return [replace(reply, work=places[reply.work]) for reply in runtime.run(*works.values())]


def _refusal(work: Work, order: Order) -> str:
    """Why work is not done here, whatever the data; or nothing."""
    try:
        _check(work, order)
    except LetheonError as error:
        return str(error)
    return ""


def _check(work: Work, order: Order) -> None:
    if work.kind not in KINDS:
        for name in registry.names("method"):  # kinds of work are registered where their methods are
            registry.get("method", name)
    if work.kind not in KINDS:
        near = registry.did_you_mean(work.kind, KINDS)
        raise LetheonError(f"unknown kind of work {work.kind!r}{near} Install what the server has.")
    if work.part == "all" and order.admitted:
        raise Excluded(f"work {work.kind!r} on all data, and requests were admitted here; ask for part 'retain'")
    if work.part == "forget" and work.request not in {each.id for each in order.admitted}:
        raise RequestError(f"work {work.kind!r} on request {work.request!r}, which was never admitted")
    if work.options.get("detail"):
        raise LetheonError(f"work {work.kind!r} asks for the outcome of single samples, which does not leave a client")
