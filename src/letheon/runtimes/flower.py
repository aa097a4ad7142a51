"""Clients on other machines, over Flower.

The ServerApp drives the Grid itself: one message a client and round with all that is asked of it. What a message says
is in ``records``; what a client does with it, in ``site``. Only this module, ``mail`` and the Grid for tests import
flwr.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from letheon.errors import ConfigError, RoundError
from letheon.request import Request
from letheon.runtimes.mail import HELLO, WORK, Mail, content, parcel_in, within
from letheon.runtimes.receipt import lost, replies_in
from letheon.runtimes.records import Admitted, Order, Parcel, pack_order, pack_replies, unpack_order
from letheon.runtimes.site import Site
from letheon.runtimes.terms import Terms
from letheon.work import Reply, Work

log = logging.getLogger(__name__)

MIB = 2**20
_FACTS = "facts"
ASKED = 3
"""How often a node that does not answer is asked for its name: a stranger must not cost every round its time."""


class Flower:
    """A federation whose clients are Flower nodes.

    A client is a name; which node answers to it, is looked up in every round. A node has the name with which it was
    registered, or the one it gives itself, where nodes are not authenticated.

    Args:
        grid: as a ServerApp gets it.
        clients: the names of all clients; others are not listened to.
        terms: deadlines and sizes.

    Class attributes:
        gives: what of ``Method.needs`` can be had.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"history", "per-client"})

    def __init__(self, grid: Grid, clients: Sequence[str], *, terms: Terms | None = None) -> None:
        if not clients or len(set(clients)) != len(clients):
            raise RoundError(f"flower: client names must differ and there must be one, got {list(clients)}")
        self._grid = grid
        self._clients = sorted(clients)
        self._terms = terms or Terms()
        self._admitted: tuple[Admitted, ...] = ()
        self._life = ""
        self._names: dict[int, str] = {}
        self._asked: Counter[int] = Counter()
        self._gathered = False
        self._rounds = 0

    def admit(self, requests: Sequence[Request], *, life: str = "") -> None:
        """From now on these requests and no others are in force; clients learn of it with their next work."""
        self.tell([Admitted.of(request) for request in requests], life=life)

    def tell(self, admitted: Sequence[Admitted], *, life: str = "") -> None:
        """As ``admit``, for a server that knows no more of the requests than may be told."""
        self._admitted, self._life = tuple(admitted), life

    def run(self, *works: Work) -> Iterator[Reply]:
        nodes = self._nodes() if self._gathered else self._gather()
        self._rounds += 1
        asked = {
            client: mine
            for client in self._clients
            if (mine := {at: work for at, work in enumerate(works) if work.asks(client)})
        }
        shared = {at: self._parcel({i: works[i] for i in at}) for at in {tuple(mine) for mine in asked.values()}}
        parcels = {client: replace(shared[tuple(mine)], client=client) for client, mine in asked.items()}
        mail = Mail(self._grid, self._terms, self._nodes, group=str(self._rounds))
        mail.send(parcels, nodes)
        for client, mine in asked.items():
            answer = mail.wait(client)
            yield from lost(mine, client, answer) if isinstance(answer, str) else replies_in(mine, client, answer)

    def close(self) -> None:
        """Nothing to end: the nodes are not ours."""

    def _parcel(self, works: Mapping[int, Work]) -> Parcel:
        parcel = pack_order(Order("", works, self._admitted, self._life))
        if len(parcel) > self._terms.largest_mib * MIB:
            raise RoundError(
                f"flower: a message of {len(parcel) / MIB:.0f} MiB, more than largest_mib = {self._terms.largest_mib}; "
                "raise it if server and clients have the memory"
            )
        return parcel

    def _gather(self) -> dict[str, int]:
        """Wait until all clients are there; go on with those that are, when the time is up."""
        until = time.monotonic() + self._terms.gather_s
        while set(nodes := self._nodes()) < set(self._clients) and time.monotonic() < until:
            time.sleep(self._terms.poll_s)
        missing = sorted(set(self._clients) - set(nodes))
        if not nodes:
            raise RoundError(f"flower: none of {', '.join(missing)} is connected after {self._terms.gather_s:g} s")
        if missing:
            log.warning("not connected after %g s: %s", self._terms.gather_s, ", ".join(missing))
        self._gathered = True
        return nodes

    def _nodes(self) -> dict[str, int]:
        """The node of each client that is online."""
        nodes = within(self._terms.deadline_s, lambda: list(self._grid.get_nodes()))
        named = {node.node_id: node.name for node in nodes if node.status == "online"}
        if not any(named.values()):  # where nodes are registered by name, none is asked for it
            self._ask_names([node for node in named if node not in self._names and self._asked[node] < ASKED])
            named = {node: self._names.get(node, "") for node in named}
        counts = Counter(named.values())
        for name in self._clients:
            if counts[name] > 1:
                log.warning("%d nodes say that they are %s; none is believed", counts[name], name)
        return {name: node for node, name in named.items() if name in self._clients and counts[name] == 1}

    def _ask_names(self, nodes: Sequence[int]) -> None:
        mail = Mail(self._grid, replace(self._terms, deadline_s=self._terms.gather_s), dict, group="names")
        mail.send({str(node): Parcel("", b"") for node in nodes}, {str(node): node for node in nodes}, kind=HELLO)
        self._asked.update(nodes)
        for node in nodes:
            answer = mail.wait(str(node))
            if isinstance(answer, str):
                log.warning("node %d does not say who it is: %s", node, answer)
            else:
                self._names[node] = answer.text


