"""Messages over Flower, and how long to wait for replies."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from letheon.errors import RoundError
from letheon.runtimes.records import Parcel
from letheon.runtimes.terms import Terms

log = logging.getLogger(__name__)

T = TypeVar("T")

WORK, HELLO = "train.letheon", "query.letheon"
_RECORD, _CLIENT, _SAFETENSORS = "letheon", "client", "safetensors"
LOOK_S = 30.0
"""Seconds that a look for replies may take, even at the deadline."""
_APP_RAISED = 2  # Flower's code for a client app that raised: it would raise again


class Silence(RoundError):
    """The SuperLink does not answer."""


class Mail:
    """The messages of one round, and the replies as they come in."""

    def __init__(self, grid: Grid, terms: Terms, nodes: Callable[[], Mapping[str, int]], *, group: str) -> None:
        self._grid, self._terms, self._nodes, self._group = grid, terms, nodes, group
        self._until = time.monotonic() + terms.deadline_s
        self._sent: dict[str, str] = {}
        self._parcels: Mapping[str, Parcel] = {}
        self._kind = WORK
        self._tries: Counter[str] = Counter()
        self._answers: dict[str, Parcel | str] = {}

    @property
    def _left(self) -> float:
        return self._until - time.monotonic()

    def send(self, parcels: Mapping[str, Parcel], nodes: Mapping[str, int], *, kind: str = WORK) -> None:
        """One message to each client that is connected; the others have given their answer."""
        self._parcels, self._kind = parcels, kind
        self._answers |= dict.fromkeys(parcels.keys() - nodes.keys(), "is not connected")
        self._push({client: nodes[client] for client in parcels if client in nodes})

    def _push(self, nodes: Mapping[str, int]) -> None:
        if not nodes or self._left <= 0:
            return
        messages = [
            Message(content(self._parcels[client]), node, self._kind, ttl=self._left, group_id=self._group)
            for client, node in nodes.items()
        ]
        ids = within(self._left, lambda: list(self._grid.push_messages(messages)))
        for client, id in zip(nodes, [*ids, *[None] * (len(nodes) - len(ids))], strict=True):
            self._tries[client] += 1
            if id:
                self._sent[id] = client
            else:
                self._answers[client] = "the SuperLink did not take its message"

    def wait(self, client: str) -> Parcel | str:
        """The client's reply, or why there is none."""
        while client not in self._answers:
            is_last = self._left <= 0
            self._pull()
            if is_last:
                break
            if client not in self._answers:
                time.sleep(max(min(self._terms.poll_s, self._left), 0.0))
        return self._answers.pop(client, f"no reply within {self._terms.deadline_s:g} s")

    def _pull(self) -> None:
        try:
            messages = within(max(self._left, LOOK_S), lambda: list(self._grid.pull_messages(list(self._sent))))
        except Silence:
            return
        again = {}
        for message in messages:
            # Not by source: of a node that died the SuperLink speaks.
            client = self._sent.pop(message.metadata.reply_to_message_id, None)
            if client is None:
                continue
            is_lost = message.has_error() and message.error.code != _APP_RAISED
            node = self._nodes().get(client) if is_lost and self._tries[client] < self._terms.tries else None
            if node is None:
                self._answers[client] = _answer(message)
            else:
                log.warning("client %s: %s; asked again", client, _answer(message))
                again[client] = node
        self._push(again)


def _answer(message: Message) -> Parcel | str:
    if message.has_error():
        told = (message.error.reason or "").strip().splitlines()
        return f"Flower error {message.error.code}: {told[-1] if told else 'no reason given'}"
    try:
        return parcel_in(message.content)
    except RoundError as error:
        return str(error)


def within(seconds: float, call: Callable[[], T]) -> T:
    """The result of a call to Flower, which by itself waits for a SuperLink that is gone as long as it takes.

    Raises:
        Silence: there is none yet.
    """
    box: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(1)

    def work() -> None:
        try:
            box.put((call(), None))
        except BaseException as error:
            box.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        result, error = box.get(timeout=max(seconds, 0.001))
    except queue.Empty:
        raise Silence(f"flower: the SuperLink has not answered for {seconds:.0f} s; see whether it runs") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def content(parcel: Parcel) -> RecordDict:
    """A parcel as the content of a message. Flower itself sends arrays in chunks, and equal ones once."""
    array = Array(dtype="uint8", shape=(len(parcel.tensors),), stype=_SAFETENSORS, data=parcel.tensors)
    told = ConfigRecord({_RECORD: parcel.text, _CLIENT: parcel.client})
    return RecordDict({"text": told, "tensors": ArrayRecord({_RECORD: array})})


def parcel_in(content: RecordDict) -> Parcel:
    """The inverse of ``content``.

    Raises:
        RoundError: the message was not written by Letheon.
    """
    try:
        told, array = content.config_records["text"], content.array_records["tensors"][_RECORD]
        text, client = told[_RECORD], told[_CLIENT]
    except KeyError as error:
        raise RoundError(f"its message has no record {error}; install the same Letheon on both sides") from error
    if not isinstance(text, str) or not isinstance(client, str) or array.stype != _SAFETENSORS:
        raise RoundError(f"its message holds {type(text).__name__} and {array.stype!r}, expected str and safetensors")
    return Parcel(text, array.data, client)
