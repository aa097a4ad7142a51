"""Work and replies: the whole conversation between a method and its clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from letheon.errors import RoundError
from letheon.request import Part, Request
from letheon.tree import Params

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Work:
    """What a client is asked to do: plain data, so that it can go over any wire.

    Attributes:
        kind: name of a function registered with ``@client_work``.
        params: trainable tensors to start from.
        buffers: BatchNorm statistics and the like; never mixed with ``params``.
        part: which of its data the client uses. Clients whose part is empty are not asked.
        request: id of the request that ``part`` refers to.
        options: scalars for the work function.
        extras: further tensors: a frozen adapter, a projection basis, a reference model.
        clients: who is asked; None: everybody. Of those asked, who holds nothing of the part does not answer.
        seed: set by ``Seeded``; the client mixes in its own name.
    """

    kind: str
    params: Params
    buffers: Params = field(default_factory=dict)
    part: Part = "all"
    request: str = ""
    options: Mapping[str, Scalar] = field(default_factory=dict)
    extras: Params = field(default_factory=dict)
    clients: tuple[str, ...] | None = None
    seed: int = 0

    def asks(self, client: str) -> bool:
        """Whether ``client`` is among those asked."""
        return self.clients is None or client in self.clients


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client answers.

    Attributes:
        work: which of the works asked for together, by position.
        client: the client's name.
        tensors: usually the update w_k − w.
        buffers: the client's buffers after the work.
        weight: number of samples used.
        metrics: scalars such as ``samples``, ``flops``, ``loss``.
        error: empty, or why the client could not do the work; the other fields are then void.
    """

    work: int
    client: str
    tensors: Params
    buffers: Params = field(default_factory=dict)
    weight: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


class Federation(Protocol):
    """The only thing that a method may call."""

    def run(self, *works: Work) -> Iterator[Reply]:
        """Ask every client that holds the respective part for each work; replies come in client order.

        Several works asked for together reach a client in one message.
        """
        ...


class Runtime(Federation, Protocol):
    """A federation with the clients themselves behind it, in this process or elsewhere.

    Class attributes:
        gives: what of ``Method.needs`` can be had.
    """

    gives: ClassVar[frozenset[str]]

    def admit(self, requests: Sequence[Request], *, life: str = "") -> None:
        """From now on these requests, in this order, and no others are in force at every client.

        Args:
            requests: in the order of their admission.
            life: whose requests they are. The methods of an experiment each live a life of their own with the same
                clients, and a client that keeps a table of what it admitted has to tell them apart.
        """
        ...

    def close(self) -> None:
        """Let go of what is this runtime's own. A closed runtime cannot run again."""
        ...


@dataclass(frozen=True, slots=True)
class Average:
    """A weighted mean over replies.

    Attributes:
        tensors: Σ n_k Δ_k / Σ n_k.
        buffers: aggregated by ``BufferMean``.
        weight: Σ n_k.
        clients: who took part, in the order of their replies.
        metrics: weighted means of the replies' metrics.
    """

    tensors: Params
    buffers: Params
    weight: float
    clients: tuple[str, ...]
    metrics: Mapping[str, float]


