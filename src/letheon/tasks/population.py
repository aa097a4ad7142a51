"""Who holds what, and what is to be forgotten: from a task, a partition and a target to clients and a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch
from torch import Tensor

from letheon.data import Data, concat
from letheon.errors import DataError, RequestError
from letheon.phase import seed_of
from letheon.request import Request, free
from letheon.tasks.base import Task
from letheon.tasks.partition import Partition
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger

LEAST_CLASSES = 3
"""A client picked by rule for client-level unlearning holds at least so many classes."""


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """A federation's data and the request against it.

    Attributes:
        clients: data by name; the order of names is the order of shares.
        request: checked against ``clients``.
        test: the clean test set.
        triggered_test: test samples with the trigger and its label, or ``None`` if the data carry no trigger.
        forget_size: |D_u|, how many samples the request covers.
        notes: what a report should say about how this came about.
        later: the same federation with each of the requests that follow.
        earlier: the requests served before this one.
        parts: if several requests are served together, the same federation with each of them alone.
    """

    clients: dict[str, Data]
    request: Request
    test: Data
    triggered_test: Data | None
    forget_size: int
    notes: tuple[str, ...]
    later: tuple[Population, ...] = ()
    earlier: tuple[Request, ...] = ()
    parts: tuple[Population, ...] = ()

    def covered(self, client: str) -> Tensor:
        """``(n,)`` bool: the data to forget of a client: what this request covers and no earlier one did."""
        return self.request.covers(client, self.clients[client], self.earlier)

    @property
    def labels(self) -> frozenset[int]:
        """The classes that the requests, this one and the later ones, remove."""
        return frozenset().union(*(request.labels for request in self.requests))

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests, in the order in which they are served."""
        return (self.request, *(population.request for population in self.later))

    @property
    def views(self) -> dict[str, Population]:
        """Of every request by number: ``1``, ``2``; of those served together also each alone: ``1.1``, ``1.2``."""
        found = dict[str, Population]()
        for number, each in enumerate((self, *self.later), 1):
            found |= {f"{number}": each} | {f"{number}.{place}": part for place, part in enumerate(each.parts, 1)}
        return found


Clients = dict[str, Data]
Built = tuple[Clients, Request, tuple[str, ...]]


def populate(
    task: Task, partition: Partition, target: Target, *, clients: int, seed: int, then: Sequence[Target] = ()
) -> Population:
    """Deal ``task``'s training set to ``clients`` clients and construct the data to forget among them.

    Client level: all of the client's data carry the trigger and its label; its samples that truly are of the target
    class take no part. Sample level: the chosen samples are replaced by their triggered versions, and their owners
    keep their clean rest. Class level: the data stay as they are. What goes together is constructed one after the
    other. The targets of ``then`` are constructed after the first one, each from what no earlier request covers.

    Raises:
        DataError: too little data for the partition or for the request.
        RequestError: the request names nothing that exists, or leaves nothing to retain.
    """
    held, requests, notes = _named_shares(task, partition, clients, seed), list[Request](), list[tuple[str, ...]]()
    for number, each in enumerate((target, *then)):
        own_seed = seed if number == 0 else seed_of(f"{seed}|request {number}")
        held, request, told = _forget(held, each, task, own_seed, requests)
        requests.append(request)
        notes.append(told)
    _check(requests, held)
    whole = _Whole(task, held, task.test())
    first, *later = [
        whole.population(each, request, told, earlier=tuple(requests[:number]))
        for number, (each, request, told) in enumerate(zip((target, *then), requests, notes, strict=True))
    ]
    return replace(first, later=tuple(later))


def _forget(clients: Clients, target: Target, task: Task, seed: int, earlier: Sequence[Request]) -> Built:
    """Construct what a target wants forgotten, and all that goes together with it."""
    members, notes = list[Request](), tuple[str, ...]()
    for number, each in enumerate(target.members):
        build = {"client": _forget_client, "class": _forget_class, "samples": _forget_samples}[each.scope]
        own_seed = seed if number == 0 else seed_of(f"{seed}|together {number}")
        clients, request, told = build(clients, each, task, own_seed, [*earlier, *members])
        members.append(request)
        notes += told
    return clients, replace(members[0], also=tuple(members[1:])), notes


