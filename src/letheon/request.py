"""Deletion requests, resolved in one place: ``Request.select``.

Client-, class- and sample-level unlearning differ here and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from letheon.data import Data
from letheon.errors import RequestError

Scope = Literal["client", "class", "samples"]
Part = Literal["all", "forget", "retain"]


@dataclass(frozen=True)
class Request:
    """What is to be forgotten.

    Attributes:
        scope: ``client`` (all its data), ``class`` (every sample of a label, wherever it lies) or ``samples`` (ids).
        client: the client of scope ``client``.
        label: the label of scope ``class``.
        samples: the sample ids of scope ``samples``.
        also: requests that are served in the same pass: what is to be forgotten is the union.
    """

    scope: Scope
    client: str | None = None
    label: int | None = None
    samples: tuple[int, ...] = ()
    also: tuple[Request, ...] = ()

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise RequestError(f"request: unknown scope {self.scope!r}; use one of {', '.join(get_args(Scope))}")
        needed = {"client": self.client is not None, "class": self.label is not None, "samples": bool(self.samples)}
        if not needed[self.scope]:
            field = {"client": "client", "class": "label", "samples": "samples"}[self.scope]
            raise RequestError(f"request: scope {self.scope!r} needs the field {field!r}")
        if any(each.also for each in self.also):
            raise RequestError("request: one that is served together with others holds none itself; list them all")

    @cached_property
    def members(self) -> tuple[Request, ...]:
        """The requests that are served in one pass, each on its own."""
        return (replace(self, also=()), *self.also)

    @property
    def scopes(self) -> frozenset[Scope]:
        """The scopes of its members."""
        return frozenset(each.scope for each in self.members)

    @property
    def clients(self) -> frozenset[str]:
        """The clients that go altogether."""
        return frozenset(each.client for each in self.members if each.scope == "client" and each.client is not None)

    @property
    def labels(self) -> frozenset[int]:
        """The classes that go altogether."""
        return frozenset(each.label for each in self.members if each.scope == "class" and each.label is not None)

    @cached_property
    def id(self) -> str:
        """Name of the request, derived from its content; it lists no sample.

        Few samples can be found from it by trying: a site gives its requests other ids, see ``Exclusions.file``.
        """
        if self.also:
            text = "+".join(each.id for each in self.members)
        else:
            text = repr((self.scope, self.client, self.label, tuple(sorted(self.samples))))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def _sample_ids(self) -> Tensor:
        return torch.tensor(sorted(self.samples), dtype=torch.int64)

    def mask(self, client: str, data: Data) -> Tensor:
        """``(n,)`` bool: which samples of ``client`` the request covers."""
        if self.also:
            return ~free(self.members, client, data)
        if self.scope == "client":
            return torch.full((len(data),), client == self.client)
        if self.scope == "class":
            return torch.eq(data.targets, self.label)  # type: ignore[arg-type]
        return torch.isin(data.ids, self._sample_ids)

    def covers(self, client: str, data: Data, earlier: Iterable[Request] = ()) -> Tensor:
        """``(n,)`` bool: what the request covers and no request of ``earlier`` covered before it."""
        return self.mask(client, data) & free(earlier, client, data)

    def select(self, client: str, data: Data, part: Part) -> Data:
        """The part of ``client``'s data that the request forgets, retains, or all of it."""
        if part == "all":
            return data
        mask = self.mask(client, data)
        return data.take(mask if part == "forget" else ~mask)

    def check(self, clients: Mapping[str, Data]) -> None:
        """Raise ``RequestError`` if the request names nothing that exists, or leaves nothing to retain."""
        for each in self.members:
            each._check_names(clients)
            if not any(bool(each.mask(name, data).any()) for name, data in clients.items()):
                raise RequestError(f"request {each.id}: covers no sample of any client; nothing to forget")
        sizes = {name: int(self.mask(name, data).sum()) for name, data in clients.items()}
        if sum(sizes.values()) == sum(len(data) for data in clients.values()):
            raise RequestError(
                f"request {self.id}: covers every sample of the federation; nothing would be left to retain. "
                "Delete the model instead, or narrow the request."
            )

    def _check_names(self, clients: Mapping[str, Data]) -> None:
        if self.scope == "client" and self.client not in clients:
            known = ", ".join(sorted(clients)[:8]) + (" …" if len(clients) > 8 else "")
            raise RequestError(f"request: unknown client {self.client!r}; the federation has {known}")
        if self.scope == "class":
            labels = sorted({int(y) for data in clients.values() for y in data.targets.unique()})
            if self.label not in labels:
                raise RequestError(f"request: no client holds label {self.label}; labels present: {labels}")
        if self.scope == "samples":
            present = {int(i) for data in clients.values() for i in data.ids[self.mask("", data)]}
            unknown = sorted(set(self.samples) - present)
            if unknown:
                raise RequestError(
                    f"request: {len(unknown)} of {len(self.samples)} sample ids are held by no client, "
                    f"for instance {unknown[:5]}; only enrolled samples can be forgotten"
                )


def free(requests: Iterable[Request], client: str, data: Data) -> Tensor:
    """``(n,)`` bool: which samples of ``client`` none of the requests covers."""
    left = torch.ones(len(data), dtype=torch.bool)
    for request in requests:
        left &= ~request.mask(client, data)
    return left
