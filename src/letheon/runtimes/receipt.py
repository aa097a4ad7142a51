"""What the server makes of a client's reply before any method sees it: whole and in bounds, or an error by name.

Whether numbers are finite, and shapes those that were sent, is for the ``Quorum`` to say, as in every runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from letheon import tree
from letheon.client import KINDS
from letheon.errors import RoundError
from letheon.runtimes.records import Parcel, unpack_replies
from letheon.work import Reply, Work

LARGEST_FREE_REPLY = 2**28
"""Bytes, of a kind of work whose reply has no given shape, such as sums of products of features."""
OVERHEAD, OVERHEAD_OF_A_TENSOR = 2**16, 2**10
"""Bytes of a reply beyond its tensors: metrics, names, shapes."""
LONGEST_REASON = 500


def lost(works: Mapping[int, Work], client: str, reason: str) -> Iterator[Reply]:
    """No usable reply: of a client that is not heard nobody knows which of the works concern it."""
    yield from (Reply(at, client, {}, error=" ".join(reason.split())[:LONGEST_REASON]) for at in works)


def replies_in(works: Mapping[int, Work], client: str, parcel: Parcel) -> Iterator[Reply]:
    """The replies in a parcel, in the order of the works; nothing of a parcel that is not as it must be."""
    room = sum(_room(work) for work in works.values())
    if len(parcel) > room:
        return lost(works, client, f"its reply has {len(parcel)} bytes, {room} are expected at most; it was not read")
    try:
        replies = unpack_replies(parcel, client)
    except RoundError as error:
        return lost(works, client, str(error))
    places = [reply.work for reply in replies]
    if len(set(places)) < len(places) or not set(places) <= works.keys():
        return lost(works, client, f"it answers works {places}, asked were {list(works)}")
    return iter(sorted((_short(reply) for reply in replies), key=lambda reply: reply.work))


def _short(reply: Reply) -> Reply:
    return replace(reply, error=" ".join(reply.error.split())[:LONGEST_REASON])


def _room(work: Work) -> int:
    """The largest reply to a work, in bytes."""
    expected = KINDS[work.kind].expected(work)
    if expected is None:
        return LARGEST_FREE_REPLY
    tensors = expected[0] | expected[1]
    return tree.n_bytes(tensors) + OVERHEAD + OVERHEAD_OF_A_TENSOR * len(tensors)
