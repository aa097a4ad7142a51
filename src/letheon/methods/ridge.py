"""Exact unlearning of ridge heads on a frozen extractor (Quan, Wu, Montana, arXiv 2603.12977)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from letheon import tree
from letheon.adapter import penultimate
from letheon.client import Client, client_work
from letheon.data import Data
from letheon.errors import ConfigError, MethodError, RoundError
from letheon.methods.base import Method
from letheon.methods.gram import GRAM, INVERSE, MOMENT, Inverse, Statistics, moment_of, root, with_constant
from letheon.phase import Phase, State
from letheon.request import Part
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Reply, Work, separate

FACTOR = "ridge/factor"


def _statistics_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """A forward pass of each sample, and its products with its features and its label; R costs some 2nd², too."""
    size = work.params[f"{task.head}.weight"].shape[1] + 1
    return {"samples": float(n), "flops": float(n) * (task.flops + 2 * size * (size + task.classes))}


@client_work("ridge-statistics", _statistics_cost, answers="free")
def _statistics(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """The statistics of the part; what an earlier request deleted is not in it."""
    task = client.task
    found = Statistics.of(penultimate(module, task.head, data.inputs), data.targets, task.classes)
    return Reply(0, client.name, {GRAM: found.gram, MOMENT: found.moment})


@client_work("ridge-factor", _statistics_cost, answers="free")
def _factor(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """R and B of the part; what an earlier request deleted is not in it."""
    task = client.task
    phi = with_constant(penultimate(module, task.head, data.inputs))
    return Reply(0, client.name, {FACTOR: root(phi), MOMENT: moment_of(phi, data.targets, task.classes)})


@dataclass(frozen=True)
class Ridge(Method):
    """A linear head by ridge regression on a frozen extractor, from which samples are subtracted exactly.

    It trains its own Origin in one round: clients send (A_k, B_k), the server adds them up and solves for the head.
    To delete, the holders send the statistics of what is to go, and the server subtracts and solves again. The result
    is, up to rounding, the head that training on the retained data alone gives, whatever the order and the partition.

    What is exact is the head. The extractor is the task's initial weights, random features that have seen no data: a
    pretrained one would be outside of what is unlearned. The promise ends with the first round of continued training,
    which is plain FedAvg on all weights. A and B, or P and B, stay at the server, sums over all clients.

    Attributes:
        penalty: λ.
        solver: how the server deletes. None: it keeps A, subtracts, and factorises anew (Cholesky). ``woodbury``: it
            keeps P = (A + λI)⁻¹ and updates it; holders send a root of their A_k, which tells no more than A_k does (of
            a single sample both tell the features) and is smaller for fewer than d samples. The head is the same up to
            rounding, which is the larger the smaller λ is next to what goes. It pays when few samples go and d is
            large; it looks less closely at what it is asked to delete (``Inverse.deleted``).
        local: unused; no client trains.
    """

    name: ClassVar[str] = "ridge"
    needs: ClassVar[frozenset[str]] = frozenset({"per-client"})  # the sum of the replies, not their weighted mean

    penalty: float = 1.0
    solver: Literal["woodbury"] | None = None
    local: Local | None = None

    def __post_init__(self) -> None:
        if self.penalty <= 0:
            raise ConfigError(f"ridge.penalty: must be positive, got {self.penalty}")

    def origin(self, task: Task, local: Local, rounds: int) -> Sequence[Phase]:
        def gather(federation: Federation, state: State, t: int) -> State:
            found = asked(federation, state, task, "all")
            return self.solved(state, task, Inverse.of(found, self.penalty) if self.solver else found)

        return [Phase("gather", gather)]

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        def delete(federation: Federation, state: State, t: int) -> State:
            kept = self.kept(state, task)
            if isinstance(kept, Inverse):
                return self.solved(state, task, kept.deleted(*factors(federation, state)))
            return self.solved(state, task, kept.deleted(asked(federation, state, task, "forget")))

        return [Phase("delete", delete)]

    def kept(self, state: State, task: Task) -> Statistics | Inverse:
        """What is in memory; refused unless the model's head is still its own."""
        matrix = INVERSE if self.solver else GRAM
        if not {matrix, MOMENT} <= state.memory.keys():
            raise MethodError("ridge: this model has no statistics to delete from; start from ridge's own training")
        kept = (Inverse if self.solver else Statistics)(state.memory[matrix], state.memory[MOMENT])
        name = f"{task.head}.weight"
        if not torch.allclose(self.solved(state, task, kept).params[name], state.params[name], rtol=1e-4, atol=1e-6):
            raise MethodError("ridge: the model was trained since its head was solved for; nothing is exact any more")
        return kept

    def solved(self, state: State, task: Task, kept: Statistics | Inverse) -> State:
        """The state with ``kept`` in its memory and its head in its params; the extractor stays."""
        weights = kept.solve(self.penalty)
        head = {f"{task.head}.weight": weights[:-1].T.contiguous(), f"{task.head}.bias": weights[-1]}
        if not head.keys() <= state.params.keys():
            raise MethodError(f"ridge: the module {task.head!r} needs a weight and a bias, for the constant feature")
        params = {name: head[name].to(old.dtype) if name in head else old for name, old in state.params.items()}
        return replace(state, params=params, memory=state.memory | kept.memory)


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


def factors(federation: Federation, state: State) -> tuple[Tensor, Tensor]:
    """R and B of the data to forget: their holders' factors under each other, and the sum of their moments."""
    (replies,) = separate(federation.run(Work("ridge-factor", state.params, state.buffers, "forget")), 1)
    rows = [state.memory[INVERSE][:0]]
    moment = torch.zeros_like(state.memory[MOMENT])
    for reply in replies:
        if reply.tensors:  # a dry run answers without
            if not _fits(reply.tensors, moment):
                raise RoundError(f"client {reply.client}: its factor does not fit the statistics")
            rows.append(reply.tensors[FACTOR])
            moment = moment + reply.tensors[MOMENT]
    return torch.cat(rows), moment


def _fits(tensors: Params, moment: Tensor) -> bool:
    if not {FACTOR, MOMENT} <= tensors.keys():
        return False
    factor = tensors[FACTOR]
    return factor.ndim == 2 and factor.shape[1] == len(moment) and tensors[MOMENT].shape == moment.shape
