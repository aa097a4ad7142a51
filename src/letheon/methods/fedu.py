"""FedU: forgetting by influence and learning by descent, balanced (after Wang et al., IEEE TDSC 2024).

An approximation from the idea: only the abstract was at hand, and no code is public.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from letheon import tree
from letheon.client import Client, client_work
from letheon.data import Data
from letheon.errors import ConfigError
from letheon.methods.base import Method, demand_rounds, fedavg, train_work
from letheon.phase import Phase, State
from letheon.tasks.base import Task
from letheon.training import Local, Loss
from letheon.tree import Params
from letheon.work import Federation, Reply, Work, average, pooled, separate


def influence(gradients: Iterable[Sequence[Tensor]], damping: float, total: int) -> list[Tensor]:
    """What removing samples does to the minimum, to first order: (1/n) (F + λI)⁻¹ Σ_{D_u} ∇ℓ, in float64.

    F is the diagonal of the empirical Fisher matrix, the mean of the squared gradients over D_u, in place of the
    Hessian.

    Args:
        gradients: of the loss of each sample in D_u, one tensor for each parameter.
        damping: λ.
        total: n, the number of samples over which the loss is a mean.
    """
    sums: list[Tensor] = []
    squares: list[Tensor] = []
    count = 0
    for gradient in gradients:
        exact = [g.double() for g in gradient]
        sums = [s + g for s, g in zip(sums, exact, strict=True)] if count else exact
        powers = [g * g for g in exact]
        squares = [q + p for q, p in zip(squares, powers, strict=True)] if count else powers
        count += 1
    return [s / ((q / count + damping) * total) for s, q in zip(sums, squares, strict=True)]


def min_norm(a: Params, b: Params) -> Params:
    """The shortest point between two steps, a*·a + (1 − a*)·b with a* = clip(⟨b − a, b⟩ / ‖b − a‖², 0, 1).

    Its product with either step is at least its own square: to first order neither of the two loses.
    """
    apart = tree.sub(b, a)
    square = tree.dot(apart, apart)
    share = min(max(tree.dot(apart, b) / square, 0.0), 1.0) if square else 0.0
    return tree.add(tree.scale(a, share), b, 1.0 - share)


def sample_gradients(module: nn.Module, loss: Loss, data: Data) -> Iterator[Sequence[Tensor]]:
    """The gradient of each sample's loss, in evaluation mode: BatchNorm could not take one sample at a time."""
    module.eval()
    params = [p for p in module.parameters() if p.requires_grad]
    for i in range(len(data)):
        value = loss(module(data.inputs[i : i + 1]), data.targets[i : i + 1])
        yield torch.autograd.grad(value, params, materialize_grads=True)


def _influence_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    return {"samples": float(n), "flops": 3.0 * task.flops * n}


@client_work("influence", _influence_cost)
def _influence(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """The influence of ``data`` on the client's own loss, with damping λ. Replies the step that removes it."""
    gradients = sample_gradients(module, client.task.loss, data)
    steps = influence(gradients, float(work.options["damping"]), len(client.data))
    trained = [(name, p.dtype) for name, p in module.named_parameters() if p.requires_grad]
    named = {name: step.to(dtype) for (name, dtype), step in zip(trained, steps, strict=True)}
    return Reply(0, client.name, named, work.buffers)


@dataclass(frozen=True)
class FedU(Method):
    """Rounds in which holders of data to forget go along its influence and their own training, then FedAvg.

    A client with data to forget and data to keep contributes the shortest step between the one that removes the
    influence and the update learnt on what it keeps; one that keeps nothing contributes the influence alone; all
    others train as ever. A client gets both works in one message and each of them sees its own part of the data.
    They are mixed at the server, where FedU mixes at the client: the step is the same, and a holder uploads twice.

    Attributes:
        damping: λ, added to the diagonal Fisher matrix; in units of squared gradients.
        balance_rounds: of unlearning; the influence is measured anew in each.
        rounds: of FedAvg afterwards.
        local: local recipe; None: the experiment's.
    """

    name: ClassVar[str] = "fedu"
    needs: ClassVar[frozenset[str]] = frozenset({"per-client"})
    known_failures: ClassVar[Mapping[str, str]] = {
        "forgets": "a balanced step is no longer than the training step, and one holder's is averaged with all others'",
    }

    damping: float = 0.1
    balance_rounds: int = 4
    rounds: int = 4
    local: Local | None = None

    def __post_init__(self) -> None:
        demand_rounds(self, self.rounds)
        if self.damping <= 0:
            raise ConfigError(f"fedu.damping: must be positive, got {self.damping}")
        if self.balance_rounds < 1:
            raise ConfigError(f"fedu.balance_rounds: must be at least 1, got {self.balance_rounds}")

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("balance", self.balance, self.balance_rounds), Phase("restore", fedavg(self.recipe), self.rounds)]

    def balance(self, federation: Federation, state: State, t: int) -> State:
        """One unlearning round; buffers follow the retain stream."""
        work = Work("influence", state.params, state.buffers, "forget", options={"damping": self.damping})
        replies = separate(federation.run(work, train_work(state, "retain", self.recipe, t)), 2)
        forget, retain = ({reply.client: reply for reply in group} for group in replies)
        return replace(state.moved(average(shares(forget, retain)).tensors), buffers=pooled(replies[1]))


def shares(forget: Mapping[str, Reply], retain: Mapping[str, Reply]) -> Iterator[Reply]:
    """What each client contributes to the mean, with the weight of the data it keeps, or else of what it forgets."""
    for client in sorted(forget.keys() | retain.keys()):
        if client not in forget:
            yield replace(retain[client], work=0, buffers={})
        elif client not in retain:
            yield replace(forget[client], work=0, buffers={})
        else:
            mixed = min_norm(forget[client].tensors, retain[client].tensors)
            yield replace(retain[client], work=0, tensors=mixed, buffers={}, metrics={})
