"""Lethe's temporary adapter: a residual bottleneck on the penultimate feature, or another change of chosen layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from letheon.errors import ConfigError
from letheon.phase import seed_of
from letheon.training import Local, Loss, batches, clipped
from letheon.tree import Params
from letheon.work import Scalar

Answer = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""From an adapter's tensors and inputs to logits."""

Kind = Literal["lora", "head"]

DOWN, DOWN_BIAS, UP, UP_BIAS = "adapter.down", "adapter.down_bias", "adapter.up", "adapter.up_bias"
LEFT, RIGHT = "adapter.left", "adapter.right"
WEIGHT, BIAS = "adapter.weight", "adapter.bias"
_NAMES = (DOWN, DOWN_BIAS, UP, UP_BIAS, LEFT, RIGHT, WEIGHT, BIAS)

_NUMBERS = ("rank", "lr", "cap", "steps", "batch_size", "clip")


@dataclass(frozen=True)
class Adapter:
    """The adapter and how it is trained by ascent (Lethe, Eq. 6).

    The paper gives no shape, step count or learning rate. Ascent is plain SGD with the gradient's norm cut to ``clip``,
    stopped at a loss, not at a step count: the loss after a fixed number of steps differs by two orders of magnitude
    between seeds. Whatever the shape, an untrained adapter changes nothing.

    Attributes:
        kind: None: bottlenecks, what enters a layer becomes h + B·ReLU(A h + a) + b. ``lora``: what leaves a layer
            gets a change of low rank, W h + B A h, for a convolution W∗h + B∗(A∗h) with B of one pixel; of several
            holders A and B are averaged each on its own, which is not the mean of their BA. ``head``: the last layer
            gets a change of full rank, as if a copy of it were trained.
        rank: width of the bottleneck, or rank of the change; ``head`` has none.
        lr: step size η_φ.
        cap: stop as soon as the mean loss on the data to forget reaches this many nats; None: never.
        steps: at most so many steps S_φ.
        batch_size: samples a step.
        clip: limit of the gradient's norm; None: none.
        places: names of the linear or convolutional layers that are adapted, for instance
            ``["conv2", "fc1", "head"]``; on feature maps a bottleneck works on the channels of every pixel. None: the
            last layer alone, whose ascent needs the backbone's features only once; with ``lora``, the last layer and
            the last convolution with those in one block with it. BatchNorm behind an adapter sees its outputs, and has
            to get over that in phase 3.
    """

    rank: int = 16
    lr: float = 0.05
    cap: float | None = 0.3
    steps: int = 100
    batch_size: int = 32
    clip: float | None = 1.0
    places: tuple[str, ...] | None = None
    kind: Kind | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in get_args(Kind):
            raise ConfigError(f"adapter.kind: unknown {self.kind!r}; leave it out, or use {', '.join(get_args(Kind))}")
        if self.kind == "head" and self.places is not None:
            raise ConfigError("adapter.places: kind 'head' changes the last layer only; leave places out")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"adapter.{name}: must be positive, got {value}")
        if self.places is not None and (not self.places or len(set(self.places)) < len(self.places)):
            raise ConfigError(f"adapter.places: name one layer or more, each once, got {list(self.places)}")

    def options(self) -> dict[str, Scalar]:
        """As scalars for ``Work.options``; the places are in the names of the tensors."""
        return {name: value for name in _NUMBERS if (value := getattr(self, name)) is not None}

    @classmethod
    def from_options(cls, options: Mapping[str, Scalar]) -> Self:
        """The inverse of ``options``: a limit that is left out is none."""
        values = {"cap": None, "clip": None} | dict(options)
        return cls(**{name: values[name] for name in _NUMBERS})  # type: ignore[arg-type]

    def layers(self, params: Mapping[str, Tensor], head: str) -> dict[str, Tensor]:
        """For each place, its layer's weight.

        Raises:
            ConfigError: a place that is no layer with a weight of two or more dimensions.
        """
        found = {}
        for place in self.places or (_last_block(params, head) if self.kind == "lora" else (head,)):
            weight = params.get(f"{place}.weight")
            if weight is None or weight.ndim < 2:
                layers = [n.removesuffix(".weight") for n, t in params.items() if n.endswith(".weight") and t.ndim > 1]
                raise ConfigError(
                    f"adapter.places: {place!r} is no linear or convolutional layer; use {', '.join(layers)}"
                )
            found[place] = weight
        return found

    def start(self, params: Mapping[str, Tensor], head: str, seed: int) -> Params:
        """Fresh tensors for the model ``params`` whose last layer is ``head``; given places are in their names."""
        layers = self.layers(params, head)
        if set(layers) == {head} and self.places is None:
            return self.fresh(layers[head], seed)
        return {
            f"{name}/{place}": tensor
            for place, weight in layers.items()
            for name, tensor in self.fresh(weight, seed_of(f"{seed}|{place}")).items()
        }

    def fresh(self, weight: Tensor, seed: int) -> Params:
        """Fresh tensors for a layer with this weight, ``(out, in, …)``; they change nothing yet."""
        outputs, inputs, *kernel = weight.shape
        if self.kind == "head":
            return {WEIGHT: torch.zeros_like(weight), BIAS: torch.zeros(outputs)}
        if self.kind is None:
            return self.init(inputs, seed)
        bound = weight[0].numel() ** -0.5
        left = torch.empty(self.rank, inputs, *kernel)
        left.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
        return {LEFT: left, RIGHT: torch.zeros(outputs, self.rank, *(1 for _ in kernel))}

    def init(self, features: int, seed: int) -> Params:
        """A fresh bottleneck for ``features`` inputs; B and b are zero, so the composite starts as the backbone."""
        generator = torch.Generator().manual_seed(seed)
        bound = features**-0.5
        return {
            DOWN: torch.empty(self.rank, features).uniform_(-bound, bound, generator=generator),
            DOWN_BIAS: torch.empty(self.rank).uniform_(-bound, bound, generator=generator),
            UP: torch.zeros(features, self.rank),
            UP_BIAS: torch.zeros(features),
        }