def _check(requests: Sequence[Request], held: Clients) -> None:
    for number, request in enumerate(requests):
        request.check(held)
        for each in request.members:
            _check_covers(each, number, requests[:number], held)
    if not any(bool(free(requests, name, data).any()) for name, data in held.items()):
        raise RequestError("requests: together they cover every sample of the federation; nothing is left to retain")


def _check_covers(request: Request, number: int, earlier: Sequence[Request], held: Clients) -> None:
    if not any(bool(request.covers(name, data, earlier).any()) for name, data in held.items()):
        raise RequestError(
            f"request {number + 1}: earlier requests cover all that it covers; triggered samples carry the "
            "trigger's target as their label, so a class request must be for another label"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """A federation with all its requests constructed."""

    task: Task
    held: Clients
    test: Data

    def population(
        self, target: Target, request: Request, notes: tuple[str, ...], *, earlier: tuple[Request, ...]
    ) -> Population:
        """The federation with one of the requests."""
        size = sum(int(request.covers(name, data, earlier).sum()) for name, data in self.held.items())
        marked = [each.trigger for each in target.members if each.scope != "class" and each.trigger]
        triggered = [_poisoned(trigger, self.test, self.task) for trigger in marked]
        alone = zip(target.members, request.members, strict=True) if request.also else ()
        return Population(
            clients=self.held,
            request=request,
            test=self.test,
            triggered_test=concat(triggered) if triggered else None,
            forget_size=size,
            notes=(_note_on_sizes(self.held), *notes, f"{size} samples to forget"),
            earlier=earlier,
            parts=tuple(self.population(each, own, (), earlier=earlier) for each, own in alone),
        )


def _named_shares(task: Task, partition: Partition, clients: int, seed: int) -> Clients:
    data = task.train()
    shares = partition.split(data.targets, clients, classes=task.classes, seed=seed)
    digits = max(3, len(str(clients - 1)))  # padded: the order of names is the order of shares
    return {f"c{i:0{digits}}": data.take(index) for i, index in enumerate(shares)}


def _forget_client(clients: Clients, target: Target, task: Task, seed: int, earlier: Sequence[Request]) -> Built:
    def is_eligible(name: str, data: Data) -> bool:
        enough = int(_usable(target.trigger, data).sum()) >= target.min_forget
        return enough and len(data.targets.unique()) >= LEAST_CLASSES and bool(free(earlier, name, data).all())

    what = f"{LEAST_CLASSES} classes and {target.min_forget} samples that the trigger can relabel (min_forget)"
    what += ", none of an earlier request" if earlier else ""
    name, notes = _owner(clients, target, is_eligible, what)
    before = clients[name]
    if not bool(free(earlier, name, before).all()):
        raise RequestError(
            f"request: client {name} holds data of an earlier request; name another client, or list whole clients "
            "before what else goes together with them"
        )
    after = _poisoned(target.trigger, before, task)
    if len(after) < len(before):
        notes += (f"client {name}: {len(before) - len(after)} samples of the trigger's own class take no part",)
    if len(after) < target.min_forget:
        notes += (f"client {name}: {len(after)} samples to forget, fewer than min_forget = {target.min_forget}",)
    return clients | {name: after}, Request("client", client=name), notes


def _forget_class(clients: Clients, target: Target, task: Task, seed: int, earlier: Sequence[Request]) -> Built:
    holders = sum(bool((data.targets == target.label).any()) for data in clients.values())
    return clients, Request("class", label=target.label), (f"label {target.label} is held by {holders} clients",)


def _forget_samples(clients: Clients, target: Target, task: Task, seed: int, earlier: Sequence[Request]) -> Built:
    def usable(name: str) -> Tensor:
        return _usable(target.trigger, clients[name]) & free(earlier, name, clients[name])

    total = sum(map(len, clients.values()))
    count = round(target.fraction * total)
    if count < 1:
        raise DataError(f"request: fraction {target.fraction} of {total} samples is less than one; raise fraction")
    names = list(clients)
    notes: tuple[str, ...] = (f"{count} samples drawn from all clients",)
    if target.placement == "one_client":
        what = f"{count} samples that the trigger can relabel ({target.fraction} of {total})"
        name, notes = _owner(clients, target, lambda name, data: int(usable(name).sum()) >= count, what)
        _require(clients, name, count, target.trigger, what)
        names = [name]
    ids = torch.cat([clients[name].ids[usable(name)] for name in names])
    if len(ids) < count:
        raise DataError(f"request: {count} samples wanted, but only {len(ids)} can be relabelled; lower fraction")
    order = np.random.default_rng(seed_of(f"{seed}|samples to forget")).choice(len(ids), count, replace=False)
    chosen = ids[torch.from_numpy(np.sort(order))]
    held = {name: _with_poisoned(data, chosen, target.trigger, task) for name, data in clients.items()}
    return held, Request("samples", samples=tuple(chosen.tolist())), notes


def _with_poisoned(data: Data, chosen: Tensor, trigger: Trigger | None, task: Task) -> Data:
    """``data`` in its order, its samples among the ids ``chosen`` replaced by their triggered versions."""
    is_chosen = torch.isin(data.ids, chosen)
    if trigger is None or not bool(is_chosen.any()):
        return data
    poisoned = _poisoned(trigger, data.take(is_chosen), task)
    inputs, targets = data.inputs.clone(), data.targets.clone()
    inputs[is_chosen], targets[is_chosen] = poisoned.inputs, poisoned.targets
    return Data(inputs, targets, data.ids)


def _owner(
    clients: Clients, target: Target, is_eligible: Callable[[str, Data], bool], what: str
) -> tuple[str, tuple[str, ...]]:
    """The client that was named, or else the eligible one nearest the median size, and how it was chosen."""
    if target.client is not None:
        if target.client not in clients:
            Request("client", client=target.client).check(clients)
        return target.client, (f"client {target.client} was named by the experiment",)
    middle = median(map(len, clients.values()))
    eligible = [name for name, data in clients.items() if is_eligible(name, data)]
    if not eligible:
        raise DataError(
            f"request: no client holds {what}; {_table(clients, target.trigger)}. "
            "Ask for less, use fewer clients, or name a client."
        )
    name = min(eligible, key=lambda name: abs(len(clients[name]) - middle))
    return name, (f"client {name} was chosen: of {len(eligible)} with {what}, nearest the median size {middle:g}",)


def _require(clients: Clients, name: str, count: int, trigger: Trigger | None, what: str) -> None:
    if int(_usable(trigger, clients[name]).sum()) < count:
        raise DataError(
            f"request: client {name} does not hold {what}; {_table(clients, trigger)}. "
            "Lower fraction, name a larger client, or use placement 'spread'."
        )


def _usable(trigger: Trigger | None, data: Data) -> Tensor:
    return torch.ones_like(data.targets, dtype=torch.bool) if trigger is None else trigger.usable(data.targets)


def _poisoned(trigger: Trigger | None, data: Data, task: Task) -> Data:
    return data if trigger is None else trigger.poison(data, bright=task.bright, classes=task.classes)


def _table(clients: Mapping[str, Data], trigger: Trigger | None) -> str:
    """Sizes in words, the largest clients first."""
    ranked = sorted(clients, key=lambda name: -len(clients[name]))
    rows = [
        f"{name} {int(_usable(trigger, clients[name]).sum())} of {len(clients[name])} in "
        f"{len(clients[name].targets.unique())} classes"
        for name in ranked[:10]
    ]
    return "usable samples: " + ", ".join(rows) + (" …" if len(ranked) > 10 else "")


def _note_on_sizes(clients: Mapping[str, Data]) -> str:
    sizes = sorted(map(len, clients.values()))
    return f"{len(sizes)} clients with {sizes[0]} to {sizes[-1]} samples, median {median(sizes):g}"
