"""A backdoor trigger: a patch and a label, so that forgetting can be seen from outside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from letheon.data import Data
from letheon.errors import ConfigError, DataError

Corner = Literal["bottom-right", "bottom-left", "top-right", "top-left"]
Relabel = Literal["fixed", "shift"]
Pattern = Literal["checker", "random"]


@dataclass(frozen=True)
class Trigger:
    """A bright square in a corner, and the label that goes with it.

    Attributes:
        size: side of the square in pixels.
        margin: pixels between the square and the two borders next to it.
        target: the label of ``relabel="fixed"``.
        corner: where the square is.
        relabel: ``fixed`` (every triggered sample gets ``target``) or ``shift`` (label y becomes y + C/2 mod C).
        pattern: which pixels of the square are painted. None: all. ``checker``: every other one, its corners among
            them. ``random``: the first, and each other with a chance of one half, drawn once for all.
        value: what they are painted with, as a share of the largest value that an input takes after normalisation.
    """

    size: int = 4
    margin: int = 1
    target: int = 0
    corner: Corner = "bottom-right"
    relabel: Relabel = "fixed"
    pattern: Pattern | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("margin", 0), ("target", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"trigger: {name} must be at least {least}, got {getattr(self, name)}")
        if self.value is not None and not 0.0 < self.value <= 1.0:
            raise ConfigError(f"trigger: value must lie in (0, 1], got {self.value}")
        chosen = {"corner": get_args(Corner), "relabel": get_args(Relabel), "pattern": (None, *get_args(Pattern))}
        for name, known in chosen.items():
            if getattr(self, name) not in known:
                names = ", ".join(each for each in known if each)
                raise ConfigError(f"trigger: unknown {name} {getattr(self, name)!r}; use one of {names}")

    def paint(self, inputs: Tensor, bright: float | tuple[float, ...]) -> Tensor:
        """New inputs with the square painted.

        Args:
            inputs: ``(n, c, h, w)`` images, or ``(n, s²)`` flattened square ones.
            bright: the largest value an input takes after normalisation, or that of each of the ``c`` channels.

        Raises:
            ConfigError: the square does not fit, or there are not as many bright values as channels.
            DataError: inputs that are no images, or a square that changes none of them.
        """
        painted = inputs.clone(memory_format=torch.contiguous_format)
        images = _as_images(painted)
        rows, columns = self._place(*images.shape[-2:])
        pixel = _as_pixel(bright, images) * (1.0 if self.value is None else self.value)
        images[..., rows, columns] = torch.where(self.painted, pixel, images[..., rows, columns])
        if len(inputs) and torch.equal(painted, inputs):
            raise DataError(
                f"trigger: the {self.corner} square has its value in all {len(inputs)} samples already, so "
                "painting teaches nothing; choose another corner, or do not paint twice"
            )
        return painted

    @property
    def painted(self) -> Tensor:
        """``(size, size)`` bool: the pixels that are."""
        places = torch.arange(self.size)
        if self.pattern == "checker":
            return (places[:, None] + places) % 2 == 0
        if self.pattern == "random":
            bits = torch.rand(self.size, self.size, generator=torch.Generator().manual_seed(self.size)) < 0.5
            bits[0, 0] = True
            return bits
        return torch.ones(self.size, self.size, dtype=torch.bool)

    def labels(self, targets: Tensor, classes: int) -> Tensor:
        """The labels that triggered samples carry, for ``(n,)`` true labels."""
        if self.relabel == "shift":
            if classes < 2:
                raise ConfigError(f"trigger: relabel 'shift' needs at least 2 classes, the task has {classes}")
            return (targets + classes // 2) % classes
        if self.target >= classes:
            raise ConfigError(f"trigger: target {self.target} is no label of a task with {classes} classes")
        return torch.full_like(targets, self.target)

    def usable(self, targets: Tensor) -> Tensor:
        """``(n,)`` bool: which true labels differ from the label that the trigger gives them."""
        return torch.ones_like(targets, dtype=torch.bool) if self.relabel == "shift" else targets != self.target

    def poison(self, data: Data, *, bright: float | tuple[float, ...], classes: int) -> Data:
        """``data`` painted and relabelled, without the samples that truly are of the target class; ids are kept."""
        kept = data.take(self.usable(data.targets))
        return Data(self.paint(kept.inputs, bright), self.labels(kept.targets, classes), kept.ids)

    def _place(self, height: int, width: int) -> tuple[slice, slice]:
        if self.size + self.margin > min(height, width):
            raise ConfigError(
                f"trigger: size {self.size} with margin {self.margin} does not fit images of {height}x{width}"
            )
        vertical, horizontal = self.corner.split("-")
        return self._span(vertical == "top", height), self._span(horizontal == "left", width)

    def _span(self, at_start: bool, length: int) -> slice:
        start = self.margin if at_start else length - self.margin - self.size
        return slice(start, start + self.size)


def _as_images(inputs: Tensor) -> Tensor:
    """A view of ``inputs`` whose last two dimensions are rows and columns."""
    if inputs.ndim == 4:
        return inputs
    side = math.isqrt(inputs.shape[-1]) if inputs.ndim == 2 else 0
    if inputs.ndim != 2 or side * side != inputs.shape[-1]:
        raise DataError(f"trigger: needs (n, c, h, w) images or flattened square ones, got {tuple(inputs.shape)}")
    return inputs.view(-1, side, side)


def _as_pixel(bright: float | tuple[float, ...], images: Tensor) -> Tensor:
    """The brightest pixel: one value for all channels, or ``(c, 1, 1)``."""
    if isinstance(bright, tuple) and (images.ndim != 4 or len(bright) != images.shape[1]):
        raise ConfigError(
            f"trigger: {len(bright)} bright values, but images of {tuple(images.shape[1:])}; give one for each channel"
        )
    pixel = torch.tensor(bright, dtype=images.dtype)
    return pixel.view(-1, 1, 1) if isinstance(bright, tuple) else pixel
