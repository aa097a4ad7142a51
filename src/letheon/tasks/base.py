"""What a learning problem must offer: data, a model, a loss."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from letheon import tree
from letheon.data import Data
from letheon.phase import State

_GLOBAL_RNG = threading.RLock()
"""Held by whoever uses torch's global generator: one thread's draws must not look like another's."""


class Task(ABC):
    """One learning problem. Leaves are frozen dataclasses: their fields are the ``[task]`` table of an experiment.

    Class attributes:
        name: as in the registry.
        head: name of the last linear module; its input is the penultimate feature.
        classes: number of labels.
        bright: the largest value an input can take after normalisation, or that of each channel; triggers are
            painted with it.
    """

    name: ClassVar[str]
    head: ClassVar[str]
    classes: ClassVar[int]
    bright: ClassVar[float | tuple[float, ...]]

    @abstractmethod
    def train(self) -> Data:
        """The training set; ids are positions in it."""

    @abstractmethod
    def test(self) -> Data:
        """The clean test set; ids continue after the training set's."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new module of the architecture; its weights do not matter."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy: ``(n, classes)`` logits and ``(n,)`` labels to a scalar."""
        return F.cross_entropy(outputs, targets)

    def correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``(n,)`` bool: which samples the model gets right; outputs that are not finite are wrong."""
        return (outputs.argmax(1) == targets) & outputs.isfinite().all(1)

    def init(self, seed: int) -> State:
        """Fresh weights, a function of ``seed`` alone."""
        with _GLOBAL_RNG, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.model()
        return State(params_of(module), buffers_of(module))

    def prototype(self) -> nn.Module:
        """A new module, made without moving torch's global RNG: for its shape, not for its weights."""
        with _GLOBAL_RNG, torch.random.fork_rng(devices=[]):
            return self.model()

    @cached_property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """Module name to the names of its own trainable parameters, in order of registration: layers as in Eq. (9)."""
        prototype = self.prototype()
        groups: dict[str, list[str]] = {}
        for name in params_of(prototype):
            groups.setdefault(name.rpartition(".")[0], []).append(name)
        return {module: tuple(names) for module, names in groups.items()}

    @cached_property
    def norms(self) -> frozenset[str]:
        """Names of the trainable parameters of normalisation layers: scales and shifts."""
        kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
        layers = {name for name, module in self.prototype().named_modules() if isinstance(module, kinds)}
        return frozenset(name for layer in layers for name in self.layers.get(layer, ()))

    @cached_property
    def flops(self) -> int:
        """FLOPs of one forward pass of one sample, 2 for each multiply-accumulate, counted from the model."""
        from torch.utils.flop_counter import FlopCounterMode

        sample = self.test().inputs[:1]
        with FlopCounterMode(display=False, custom_mapping=_attention_flops()) as counter, torch.no_grad():
            self.prototype().eval()(sample)
        return int(counter.get_total_flops())

    @cached_property
    def draws(self) -> bool:
        """Whether the model draws from torch's global RNG while training (Dropout and its kin): tried, not guessed."""
        module = self.prototype().train()
        with _GLOBAL_RNG, torch.random.fork_rng(devices=[]), torch.no_grad():
            before = torch.random.get_rng_state()
            module(self.test().inputs[:2])
            return not torch.equal(before, torch.random.get_rng_state())

    def prime(self, *, flops: int, draws: bool) -> None:
        """Take over what another process found out: it takes seconds, and a Flower node has a process a message."""
        vars(self).update(flops=flops, draws=draws)


def _attention_flops() -> dict[Any, Callable[..., int]]:
    """What PyTorch's counter leaves out: the two products of fused attention on a CPU."""

    def flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: object, **__: object) -> int:
        batch, heads, queries, width = query
        return 2 * batch * heads * queries * key[2] * (width + value[3])

    return {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flops}


def params_of(module: nn.Module) -> tree.Params:
    """A copy of the trainable tensors, on the CPU wherever the module is."""
    return tree.clone({name: p.cpu() for name, p in module.named_parameters() if p.requires_grad})


def buffers_of(module: nn.Module) -> tree.Params:
    """A copy of the persistent buffers, on the CPU wherever the module is."""
    kept = module.state_dict().keys()
    return tree.clone({name: b.cpu() for name, b in module.named_buffers() if name in kept})
