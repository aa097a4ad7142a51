"""Exact unlearning of ridge heads on a frozen extractor (Quan, Wu, Montana, arXiv 2603.12977)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from letheon import tree
from letheon.adapter import penultimate
from letheon.client import Client, client_work
from letheon.data import Data
from letheon.errors import ConfigError, MethodError, RequestError, RoundError
from letheon.methods.base import Method
from letheon.phase import Phase, State
from letheon.request import Part
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Reply, Work

GRAM, MOMENT = "ridge/gram", "ridge/moment"
ROUNDING = 1e-9
"""A smallest eigenvalue below zero by less than this share of the trace is rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """All that a ridge head needs to know of a set of samples; float64.

    The last feature is the constant 1, whose weights are the bias: the last row of ``moment`` counts the samples of
    each class.

    Attributes:
        gram: A = Σ φφᵀ, ``(d + 1, d + 1)``.
        moment: B = Σ φyᵀ with one-hot y, ``(d + 1, classes)``.
    """

    gram: Tensor
    moment: Tensor

    @classmethod
    def of(cls, features: Tensor, targets: Tensor, classes: int) -> Self:
        """Of ``(n, d)`` features and ``(n,)`` labels."""
        phi = F.pad(features.double(), (0, 1), value=1.0)
        return cls(phi.T @ phi, phi.T @ F.one_hot(targets, classes).double())

    @classmethod
    def none(cls, features: int, classes: int) -> Self:
        """Of no samples."""
        size = features + 1
        return cls(torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, classes, dtype=torch.float64))

    def added(self, other: Statistics) -> Statistics:
        """Of both sets together."""
        return Statistics(self.gram + other.gram, self.moment + other.moment)

    def deleted(self, other: Statistics) -> Statistics:
        """Of this set without ``other``, which must be part of it.

        Two signs of samples that were never added are looked for: a class with fewer than no samples, and a matrix A
        that is not positive semidefinite any more. Without the samples themselves there is no proof that they were.

        Raises:
            RequestError: ``other`` was never added.
        """
        left = Statistics(self.gram - other.gram, self.moment - other.moment)
        short = (left.moment[-1] < -0.5).nonzero().flatten().tolist()
        lowest = float(torch.linalg.eigvalsh(left.gram)[0])
        if short or lowest < -ROUNDING * float(self.gram.trace()):
            what = (
                f"more samples of class {short[0]} than there are" if short else f"an eigenvalue of A of {lowest:.3g}"
            )
            raise RequestError(
                f"ridge: the data to delete were never added (it would leave {what}); "
                "delete what the statistics were gathered from, on the same extractor"
            )
        return left

    def solve(self, penalty: float) -> Tensor:
        """W = (A + λI)⁻¹B, ``(d + 1, classes)``, by Cholesky; the bias is penalised like all other weights."""
        regular = self.gram + penalty * torch.eye(len(self.gram), dtype=torch.float64)
        weights: Tensor = torch.cholesky_solve(self.moment, torch.linalg.cholesky(regular))
        return weights


def woodbury(inverse: Tensor, features: Tensor, sign: Literal[1, -1]) -> Tensor:
    """(A + λI ± ΦᵀΦ)⁻¹ from (A + λI)⁻¹: + adds the samples, − deletes them.

    P ∓ PΦᵀ (I ± ΦPΦᵀ)⁻¹ ΦP, O(nd² + n³) where a new factorisation takes O(d³). For a server that is given the features
    of n ≪ d samples; ``Ridge`` is given their statistics, and factorises.

    Args:
        inverse: P, ``(d + 1, d + 1)`` float64.
        features: Φ, ``(n, d + 1)`` float64 with the constant feature.
        sign: 1 to add, −1 to delete.
    """
    along = features @ inverse
    small = torch.eye(len(features), dtype=torch.float64) + sign * along @ features.T
    change: Tensor = along.T @ torch.linalg.solve(small, along)
    return inverse - sign * change


def _statistics_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """A forward pass of each sample, and its products with its features and its label."""
    size = work.params[f"{task.head}.weight"].shape[1] + 1
    return {"samples": float(n), "flops": float(n) * (task.flops + 2 * size * (size + task.classes))}


