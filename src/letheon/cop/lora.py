"""LoRA adapters on linear layers that last for one request."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from letheon.cop.layers import layer
from letheon.errors import MethodError
from letheon.phase import seed_of

DOWN, UP = "lora_a", "lora_b"


class Adapters:
    """Fresh adapters: a layer answers W x + s B A x, B = 0 at first, until ``merge`` writes W ← W + s B A.

    One pair a request: an adapter that goes on into the next request answers to inputs that are protected by then.

    Attributes:
        pairs: for each layer the names of A and B among the module's parameters, as ``Guard`` and ``freeze`` take them.

    Args:
        module: gets the parameters ``LAYER.lora_a`` and ``LAYER.lora_b``.
        names: of linear layers.
        rank: r, rows of A ``(r, d)`` and columns of B ``(out, r)``.
        scale: s, what LoRA's paper calls α/r.
        seed: of A, uniform in ±1/√d.

    Raises:
        MethodError: a layer is not linear, or has an adapter already.
    """

    def __init__(
        self, module: nn.Module, names: Sequence[str], *, rank: int = 8, scale: float = 2.0, seed: int
    ) -> None:
        self.pairs = {name: (f"{name}.{DOWN}", f"{name}.{UP}") for name in names}
        self._scale = scale
        self._layers = {name: _linear(module, name) for name in names}
        self._handles = [found.register_forward_hook(self._answer) for found in self._layers.values()]
        for name, found in self._layers.items():
            # On the CPU, so that every device starts from the same bits.
            generator = torch.Generator().manual_seed(seed_of(f"{seed}|{name}"))
            bound = found.in_features**-0.5
            down = torch.empty(rank, found.in_features).uniform_(-bound, bound, generator=generator)
            kind = torch.promote_types(found.weight.dtype, torch.float32)
            down = down.to(found.weight.device, kind)
            found.register_parameter(DOWN, nn.Parameter(down))
            found.register_parameter(UP, nn.Parameter(down.new_zeros(found.out_features, rank)))

    def _answer(self, found: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        down, up = found.get_parameter(DOWN), found.get_parameter(UP)
        inner = F.linear(F.linear(inputs[0].to(down.dtype), down), up)
        return output + (self._scale * inner).to(output.dtype)

    def merge(self) -> None:
        """Write the adapters into the weights and remove them.

        Raises:
            MethodError: a weight is stored below float32, where rounding would undo what the adapter holds.
        """
        if coarse := [n for n, found in self._layers.items() if torch.finfo(found.weight.dtype).bits < 32]:
            raise MethodError(f"cop: {', '.join(coarse)}: convert the weights to float32 before adapters are merged")
        for found, handle in zip(self._layers.values(), self._handles, strict=True):
            with torch.no_grad():
                change = found.get_parameter(UP) @ found.get_parameter(DOWN)
                found.weight.add_(change.to(found.weight.dtype), alpha=self._scale)
            handle.remove()
            delattr(found, DOWN)
            delattr(found, UP)


def _linear(module: nn.Module, name: str) -> nn.Linear:
    found = layer(module, name)
    if not isinstance(found, nn.Linear):
        raise MethodError(f"cop: {name} is a {type(found).__name__}; adapters are for linear layers")
    if hasattr(found, DOWN):
        raise MethodError(f"cop: {name} has an adapter already; merge it first: every request needs a fresh one")
    return found