def client_app(site: Callable[[Context], Site]) -> ClientApp:
    """The ClientApp of a site: one handler for every method.

    Args:
        site: the data hook, called for every message; the only thing that an owner of data writes.
    """

    def work(message: Message, context: Context) -> Message:
        owner = site(context)
        known = context.state.config_records.get(_FACTS)  # lasts as long as the run, through all its processes
        if known is not None:
            owner.task.prime(flops=int(str(known["flops"])), draws=known["draws"] is True)
        replies = owner.answer(unpack_order(parcel_in(message.content)))
        context.state[_FACTS] = ConfigRecord({"flops": owner.task.flops, "draws": owner.task.draws})
        return Message(content(pack_replies(replies)), reply_to=message)

    def hello(message: Message, context: Context) -> Message:
        return Message(content(Parcel(site(context).name, b"")), reply_to=message)

    app = ClientApp()
    app.train(WORK.partition(".")[2])(work)
    app.query(HELLO.partition(".")[2])(hello)
    return app


def identity(context: Context, clients: Sequence[str]) -> tuple[str, Path]:
    """A site's name, and the file of its exclusion table.

    A SuperNode is started with both (``client`` and ``table``). Flower's simulation engine numbers its nodes instead:
    they are the clients in alphabetical order, with their tables beside what the server keeps.

    Args:
        context: as a ClientApp gets it.
        clients: the names of all clients.

    Raises:
        ConfigError: the node has neither, or there are not as many nodes as clients.
    """
    node = context.node_config
    if "client" in node and "table" in node:
        return str(node["client"]), Path(str(node["table"]))
    if "partition-id" not in node:
        raise ConfigError(
            "this node's configuration names no site; "
            "start it with --node-config 'client=\"site-a\" table=\"site-a.db\"'"
        )
    if node.get("num-partitions") != len(clients):
        raise ConfigError(
            f"{node.get('num-partitions')} simulated nodes for {len(clients)} clients; "
            f"give --federation-config num-supernodes={len(clients)}"
        )
    name = sorted(clients)[int(str(node["partition-id"]))]
    return name, Path(str(context.run_config["folder"])) / "sites" / f"{name}.db"


def server_app(main: Callable[[Grid, Context], None]) -> ServerApp:
    """The ServerApp that runs ``main``."""
    app = ServerApp()
    app.main()(main)
    return app
