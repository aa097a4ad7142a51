"""Works and replies as text and bytes: what goes over a wire between machines.

Tensors travel as one safetensors file, in which each distinct tensor lies once; the rest is JSON. Both ends check what
they read: nothing is unpickled, no name is looked up in code, and every field has its type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any, Literal, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from letheon import config
from letheon.errors import ConfigError, RoundError
from letheon.request import Part, Request, Scope
from letheon.tree import Params
from letheon.work import Reply, Scalar, Work

VERSION = 1
"""Of the wire format. Both ends must have the same."""

DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)
"""Of the tensors that are read. Of others torch cannot say whether they are finite."""

T = TypeVar("T")
Number = float | Literal["nan", "inf", "-inf"]
"""JSON has no NaN. A reply that has is not damaged: the quorum names what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is sent: text, and the bytes of a safetensors file.

    Attributes:
        text: JSON.
        tensors: a safetensors file, or nothing.
        client: who is meant; apart from the text, so that clients with the same works get the same bytes.
    """

    text: str
    tensors: bytes
    client: str = ""

    def __len__(self) -> int:
        return len(self.text.encode()) + len(self.tensors)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request as it may be told to everybody: its id and whom or what it is about, never a sample.

    Attributes:
        id: of the request; the owner of the data keeps what it stands for.
        scope: ``client``, ``class`` or ``samples``.
        client: the client of scope ``client``.
        label: the label of scope ``class``.
    """

    id: str
    scope: Scope
    client: str | None = None
    label: int | None = None

    @classmethod
    def of(cls, request: Request) -> Admitted:
        """What may be told of a request."""
        return cls(request.id, request.scope, request.client, request.label)


@dataclass(frozen=True, slots=True)
class Order:
    """All that one client is sent in a round.

    Attributes:
        client: who is meant.
        works: by their position among those asked for together.
        admitted: the requests in force, in the order of their admission.
        life: whose life the requests belong to; experiments compare several lives of one federation.
    """

    client: str
    works: Mapping[int, Work]
    admitted: tuple[Admitted, ...] = ()
    life: str = ""


# The same in plain types, by which what is read is checked; tensors are named by their places in the file.


@dataclass(frozen=True, slots=True)
class _Asked:
    at: int
    kind: str
    part: Part
    request: str
    options: Mapping[str, Scalar]
    clients: tuple[str, ...] | None
    seed: int
    params: Mapping[str, int]
    buffers: Mapping[str, int]
    extras: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Sent:
    version: int
    works: tuple[_Asked, ...]
    admitted: tuple[Admitted, ...]
    life: str


@dataclass(frozen=True, slots=True)
class _Told:
    at: int
    weight: Number
    metrics: Mapping[str, Number]
    error: str
    tensors: Mapping[str, int]
    buffers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Answered:
    version: int
    replies: tuple[_Told, ...]


class _Hold:
    """Tensors on their way into a file; one that several works share goes in once."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._tensors: list[Tensor] = []

    def put(self, tensors: Mapping[str, Tensor]) -> dict[str, int]:
        """The place of each; their order is kept, since sums depend on it."""
        for tensor in tensors.values():
            if id(tensor) not in self._places:
                self._places[id(tensor)] = len(self._tensors)
                self._tensors.append(tensor)
        return {name: self._places[id(tensor)] for name, tensor in tensors.items()}

    def file(self) -> bytes:
        # Cloned: safetensors refuses tensors that share memory.
        named = {str(place): t.detach().cpu().clone().contiguous() for place, t in enumerate(self._tensors)}
        return safetensors.torch.save(named)


def pack_order(order: Order) -> Parcel:
    """An order as a parcel."""
    hold = _Hold()
    works = [
        {
            "at": at,
            "kind": work.kind,
            "part": work.part,
            "request": work.request,
            "options": dict(work.options),
            "clients": work.clients if work.clients is None else list(work.clients),
            "seed": work.seed,
            "params": hold.put(work.params),
            "buffers": hold.put(work.buffers),
            "extras": hold.put(work.extras),
        }
        for at, work in order.works.items()
    ]
    admitted = [asdict(each) for each in order.admitted]
    return replace(_packed({"works": works, "admitted": admitted, "life": order.life}, hold), client=order.client)


def unpack_order(parcel: Parcel) -> Order:
    """The inverse of ``pack_order``.

    Raises:
        RoundError: the parcel is damaged, or of another version of the format.
    """
    sent, tensors = _read(_Sent, parcel, "order")
    works = {
        asked.at: Work(
            asked.kind,
            _taken(tensors, asked.params),
            _taken(tensors, asked.buffers),
            asked.part,
            asked.request,
            asked.options,
            _taken(tensors, asked.extras),
            asked.clients,
            asked.seed,
        )
        for asked in sent.works
    }
    return Order(parcel.client, works, sent.admitted, sent.life)


def pack_replies(replies: Sequence[Reply]) -> Parcel:
    """One client's replies as a parcel; who it is, the receiver knows."""
    hold = _Hold()
    told = [
        {
            "at": reply.work,
            "weight": _number(reply.weight),
            "metrics": {name: _number(value) for name, value in reply.metrics.items()},
            "error": reply.error,
            "tensors": hold.put(reply.tensors),
            "buffers": hold.put(reply.buffers),
        }
        for reply in replies
    ]
    return _packed({"replies": told}, hold)


def unpack_replies(parcel: Parcel, client: str) -> list[Reply]:
    """The inverse of ``pack_replies``, for the parcel of ``client``.

    Raises:
        RoundError: the parcel is damaged, or of another version of the format.
    """
    answered, tensors = _read(_Answered, parcel, "replies")
    return [
        Reply(
            told.at,
            client,
            _taken(tensors, told.tensors),
            _taken(tensors, told.buffers),
            float(told.weight),
            {name: float(value) for name, value in told.metrics.items()},
            told.error,
        )
        for told in answered.replies
    ]


def _packed(content: dict[str, Any], hold: _Hold) -> Parcel:
    return Parcel(json.dumps({"version": VERSION} | content, allow_nan=False), hold.file())


def _number(value: float) -> Number:
    return value if isfinite(value) else str(float(value))  # type: ignore[return-value]


def _read(cls: type[T], parcel: Parcel, what: str) -> tuple[T, Params]:
    """The content, checked field by field, and the tensors by place."""
    try:
        content = json.loads(parcel.text)
        if not isinstance(content, dict) or content.get("version") != VERSION:
            found = content.get("version") if isinstance(content, dict) else "none"
            raise RoundError(
                f"{what}: wire format {found}, this side has {VERSION}; install the same Letheon on both sides"
            )
        return config.build(cls, content, what), _loaded(parcel.tensors)
    except (ValueError, ConfigError, safetensors.SafetensorError, RecursionError) as error:
        raise RoundError(f"{what}: damaged, or not written by Letheon ({error})") from error


def _loaded(file: bytes) -> Params:
    try:
        tensors = safetensors.torch.load(file)
    except KeyError as error:  # a type that safetensors knows and torch does not
        raise ValueError(f"a tensor of type {error}") from error
    other = {str(tensor.dtype) for tensor in tensors.values() if tensor.dtype not in DTYPES}
    if other:
        raise ValueError(f"a tensor of type {min(other)}")
    return tensors


def _taken(tensors: Params, places: Mapping[str, int]) -> Params:
    missing = [name for name, place in places.items() if str(place) not in tensors]
    if missing:
        raise RoundError(f"{missing[0]}: its tensor was not sent")
    return {name: tensors[str(place)] for name, place in places.items()}