class _Sum:
    """Running weighted sum in float64: memory O(model), whatever the number of clients."""

    def __init__(self) -> None:
        self.total: Params = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.weight = 0.0

    def push(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        if self.weight and tensors.keys() != self.total.keys():
            raise RoundError(f"average: replies name different tensors: {sorted(tensors.keys() ^ self.total.keys())}")
        for name, tensor in tensors.items():
            if name not in self.total:
                self.total[name] = torch.zeros(tensor.shape, dtype=torch.float64)
                self.dtypes[name] = tensor.dtype
            total = self.total[name]
            if total.shape != tensor.shape:
                raise RoundError(
                    f"average: replies disagree on the shape of {name}: {tuple(total.shape)}, {tuple(tensor.shape)}"
                )
            total.add_(tensor, alpha=weight)
        self.weight += weight

    def mean(self) -> Params:
        return {name: (total / self.weight).to(self.dtypes[name]) for name, total in self.total.items()}


class BufferMean:
    """Aggregation of buffers: counters by maximum, floats by weighted mean, variances by the law of total variance.

    A plain mean of ``running_var`` ignores how far the clients' means lie apart; with ``running_mean`` beside it the
    pooled variance is Σ p_k (v_k + m_k²) − (Σ p_k m_k)², which is never negative up to rounding.
    """

    def __init__(self) -> None:
        self._floats = _Sum()
        self._squares = _Sum()
        self._counters: Params = {}

    def push(self, buffers: Mapping[str, Tensor], weight: float) -> None:
        floats = {n: b for n, b in buffers.items() if b.is_floating_point()}
        self._floats.push(floats, weight)
        means = {n: b.double() ** 2 for n, b in floats.items() if n.endswith("running_mean")}
        self._squares.push(means, weight)
        for name, buffer in buffers.items():
            if name not in floats:
                seen = self._counters.get(name)
                self._counters[name] = buffer if seen is None else torch.maximum(seen, buffer)

    def mean(self) -> Params:
        if not self._floats.weight:
            return {}
        means = self._floats.mean()
        for name, squares in self._squares.mean().items():
            variance = name.removesuffix("running_mean") + "running_var"
            if variance in means:
                spread = (squares - means[name].double() ** 2).clamp_min(0.0)
                means[variance] = (means[variance].double() + spread).to(means[variance].dtype)
        return means | self._counters


def averages(replies: Iterable[Reply], works: int) -> tuple[Average, ...]:
    """One weighted mean for each of ``works`` works asked for together, in one pass over the stream.

    Raises:
        RoundError: a work without one usable reply; a mean over nothing is never a zero update.
    """
    tensors = [_Sum() for _ in range(works)]
    buffers = [BufferMean() for _ in range(works)]
    metrics: list[dict[str, float]] = [{} for _ in range(works)]
    clients: list[list[str]] = [[] for _ in range(works)]
    for reply in replies:
        if reply.error:
            raise RoundError(f"client {reply.client}: {reply.error}")
        if reply.weight <= 0:
            continue
        tensors[reply.work].push(reply.tensors, reply.weight)
        buffers[reply.work].push(reply.buffers, reply.weight)
        clients[reply.work].append(reply.client)
        for name, value in reply.metrics.items():
            metrics[reply.work][name] = metrics[reply.work].get(name, 0.0) + reply.weight * value
    return tuple(
        _average(i, tensors[i], buffers[i], tuple(clients[i]), metrics[i]) for i in range(works)
    )


def _average(
    index: int, tensors: _Sum, buffers: BufferMean, clients: tuple[str, ...], metrics: dict[str, float]
) -> Average:
    if not clients:
        raise RoundError(
            f"average: no usable reply to work {index}; the round is refused and the old model kept. "
            "Check that some client holds the part that was asked for."
        )
    weight = tensors.weight
    means = {name: value / weight for name, value in metrics.items()}
    return Average(tensors.mean(), buffers.mean(), weight, clients, means)


def average(replies: Iterable[Reply]) -> Average:
    """The weighted mean of the replies to one work."""
    return averages(replies, 1)[0]


def separate(replies: Iterable[Reply], works: int) -> list[list[Reply]]:
    """The usable replies to each work, one by one; a work without any is refused, as by ``averages``."""
    kept: list[list[Reply]] = [[] for _ in range(works)]
    for reply in replies:
        if reply.error:
            raise RoundError(f"client {reply.client}: {reply.error}")
        if reply.weight > 0:
            kept[reply.work].append(reply)
    for index, usable in enumerate(kept):
        if not usable:
            raise RoundError(f"no usable reply to work {index}; the round is refused and the old model kept")
    return kept


def pooled(replies: Iterable[Reply]) -> Params:
    """The buffers of replies that were kept one by one, aggregated by ``BufferMean``."""
    mean = BufferMean()
    for reply in replies:
        mean.push(reply.buffers, reply.weight)
    return mean.mean()
