"""The layers that can be constrained, and how their inputs and weights become matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from letheon.errors import MethodError

Spaces = Mapping[str, tuple[str, ...]]
"""Names of input spaces, each with the layers that share it: one basis a space."""
Layer = nn.Linear | nn.Conv2d

NAMED = 3
CHUNK = 2**22
"""Numbers in one chunk of rows: more are not unfolded or converted to float64 at once."""


def layer(module: nn.Module, name: str) -> Layer:
    """The layer of this name.

    Raises:
        MethodError: there is none, or it is of a kind that cannot be constrained.
    """
    try:
        found = module.get_submodule(name)
    except AttributeError as error:
        raise MethodError(f"cop: the model has no layer {name!r}; see named_modules()") from error
    if not isinstance(found, Layer) or (isinstance(found, nn.Conv2d) and found.groups != 1):
        raise MethodError(
            f"cop: {name} is a {type(found).__name__}; only Linear, and Conv2d with groups=1, can be constrained. "
            "Leave it out of the spaces, so that it is frozen."
        )
    return found


def width(constrained: Layer) -> int:
    """d: the numbers that one row of the weight meets."""
    return constrained.weight[0].numel()


def geometry(constrained: Layer) -> tuple[object, ...]:
    """What two layers must have in common to meet the same rows in the same input."""
    if isinstance(constrained, nn.Linear):
        return ("linear", constrained.in_features)
    c = constrained
    return ("conv", c.in_channels, c.kernel_size, c.stride, c.padding, c.dilation, c.padding_mode)


def rows(constrained: Layer, inputs: Tensor, weights: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """What the rows of the weight are multiplied with, in chunks of ``(n, d)`` with ``(n,)`` weights above 0.

    Args:
        constrained: a linear layer meets tokens, a convolution meets patches.
        inputs: of the layer: ``(…, d)`` for a linear layer, ``(batch, channels, height, width)`` for a convolution.
        weights: of the tokens, with the shape ``(…)`` or a leading part of it: one weight a sample counts for all of
            the sample's rows. None: all count 1. Rows of weight 0 are not even read: padding may hold NaN.

    Raises:
        MethodError: the weights do not fit the inputs.
    """
    inputs = inputs.detach()
    if isinstance(constrained, nn.Conv2d):
        yield from _patches(constrained, inputs if inputs.dim() == 4 else inputs[None], weights)
        return
    flat = inputs.reshape(-1, inputs.shape[-1])
    size = max(1, CHUNK // flat.shape[1])
    for part, share in zip(flat.split(size), _spread(weights, inputs).split(size), strict=True):
        yield part[share > 0], share[share > 0]


def _patches(conv: nn.Conv2d, images: Tensor, weights: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    # As the layer itself pads: whatever its padding is called.
    padded = F.pad(
        images,
        conv._reversed_padding_repeated_twice,
        mode="constant" if conv.padding_mode == "zeros" else conv.padding_mode,
    )
    size = max(1, CHUNK // (padded[0, 0].numel() * width(conv)))
    shares = _spread(weights, images[:, 0, 0]).view(len(images), -1)[:, 0]
    for part, share in zip(padded.split(size), shares.split(size), strict=True):
        kept = F.unfold(part[share > 0], conv.kernel_size, dilation=conv.dilation, stride=conv.stride).mT
        yield kept.reshape(-1, kept.shape[-1]), share[share > 0].repeat_interleave(kept.shape[1])


def _spread(weights: Tensor | None, inputs: Tensor) -> Tensor:
    """``(n,)`` one weight for each of the n rows of ``inputs``."""
    shape = inputs.shape[:-1]
    if weights is None:
        return torch.ones(shape.numel(), device=inputs.device, dtype=torch.float64)
    weights = weights.to(inputs.device, torch.float64)
    if weights.numel() == shape.numel():  # also (batch, tokens) weights of tokens that were flattened to one axis
        return weights.reshape(-1)
    if weights.shape != shape[: weights.dim()]:
        raise MethodError(
            f"cop: weights of shape {tuple(weights.shape)} do not fit inputs of shape {tuple(inputs.shape)}; "
            "give one weight for each token, or one for each sample"
        )
    return weights.reshape(*weights.shape, *[1] * (len(shape) - weights.dim())).expand(shape).reshape(-1)


def few(names: Sequence[str]) -> str:
    """Some of the names, and how many more there are: a large model has hundreds."""
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest


def owners(module: nn.Module, parameter: Tensor) -> list[str]:
    """Names of this parameter, one for each module that has it: more than one if it is tied."""
    return [
        f"{name}.{own}" if name else own
        for name, part in module.named_modules()
        for own, found in part.named_parameters(recurse=False)
        if found is parameter
    ]
