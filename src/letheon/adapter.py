"""Lethe's temporary adapter: a residual bottleneck on the penultimate feature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from letheon.errors import ConfigError
from letheon.training import Local, Loss, batches, clipped
from letheon.tree import Params
from letheon.work import Scalar

DOWN, DOWN_BIAS, UP, UP_BIAS = "adapter.down", "adapter.down_bias", "adapter.up", "adapter.up_bias"


@dataclass(frozen=True)
class Adapter:
    """The adapter and how it is trained by ascent (Lethe, Eq. 6).

    The paper gives no shape, step count or learning rate. Shape: h + B·ReLU(A h + a) + b. Ascent is plain SGD with the
    gradient's norm cut to ``clip``, stopped at a loss, not at a step count: the loss after a fixed number of steps
    differs by two orders of magnitude between seeds.

    Attributes:
        rank: width of the bottleneck.
        lr: step size η_φ.
        cap: stop as soon as the mean loss on the data to forget reaches this many nats; None: never.
        steps: at most so many steps S_φ.
        batch_size: samples a step.
        clip: limit of the gradient's norm; None: none.
    """

    rank: int = 16
    lr: float = 0.05
    cap: float | None = 0.3
    steps: int = 100
    batch_size: int = 32
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value <= 0:
                raise ConfigError(f"adapter.{field.name}: must be positive, got {value}")

    def options(self) -> dict[str, Scalar]:
        """As scalars for ``Work.options``."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}

    @classmethod
    def from_options(cls, options: Mapping[str, Scalar]) -> Self:
        """The inverse of ``options``: a limit that is left out is none."""
        values = {"cap": None, "clip": None} | dict(options)
        return cls(**{f.name: values[f.name] for f in fields(cls)})  # type: ignore[arg-type]

    def init(self, features: int, seed: int) -> Params:
        """Fresh tensors for ``features`` inputs; B and b are zero, so the composite starts as the backbone."""
        generator = torch.Generator().manual_seed(seed)
        bound = features**-0.5
        return {
            DOWN: torch.empty(self.rank, features).uniform_(-bound, bound, generator=generator),
            DOWN_BIAS: torch.empty(self.rank).uniform_(-bound, bound, generator=generator),
            UP: torch.zeros(features, self.rank),
            UP_BIAS: torch.zeros(features),
        }


def adapter_of(extras: Mapping[str, Tensor]) -> Params:
    """The adapter among a work's extras; empty if there is none."""
    return {name: tensor for name, tensor in extras.items() if name in (DOWN, DOWN_BIAS, UP, UP_BIAS)}


def adapt(features: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """``(n, d)`` features to h + B·ReLU(A h + a) + b."""
    hidden = F.relu(F.linear(features, tensors[DOWN], tensors[DOWN_BIAS]))
    return features + F.linear(hidden, tensors[UP], tensors[UP_BIAS])


@contextmanager
def attached(module: nn.Module, head: str, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """While open, the input of ``head`` passes through the adapter; without tensors, nothing changes."""
    if not tensors:
        yield
        return
    handle = module.get_submodule(head).register_forward_pre_hook(lambda _, inputs: (adapt(inputs[0], tensors),))
    try:
        yield
    finally:
        handle.remove()


def penultimate(module: nn.Module, head: str, inputs: Tensor, *, chunk: int = 1024) -> Tensor:
    """``(n, d)`` what enters ``head``, in evaluation mode and without gradients."""
    seen: list[Tensor] = []
    handle = module.get_submodule(head).register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    module.eval()
    try:
        with torch.no_grad():
            for part in inputs.split(chunk):
                module(part)
    finally:
        handle.remove()
    return torch.cat(seen)


def ascend(
    adapter: Adapter, head: nn.Module, loss: Loss, features: Tensor, targets: Tensor, *, start: Params, seed: int
) -> tuple[Params, int, float]:
    """Raise the loss on the data to forget by training the adapter alone (Eq. 6).

    The backbone is frozen, so its features are computed once and given here.

    Returns:
        The tensors φ*, the steps taken, and the mean loss reached, in nats.
    """
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    values = list(tensors.values())

    def mean_loss() -> float:
        with torch.no_grad():
            return loss(head(adapt(features, tensors)), targets).item()

    local = Local(lr=adapter.lr, batch_size=adapter.batch_size, steps=adapter.steps)
    steps, reached = 0, mean_loss()
    for index in batches(len(features), local, torch.Generator().manual_seed(seed)):
        if adapter.cap is not None and reached >= adapter.cap:
            break
        gradients = torch.autograd.grad(loss(head(adapt(features[index], tensors)), targets[index]), values)
        with torch.no_grad():
            torch._foreach_add_(values, clipped(gradients, adapter.clip), alpha=adapter.lr)
        steps, reached = steps + 1, mean_loss()
    return {name: tensor.detach() for name, tensor in tensors.items()}, steps, reached
