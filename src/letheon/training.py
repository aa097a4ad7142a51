"""The local training loop: lean, seeded, and the same for every method and runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from letheon.data import Data
from letheon.errors import ConfigError, DataError
from letheon.work import Scalar

Optimizer = Literal["sgd", "adam", "adamw", "fisher"]
Loss = Callable[[Tensor, Tensor], Tensor]

BLOCK = 3
"""Entries that share one curvature in the optimizer ``fisher``, as Rapid Retraining has it."""


@dataclass(frozen=True)
class Local:
    """How a client trains in one round. The optimizer starts anew every round.

    Attributes:
        optimizer: ``sgd``, ``adam``, ``adamw``, or ``fisher``: Adam with one second moment for each ``BLOCK`` entries.
        lr: learning rate of round 0.
        momentum: of SGD; the betas of the others are torch's defaults for Adam, 0.9 and 0.999.
        weight_decay: added to the gradient (SGD, Adam, fisher) or decoupled (AdamW).
        batch_size: samples a step; the last partial batch is kept.
        epochs: passes over the client's data.
        steps: if set, exactly so many steps instead of ``epochs``, starting new passes as needed.
        clip: if set, the gradient's norm is cut to it before each step.
        decay: the learning rate is multiplied by ``decay`` each round.
        first_round: rounds of training already behind the model; the schedule goes on from there.
    """

    optimizer: Optimizer = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 32
    epochs: int = 1
    steps: int | None = None
    clip: float | None = None
    decay: float = 1.0
    first_round: int = 0

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Optimizer):
            raise ConfigError(f"local.optimizer: unknown {self.optimizer!r}; use {', '.join(get_args(Optimizer))}")
        for name in ("lr", "batch_size", "epochs", "steps", "clip", "decay"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"local.{name}: must be positive, got {value}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"local.momentum: must lie in [0, 1), got {self.momentum}")
        if self.weight_decay < 0 or self.first_round < 0:
            raise ConfigError("local.weight_decay and local.first_round: must not be negative")

    def options(self, round: int) -> dict[str, Scalar]:
        """The recipe of one round as scalars that a ``Work`` can carry; unset fields are left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["lr"] = self.lr * self.decay ** (self.first_round + round)
        values |= {"decay": 1.0, "first_round": 0}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_options(cls, options: Mapping[str, Scalar]) -> Self:
        """The inverse of ``options``; other keys are ignored, they belong to the work function."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in options.items() if name in known})  # type: ignore[arg-type]

    def count(self, n: int) -> int:
        """How many steps are taken when ``n`` samples are at hand."""
        return self.epochs * -(-n // self.batch_size) if self.steps is None else self.steps

    def samples(self, n: int) -> int:
        """How many samples pass through the model when ``n`` are at hand."""
        if self.steps is None:
            return n * self.epochs
        per_pass = -(-n // self.batch_size)
        passes, rest = divmod(self.steps, per_pass)
        return passes * n + min(rest * self.batch_size, n)


def batches(n: int, local: Local, generator: torch.Generator, *, smallest: int = 1) -> Iterator[Tensor]:
    """Shuffled index batches for one round.

    Args:
        n: number of samples.
        local: batch size, epochs or steps.
        generator: the only source of randomness.
        smallest: a last batch below this size joins the one before it (BatchNorm cannot train on one sample).
    """
    done = 0
    passes = local.epochs if local.steps is None else local.steps  # a pass has at least one step
    for _ in range(passes):
        order = torch.randperm(n, generator=generator)
        chunks = list(order.split(local.batch_size))
        if len(chunks) > 1 and len(chunks[-1]) < smallest:
            chunks[-2:] = [torch.cat(chunks[-2:])]
        for chunk in chunks:
            yield chunk
            done += 1
            if local.steps is not None and done == local.steps:
                return


def train(module: nn.Module, loss: Loss, data: Data, local: Local, *, seed: int) -> float:
    """Train ``module`` in place on ``data``; returns the mean loss over the samples seen.

    Raises:
        DataError: one sample for a model with BatchNorm, whose training statistics need two.
    """
    smallest = demand_samples(module, len(data))
    if local.batch_size < smallest:
        raise DataError("local.batch_size: 1 cannot train a model with BatchNorm, which needs at least 2; raise it")
    module.train()
    params = [p for p in module.parameters() if p.requires_grad]
    step = stepper(params, local)
    generator = torch.Generator().manual_seed(seed)
    total, seen = 0.0, 0
    for index in batches(len(data), local, generator, smallest=smallest):
        value = loss(module(data.inputs[index]), data.targets[index])
        gradients = torch.autograd.grad(value, params, materialize_grads=True)
        step(clipped(gradients, local.clip))
        total, seen = total + value.item() * len(index), seen + len(index)
    return total / seen


def demand_samples(module: nn.Module, n: int) -> int:
    """The smallest batch that ``module`` can train on; raises ``DataError`` if ``n`` samples are fewer."""
    smallest = 2 if has_batch_norm(module) else 1
    if n < smallest:
        raise DataError(
            f"{n} sample(s) cannot train a model with BatchNorm, which needs at least 2 in a batch; "
            "raise partition.min_size or leave this client out"
        )
    return smallest


def clipped(gradients: Sequence[Tensor], limit: float | None) -> list[Tensor]:
    """The gradients, scaled so that their joint norm is at most ``limit``."""
    if limit is None:
        return list(gradients)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))
    return list(torch._foreach_mul(list(gradients), float(min(1.0, limit / (float(norm) + 1e-12)))))


def has_batch_norm(module: nn.Module) -> bool:
    """Whether some layer normalises over the batch."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


