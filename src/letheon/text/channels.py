"""Channels of a language model: the units inside its MLPs, what they do to a loss, and gates on them.

A channel is a column of a block's ``down_proj``: one unit of the MLP, whose activation that column turns into the
residual stream. Closing its gate is scaling the column, so a gated model is a plain model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from letheon.data import Data
from letheon.errors import MethodError
from letheon.text.goal import passed
from letheon.text.losses import text_means
from letheon.tree import Params

Hook = Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor]]

LAYER = "down_proj"
"""What Llama and its kin call the layer whose inputs are the units of an MLP."""
AT_ONCE = 8
"""Texts that pass at once where gradients are needed."""


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """What is remembered of a layer's c channels.

    Attributes:
        trajectory: ``(c,)`` m, the risk so far, in [0, 1].
        hits: ``(c,)`` int64 h, requests at which the channel was hot.
        gate: ``(c,)`` g; 1 is open.
        columns: ``(d, k)`` whole columns of the k channels with g < 1, in their order.
    """

    trajectory: Tensor
    hits: Tensor
    gate: Tensor
    columns: Tensor

    @property
    def closed(self) -> Tensor:
        """``(c,)`` bool: whose gate is not open."""
        return self.gate < 1


FIELDS = ("trajectory", "hits", "gate", "columns")


def to_params(tracks: Mapping[str, Track]) -> Params:
    """Named tensors, ``LAYER/FIELD``."""
    return {f"{layer}/{name}": getattr(track, name) for layer, track in tracks.items() for name in FIELDS}


def from_params(params: Mapping[str, Tensor]) -> dict[str, Track]:
    """The inverse of ``to_params``."""
    layers = dict.fromkeys(name.rpartition("/")[0] for name in params)
    return {layer: Track(**{name: params[f"{layer}/{name}"] for name in FIELDS}) for layer in layers}


def find(module: nn.Module) -> dict[str, nn.Linear]:
    """The layers that read channels, by name: trainable linear ones called ``down_proj``.

    Raises:
        MethodError: there are none.
    """
    trainable = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) and part.weight.requires_grad
    }
    demand(trainable)
    return {name: part for name, part in trainable.items() if _is_named(name)}


def demand(names: Iterable[str]) -> None:
    """Refuse a model without channels.

    Args:
        names: of its trainable layers.

    Raises:
        MethodError: none of them reads channels.
    """
    names = list(names)
    if not any(map(_is_named, names)):
        kinds = ", ".join(sorted({name.rpartition(".")[2] for name in names})) or "none at all"
        raise MethodError(
            f"channels: looked for trainable linear layers called {LAYER}, whose inputs are the units of a block's MLP "
            f"(Llama, Mistral, Qwen, Gemma and Phi-3 have them), and found only: {kinds}. Use another method with this "
            "model, or have these layers train if they are frozen."
        )


def shapes(params: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """``(d, c)`` of each layer that reads channels, from a model's tensors."""
    layers = {name.removesuffix(".weight"): tensor.shape for name, tensor in params.items()}
    return {name: shape for name, shape in layers.items() if _is_named(name)}


def _is_named(name: str) -> bool:
    return name.rpartition(".")[2] == LAYER


def attributions(module: nn.Module, data: Data, gates: Mapping[str, Tensor]) -> Params:
    """What each channel does to the loss, to first order: E|∂L/∂g| over texts.

    L is a text's mean loss over its answer's tokens. With g on the activation a, ∂L/∂g is Σ_t a_t ∂L/∂(g a_t): at an
    open gate a·∂L/∂a, and at a closed one what reopening would do, which is why ``module`` has whole columns here.

    Args:
        module: in evaluation mode afterwards; its columns are whole.
        data: n texts.
        gates: ``(c,)`` g of each layer; open where there is none.

    Returns:
        ``(c,)`` float64 on the CPU for each layer that reads channels.
    """
    layers = find(module)
    device = next(module.parameters()).device
    given = {name: gates.get(name, torch.ones(part.in_features)).to(device) for name, part in layers.items()}
    sums = {name: torch.zeros(part.in_features, dtype=torch.float64) for name, part in layers.items()}
    module.eval()
    for rows in torch.arange(len(data)).split(AT_ONCE):
        with _gated(layers, given, len(rows)) as own:
            loss = text_means(passed(module, data.take(rows))).sum()
            slopes = torch.autograd.grad(loss, list(own.values()))
        for name, slope in zip(own, slopes, strict=True):
            sums[name] += slope.abs().double().sum((0, 1)).cpu()
    return {name: total / len(data) for name, total in sums.items()}


@contextmanager
def _gated(layers: Mapping[str, nn.Linear], gates: Mapping[str, Tensor], n: int) -> Iterator[dict[str, Tensor]]:
    """While open, the channels of ``n`` texts pass ``(n, 1, c)`` gates of their own, which are yielded."""
    own = {name: gates[name].expand(n, 1, -1).clone().requires_grad_() for name in layers}
    with ExitStack() as stack:
        for name, layer in layers.items():
            handle = layer.register_forward_pre_hook(_through(name, own[name]))
            stack.callback(handle.remove)
        yield own


def _through(name: str, gate: Tensor) -> Hook:
    def scaled(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        if inputs[0].dim() != 3 or len(inputs[0]) != len(gate):
            raise MethodError(
                f"channels: {name} is given inputs of shape {tuple(inputs[0].shape)} for {len(gate)} texts, and its "
                "channels cannot be told apart by text; models with experts are not served. Use another method."
            )
        return (inputs[0] * gate,)

    return scaled


def whole(weight: Tensor, track: Track) -> Tensor:
    """``(d, c)`` as it is with every gate open: bit for bit what it was before any closed."""
    opened = weight.clone()
    opened[:, track.closed] = track.columns.to(weight)
    return opened


def opened(params: Params, tracks: Mapping[str, Track]) -> Params:
    """The model with whole columns, whatever its gates."""
    return params | {f"{name}.weight": whole(params[f"{name}.weight"], track) for name, track in tracks.items()}


def gated(params: Params, tracks: Mapping[str, Track]) -> tuple[Params, dict[str, Track]]:
    """A model with whole columns, through the gates of ``tracks``; and the tracks with the columns that this takes."""
    weights, kept = dict[str, Tensor](), dict[str, Track]()
    for name, track in tracks.items():
        full = params[f"{name}.weight"]
        weights[f"{name}.weight"] = full * track.gate.to(full)
        kept[name] = Track(track.trajectory, track.hits, track.gate, full[:, track.closed].clone())
    return params | weights, kept
