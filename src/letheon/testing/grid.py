"""Flower without machines: real messages as bytes, the real server code and the real ClientApps, in one process.

It stands for the SuperLink and its SuperNodes in tests, and touches two private things of flwr for that: the identity
of the task that sends, and the id of a message. Needs the extra ``flower``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from letheon.runtimes.flower import client_app
from letheon.runtimes.site import Site

SERVER, RUN = 1, 7
APP_RAISED = 2

Answer = Callable[[Message], Message]
Fault = Callable[[Message, Answer], Message | None]
"""Stands between the wire and a node: gets a message and how the node would answer; None: no reply comes."""


class Passage(NamedTuple):
    """One message over the wire."""

    way: Literal["down", "up"]
    node: int
    kind: str
    bytes: int


class MemoryGrid(Grid):
    """A Grid whose nodes answer at once.

    Args:
        apps: the ClientApp of each node.
        names: with which nodes are registered; a node without one has to be asked.
        faults: for some nodes, what goes wrong there.

    Attributes:
        apps: may be changed between rounds: nodes come and go.
        passages: every message that went over the wire, in order.
    """

    def __init__(
        self,
        apps: Mapping[int, ClientApp],
        *,
        names: Mapping[int, str] | None = None,
        faults: Mapping[int, Fault] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SERVER, 0
        self.apps = dict(apps)
        self.passages: list[Passage] = []
        self._names = dict(names or {})
        self._faults = dict(faults or {})
        self._contexts: dict[int, Context] = {}
        self._waiting: dict[str, Message] = {}

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Those that are there now."""
        return [NodeInfo(node_id=node, name=self._names.get(node, ""), status="online") for node in self.apps]

    def get_node_ids(self) -> Iterable[int]:
        """Their ids."""
        return list(self.apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver each message; a node sees to it when its reply is asked for."""
        arrived = [self._carried(message, "down", message.metadata.dst_node_id) for message in messages]
        self._waiting |= {message.metadata.message_id: message for message in arrived}
        return [message.metadata.message_id for message in arrived]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies, each once."""
        replies = []
        for message in [self._waiting.pop(id) for id in message_ids if id in self._waiting]:
            node = message.metadata.dst_node_id
            fault = self._faults.get(node)
            reply = fault(message, self._answer) if fault else self._answer(message)
            replies += [] if reply is None else [self._carried(reply, "up", node)]
        return replies

    def _answer(self, message: Message) -> Message:
        """As a SuperNode does it: what the app raises is an error of its own code."""
        node = message.metadata.dst_node_id
        context = self._contexts.setdefault(node, Context(RUN, node, {}, RecordDict(), {}))
        try:
            return self.apps[node](message, context)
        except Exception as error:
            return Message(Error(APP_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)

    def _carried(self, message: Message, way: Literal["down", "up"], node: int) -> Message:
        """The message as it comes out at the other end."""
        id = message.object_id
        message.metadata.__dict__["_message_id"] = id
        objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        kind = message.metadata.message_type
        self.passages.append(Passage(way, node, kind, sum(len(content) for content in objects.values())))
        arrived = cast(Message, inflate_object_from_contents(id, objects))
        arrived.metadata.__dict__["_message_id"] = id
        return arrived

    # What the interface asks for and nobody here uses.

    def set_run(self, run: Run) -> None:
        """There is one run."""

    @property
    def run(self) -> Run:
        """There is one run."""
        return Run.create_empty(RUN)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Deprecated in Flower."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """One look for replies: here they are there at once."""
        return self.pull_messages(self.push_messages(messages))


def apps_of(sites: Sequence[Site]) -> dict[int, ClientApp]:
    """The ClientApp of each site, by ids of nodes, which count from 10."""
    return {node: client_app(_hook(site)) for node, site in enumerate(sites, 10)}


def _hook(site: Site) -> Callable[[Context], Site]:
    return lambda context: site