def _last_block(params: Mapping[str, Tensor], head: str) -> tuple[str, ...]:
    """The last layer, and the last convolution with the convolutions in one block with it."""
    convolutions = [name.removesuffix(".weight") for name, weight in params.items() if weight.ndim == 4]
    last = convolutions[-1:]
    block = last[0].rpartition(".")[0] if last else ""
    return (*(last if not block else (name for name in convolutions if name.rpartition(".")[0] == block)), head)


def adapter_of(extras: Mapping[str, Tensor]) -> Params:
    """The adapter among a work's extras; empty if there is none."""
    return {name: tensor for name, tensor in extras.items() if name.partition("/")[0] in _NAMES}


def by_place(tensors: Mapping[str, Tensor], head: str) -> dict[str, Params]:
    """The tensors of each place by the layer that they change."""
    found: dict[str, Params] = {}
    for name, tensor in tensors.items():
        own, _, place = name.partition("/")
        found.setdefault(place or head, {})[own] = tensor
    return found


def adapt(features: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """``(…, d)`` features, or maps ``(n, d, h, w)`` pixel by pixel, to h + B·ReLU(A h + a) + b."""
    if features.ndim == 4:
        return adapt(features.movedim(1, -1).flatten(0, 2), tensors).view(_pixels(features)).movedim(-1, 1)
    hidden = F.relu(F.linear(features, tensors[DOWN], tensors[DOWN_BIAS]))
    return features + F.linear(hidden, tensors[UP], tensors[UP_BIAS])


def _pixels(maps: Tensor) -> tuple[int, int, int, int]:
    n, channels, height, width = maps.shape
    return n, height, width, channels


def change(layer: nn.Module, inputs: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """What ``tensors`` of low or of full rank add to what leaves ``layer``.

    Raises:
        ConfigError: neither a linear layer nor a convolution of images, in one group and padded with zeros.
    """
    if WEIGHT in tensors:
        return F.linear(inputs, tensors[WEIGHT], tensors[BIAS])
    if isinstance(layer, nn.Linear):
        return F.linear(F.linear(inputs, tensors[LEFT]), tensors[RIGHT])
    if isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros":
        inner = F.conv2d(inputs, tensors[LEFT], None, layer.stride, layer.padding, layer.dilation)
        return F.conv2d(inner, tensors[RIGHT])
    raise ConfigError(
        f"adapter.places: 'lora' takes linear layers and convolutions of images, in one group and padded with zeros, "
        f"but not {layer}; leave it out"
    )


@contextmanager
def attached(module: nn.Module, head: str, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """While open, the layers at the adapter's places are changed by it; without tensors, nothing changes."""
    places = by_place(tensors, head).items()
    handles = [_hooked(module.get_submodule(place), own) for place, own in places]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hooked(layer: nn.Module, own: Params) -> RemovableHandle:
    if DOWN in own:
        return layer.register_forward_pre_hook(lambda _, inputs: (adapt(inputs[0], own),))
    return layer.register_forward_hook(lambda _, inputs, output: output + change(layer, inputs[0], own))


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


def at_head(head: nn.Module) -> Answer:
    """An adapter of ``head``, whose inputs are penultimate features: they are computed once."""

    def answer(tensors: Mapping[str, Tensor], features: Tensor) -> Tensor:
        if DOWN in tensors:
            return head(adapt(features, tensors))  # type: ignore[no-any-return]
        return head(features) + change(head, features, tensors)  # type: ignore[no-any-return]

    return answer


def inside(module: nn.Module, head: str, *, chunk: int = 1024) -> Answer:
    """An adapter in a whole module, in evaluation mode; inputs are samples."""
    module.eval()

    def answer(tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        with attached(module, head, tensors):
            return torch.cat([module(part) for part in inputs.split(chunk)])

    return answer


def ascend(
    adapter: Adapter, answer: Answer, loss: Loss, inputs: Tensor, targets: Tensor, *, start: Params, seed: int
) -> tuple[Params, int, float]:
    """Raise the loss on the data to forget by training the adapter alone (Eq. 6); the backbone is frozen.

    Returns:
        The tensors φ*, the steps taken, and the mean loss reached, in nats.
    """
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    values = list(tensors.values())

    def mean_loss() -> float:
        with torch.no_grad():
            return loss(answer(tensors, inputs), targets).item()

    local = Local(lr=adapter.lr, batch_size=adapter.batch_size, steps=adapter.steps)
    steps, reached = 0, mean_loss()
    for index in batches(len(inputs), local, torch.Generator().manual_seed(seed)):
        if adapter.cap is not None and reached >= adapter.cap:
            break
        gradients = torch.autograd.grad(loss(answer(tensors, inputs[index]), targets[index]), values)
        with torch.no_grad():
            torch._foreach_add_(values, clipped(gradients, adapter.clip), alpha=adapter.lr)
        steps, reached = steps + 1, mean_loss()
    return {name: tensor.detach() for name, tensor in tensors.items()}, steps, reached
