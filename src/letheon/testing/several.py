"""Checks of several requests.

One after another: what was forgotten once is no part of anything that follows. Together, in one pass: all of it goes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from letheon.data import Data
from letheon.methods.base import Method
from letheon.request import Request, Scope
from letheon.testing.faults import demand_resumption
from letheon.testing.rules import demand_nothing_is_kept, demand_order_does_not_matter
from letheon.testing.scene import Scene, demand, digest, second, together


def first_request_takes_no_part(method: Method, scope: Scope) -> None:
    """Serving a second request, the method works on nothing that the first one covered.

    The result is the same to the last bit with other inputs in its place. At client level there is nobody to ask: a
    client all of whose data are forgotten is in no part of any work.
    """
    scene = second(scope)
    start = scene.start(method)
    with _overwritten(scene, scene.requests[0]).runtime() as runtime:
        end = scene.drive(method, scene.guarded(runtime), start=start)
    demand(
        digest(end) == digest(scene.reference(method).end),
        "works again on data that the first request covered; let the client select the part, it knows all requests",
    )


def _overwritten(scene: Scene, request: Request) -> Scene:
    """The scene with other inputs wherever ``request`` covers a sample; who holds which ids and labels stays."""

    def other(name: str, data: Data) -> Data:
        inputs, covered = data.inputs.clone(), request.mask(name, data)
        inputs[covered] = 3.0 - inputs[covered].flip(-1)
        return Data(inputs, data.targets, data.ids)

    clients = {name: other(name, data) for name, data in scene.clients.items()}
    changed = [name for name in clients if not torch.equal(clients[name].inputs, scene.clients[name].inputs)]
    demand(changed, "the first request covers nothing")
    return replace(scene, clients=clients, _references={})


def second_order_does_not_matter(method: Method, scope: Scope) -> None:
    """As ``client_order_does_not_matter``, for a second request."""
    demand_order_does_not_matter(method, second(scope))


def second_resumes_bit_for_bit(method: Method, scope: Scope) -> None:
    """As ``resumes_bit_for_bit``, for a second request."""
    demand_resumption(method, second(scope))


def second_keeps_nothing(method: Method, scope: Scope) -> None:
    """As ``nothing_is_kept``, for a second request: neither request's client is named, nothing of either is kept."""
    demand_nothing_is_kept(method, second(scope))


def members_are_alike(method: Method, scope: Scope) -> None:
    """Of requests served together none comes first: named in reverse, the bits are the same.

    Each scope that the method claims is tried beside this one, unless it mixes none.
    """
    for other in sorted(method.scopes) if method.mixes else [scope]:
        ends = [together(scope, other, backwards=backwards).reference(method).end for backwards in (False, True)]
        demand(
            digest(ends[0]) == digest(ends[1]),
            f"a {scope} and a {other} request served together depend on which is named first; "
            "let the client select the part, it knows all members",
        )


def together_order_does_not_matter(method: Method, scope: Scope) -> None:
    """As ``client_order_does_not_matter``, for requests served together: several clients hold what is to go."""
    demand_order_does_not_matter(method, together(scope, scope))


def together_keeps_nothing(method: Method, scope: Scope) -> None:
    """As ``nothing_is_kept``, for requests served together: no client of any of them is named."""
    demand_nothing_is_kept(method, together(scope, scope))