@client_work("ridge-statistics", _statistics_cost, answers="free")
def _statistics(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """The statistics of the part; what an earlier request deleted is not in it."""
    task = client.task
    found = Statistics.of(penultimate(module, task.head, data.inputs), data.targets, task.classes)
    return Reply(0, client.name, {GRAM: found.gram, MOMENT: found.moment})


@dataclass(frozen=True)
class Ridge(Method):
    """A linear head by ridge regression on a frozen extractor, from which samples are subtracted exactly.

    It trains its own Origin in one round: clients send (A_k, B_k), the server adds them up and solves for the head.
    To delete, the holders send the statistics of what is to go, and the server subtracts and solves again. The result
    is, up to rounding, the head that training on the retained data alone gives, whatever the order and the partition.

    What is exact is the head. The extractor is the task's initial weights, random features that have seen no data: a
    pretrained one would be outside of what is unlearned. The promise ends with the first round of continued training,
    which is plain FedAvg on all weights. A and B stay at the server, sums over all clients.

    Attributes:
        penalty: λ.
        local: unused; no client trains.
    """

    name: ClassVar[str] = "ridge"
    needs: ClassVar[frozenset[str]] = frozenset({"per-client"})  # the sum of the replies, not their weighted mean

    penalty: float = 1.0
    local: Local | None = None

    def __post_init__(self) -> None:
        if self.penalty <= 0:
            raise ConfigError(f"ridge.penalty: must be positive, got {self.penalty}")

    def origin(self, task: Task, local: Local, rounds: int) -> Sequence[Phase]:
        def gather(federation: Federation, state: State, t: int) -> State:
            return self.solved(state, task, asked(federation, state, task, "all"))

        return [Phase("gather", gather)]

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        def delete(federation: Federation, state: State, t: int) -> State:
            kept = self.kept(state, task)
            return self.solved(state, task, kept.deleted(asked(federation, state, task, "forget")))

        return [Phase("delete", delete)]

    def kept(self, state: State, task: Task) -> Statistics:
        """The statistics in memory; refused unless the model's head is still theirs."""
        if not {GRAM, MOMENT} <= state.memory.keys():
            raise MethodError("ridge: this model has no statistics to delete from; start from ridge's own training")
        kept = Statistics(state.memory[GRAM], state.memory[MOMENT])
        name = f"{task.head}.weight"
        if not torch.allclose(self.solved(state, task, kept).params[name], state.params[name], rtol=1e-4, atol=1e-6):
            raise MethodError("ridge: the model was trained since its head was solved for; nothing is exact any more")
        return kept

    def solved(self, state: State, task: Task, statistics: Statistics) -> State:
        """The state with the statistics in its memory and their head in its params; the extractor stays."""
        weights = statistics.solve(self.penalty)
        head = {f"{task.head}.weight": weights[:-1].T.contiguous(), f"{task.head}.bias": weights[-1]}
        if not head.keys() <= state.params.keys():
            raise MethodError(f"ridge: the module {task.head!r} needs a weight and a bias, for the constant feature")
        params = {name: head[name].to(old.dtype) if name in head else old for name, old in state.params.items()}
        memory = state.memory | {GRAM: statistics.gram, MOMENT: statistics.moment}
        return replace(state, params=params, memory=memory)


def asked(federation: Federation, state: State, task: Task, part: Part) -> Statistics:
    """The statistics of a part, over all clients that hold some of it."""
    work = Work("ridge-statistics", state.params, state.buffers, part)
    features = state.params[f"{task.head}.weight"].shape[1]
    return total(federation.run(work), Statistics.none(features, task.classes))


def total(replies: Iterable[Reply], start: Statistics) -> Statistics:
    """Their sum, on top of ``start``; a sum over nothing is refused, as a mean over nothing is."""
    sums: Params = {GRAM: start.gram, MOMENT: start.moment}
    answered = 0
    for reply in replies:
        if reply.error:
            raise RoundError(f"client {reply.client}: {reply.error}")
        answered += reply.weight > 0
        if reply.tensors and reply.weight > 0:  # a dry run answers without
            try:
                sums = tree.add(sums, reply.tensors)
            except ValueError as error:
                raise RoundError(f"client {reply.client}: its statistics do not fit: {error}") from error
    if not answered:
        raise RoundError("ridge: no usable reply; the round is refused and the old model kept")
    return Statistics(sums[GRAM], sums[MOMENT])