@torch.no_grad()
def recalibrate(module: nn.Module, inputs: Tensor, *, chunk: int | None = None) -> None:
    """Set BatchNorm's running statistics, in place, to those of ``(n, …)`` inputs; nothing else of the module changes.

    All samples go through in one batch, so that the variance is that of the whole; with ``chunk``, in batches of at
    most so many, spread evenly over the data, whose statistics are averaged.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    before = [layer.momentum for layer in norms]
    module.eval()
    for layer in norms:
        layer.train()
    parts = 1 if chunk is None else -(-len(inputs) // chunk)
    for part in range(parts):
        for layer in norms:
            layer.momentum = 1.0 / (part + 1)
        module(inputs[part::parts])
    for layer, momentum in zip(norms, before, strict=True):
        layer.momentum = momentum
    module.eval()


def stepper(params: Sequence[Tensor], local: Local) -> Callable[[list[Tensor]], None]:
    """The update rule: a function of the gradients that moves ``params`` in place, one step a call.

    SGD is written out: importing torch.optim costs over a second a process.
    """
    rules = {"sgd": _sgd, "adam": _adam, "adamw": _adam, "fisher": _fisher}
    return rules[local.optimizer](list(params), local)


def _sgd(params: list[Tensor], local: Local) -> Callable[[list[Tensor]], None]:
    velocity: list[Tensor] = []

    @torch.no_grad()
    def step(gradients: list[Tensor]) -> None:
        if local.weight_decay:
            # Not in place: autograd hands out one tensor for two parameters that enter as a sum.
            gradients = list(torch._foreach_add(gradients, params, alpha=local.weight_decay))
        if local.momentum and not velocity:
            velocity.extend(g.clone() for g in gradients)
        elif local.momentum:
            torch._foreach_mul_(velocity, local.momentum)
            torch._foreach_add_(velocity, gradients)
        torch._foreach_add_(params, velocity or gradients, alpha=-local.lr)

    return step


def _adam(params: list[Tensor], local: Local) -> Callable[[list[Tensor]], None]:
    from torch import optim

    kind = optim.Adam if local.optimizer == "adam" else optim.AdamW
    optimizer = kind(params, lr=local.lr, weight_decay=local.weight_decay)

    def step(gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(params, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return step


def _fisher(params: list[Tensor], local: Local) -> Callable[[list[Tensor]], None]:
    """A Newton step with the diagonal of the empirical Fisher matrix as curvature (Rapid Retraining, arXiv 2203.07320).

    m ← β₁m + (1−β₁)g and v ← β₂v + (1−β₂)·block_means(g²), both corrected for their start at zero, and then
    w ← w − η·m/(√v + ε).
    """
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8
    first, second = ([torch.zeros_like(p) for p in params] for _ in range(2))
    taken = 0

    @torch.no_grad()
    def step(gradients: list[Tensor]) -> None:
        nonlocal taken
        taken += 1
        if local.weight_decay:
            gradients = list(torch._foreach_add(gradients, params, alpha=local.weight_decay))
        for p, g, m, v in zip(params, gradients, first, second, strict=True):
            m.mul_(beta1).add_(g, alpha=1 - beta1)
            v.mul_(beta2).add_(block_means(g * g), alpha=1 - beta2)
            root = (v / (1 - beta2**taken)).sqrt_().add_(epsilon)
            p.addcdiv_(m, root, value=-local.lr / (1 - beta1**taken))

    return step


def block_means(values: Tensor, size: int = BLOCK) -> Tensor:
    """Each entry replaced by the mean of its block: ``size`` consecutive entries of the flattened tensor.

    The last block may be shorter; no block reaches into another tensor.
    """
    flat = values.flatten()
    means = F.avg_pool1d(flat[None, None], size, ceil_mode=True)[0, 0]
    return means.repeat_interleave(size)[: len(flat)].view_as(values)
