"""Watching what enters the constrained layers: which of them share an input, and the inputs' second moments."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from letheon.cop.basis import FLOOR, Basis, Moments, Rule, Selection, Sinks, Weighting
from letheon.cop.layers import Layer, Spaces, few, geometry, layer, owners, rows, width
from letheon.errors import DataError, MethodError

log = logging.getLogger(__name__)

SLACK = 1e-6
"""A share of energy that is short by less is short by rounding of float32 columns."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What passes through the model once.

    Attributes:
        inputs: the model's argument, or its arguments by name.
        weights: of the tokens, ``(batch, tokens)``, or of the samples, ``(batch,)``: 0 for padding. Prompt tokens
            count like answer tokens: the loss of an answer reaches the weights through every position before it.
            None: all count 1.
    """

    inputs: Tensor | Mapping[str, Tensor]
    weights: Tensor | None = None

    def through(self, module: nn.Module) -> None:
        """Pass it through ``module``."""
        if isinstance(self.inputs, Tensor):
            module(self.inputs)
        else:
            module(**self.inputs)


def damped(weights: Tensor, *, first: int, factor: float) -> Tensor:
    """``(batch, tokens)`` weights with each row's ``first`` counted tokens multiplied by ``factor``.

    A chat template's prefix that n texts share counts once with the factor 1/n, and not at all with 0. On which side
    the padding is does not matter.
    """
    is_first = (weights > 0) & ((weights > 0).cumsum(1) <= first)
    return torch.where(is_first, weights * factor, weights)


def find_spaces(module: nn.Module, batch: Batch, *, names: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    """The input spaces of ``module``: layers that are given one and the same tensor share a space.

    A space has the name of the layer that is called first. In a block of a transformer there are four: of q, k and v;
    of o; of gate and up; of down.

    Args:
        module: not changed.
        batch: a small one; what enters the layers is held until the pass is over.
        names: of the layers; by default every Linear and Conv2d that is called, can be constrained and shares its
            weight with no other module. A tied output layer is not among them: its weight is the embedding, too.

    Raises:
        MethodError: a layer of ``names`` is of another kind or is not called.
    """
    layers = {name: layer(module, name) for name in (untied(module) if names is None else names)}
    seen: dict[str, list[Tensor]] = {}
    with _evaluating(module), _listening(layers, lambda name, inputs: seen.setdefault(name, []).append(inputs)):
        batch.through(module)
    if silent := [name for name in names or () if name not in seen]:
        raise MethodError(f"cop: {', '.join(silent)}: not called by the model; leave it out")
    groups: dict[object, list[str]] = {}
    for name, inputs in seen.items():
        groups.setdefault((geometry(layers[name]), *map(id, inputs)), []).append(name)
    return {members[0]: tuple(members) for members in groups.values()}


def collect(
    module: nn.Module,
    batches: Iterable[Batch],
    spaces: Spaces,
    *,
    weighting: Weighting = "unit",
    dtype: torch.dtype = torch.float64,
) -> dict[str, Moments]:
    """The second moments of what enters each space while ``batches`` pass through the model, in evaluation mode.

    Streams: one ``(d, d)`` matrix a space is held, and of the activations one chunk at a time.

    Args:
        module: left as it was.
        batches: of the forget set, prompts included.
        spaces: as ``find_spaces`` names them, or some of them.
        weighting: w_t of G = Σ w_t x_t x_tᵀ: ``unit``, 1/‖x_t‖², or ``raw``, 1; each times the token's own weight.
        dtype: of G: float64, or float32 for half the memory, which loses directions of less than a thousandth of the
            largest singular value.

    Raises:
        MethodError: layers said to share a space do not, or are not called.
        DataError: there is no batch, or all weights are 0.
    """
    if dtype not in FLOOR:
        raise MethodError(f"cop: moments cannot be summed in {dtype}; use torch.float64 or torch.float32")
    layers = {space: {name: layer(module, name) for name in names} for space, names in spaces.items()}
    sums = {space: _Sum(space, found, weighting, dtype) for space, found in layers.items()}
    with ExitStack() as stack:
        stack.enter_context(_evaluating(module))
        for total in sums.values():
            stack.enter_context(_listening(total.layers, total.push))
        for batch in batches:
            for total in sums.values():
                total.weights = batch.weights
            batch.through(module)
            for total in sums.values():
                total.close()
    return {space: total.moments() for space, total in sums.items()}


def protect(
    module: nn.Module,
    batches: Sequence[Batch],
    spaces: Spaces,
    bases: Mapping[str, Basis],
    *,
    request: int,
    selection: Selection | None = None,
    sinks: Sinks | None = None,
    at_once: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Basis]:
    """The bases after a request: directions of sink tokens first, then those of all tokens at unit norm.

    Call it on the model that the request ended with, so that what is held is how that model sees the forget set; or
    before and after, to hold the directions of both. What does not fit the caps is a warning in the log, and in
    ``records``.

    Args:
        module: in the state to be held.
        batches: of the request's forget set; passed twice for each group of spaces.
        spaces: all of them.
        bases: of earlier requests; a space without one starts empty.
        request: the request's number, counted from 0.
        selection: how many directions; ``Selection()`` by default.
        sinks: which directions are a sink's; ``Sinks()`` by default.
        at_once: spaces to collect in one pass: fewer need less memory and more passes. None: all.
        dtype: as for ``collect``.
    """
    selection = selection or Selection()
    grown = dict(bases)
    names = list(spaces)
    step = at_once or max(1, len(names))
    for start in range(0, len(names), step):
        group = {space: spaces[space] for space in names[start : start + step]}
        for weighting, rule in rules(selection, sinks):
            moments = collect(module, batches, group, weighting=weighting, dtype=dtype)
            grown = extended(grown, moments, request=request, rule=rule)
    warn({space: grown[space] for space in names}, selection)
    return grown


def rules(selection: Selection, sinks: Sinks | None = None) -> tuple[tuple[Weighting, Rule], ...]:
    """By which moments, and how many, directions are taken, in this order."""
    return ("raw", sinks or Sinks()), ("unit", selection)


def extended(
    bases: Mapping[str, Basis], moments: Mapping[str, Moments], *, request: int, rule: Rule
) -> dict[str, Basis]:
    """All of ``bases``, those of the spaces of ``moments`` grown by them; a space without a basis starts empty."""
    return {**bases, **{space: _grown(bases.get(space), found, request, rule) for space, found in moments.items()}}


def _grown(basis: Basis | None, moments: Moments, request: int, rule: Rule) -> Basis:
    if basis is None:
        return Basis.from_moments(moments, request=request, rule=rule)
    return basis.extended(moments, request=request, rule=rule)


def warn(bases: Mapping[str, Basis], selection: Selection) -> None:
    """Log what the caps left unprotected, and what is full."""
    short = {space: basis.held for space, basis in bases.items() if basis.held < selection.energy - SLACK}
    full = [space for space, basis in bases.items() if selection.columns(len(basis.vectors)) <= basis.rank]
    if short:
        worst = min(short, key=lambda space: short[space])
        log.warning(
            "cop: within the caps %d of %d spaces hold less of the request's energy than the %.1f %% asked for, %s "
            "only %.1f %%; later requests can move the rest. Raise selection.rank or selection.rank_total.",
            *(len(short), len(bases), 100 * selection.energy, worst, 100 * short[worst]),
        )
    if full:
        log.warning(
            "cop: saturated: %s: as many dimensions are protected as may be; later requests add nothing there",
            few(full),
        )


class _Sum:
    """The running second moments of one space; each input is counted once, when the first of its layers meets it."""

    def __init__(self, space: str, layers: Mapping[str, Layer], weighting: Weighting, dtype: torch.dtype) -> None:
        self.weights: Tensor | None = None
        self.layers = layers
        self._space = space
        self._weighting = weighting
        self._dtype = dtype
        self._gram: Tensor | None = None
        self._tokens = 0.0
        self._own = torch.float32
        self._last: Tensor | None = None
        self._waiting: set[str] = set()
        if len({geometry(found) for found in layers.values()}) != 1:
            raise MethodError(f"cop: {space}: {', '.join(layers) or 'no layer'}: cannot share an input, shapes differ")

    def push(self, name: str, inputs: Tensor) -> None:
        if self._last is None:
            self._last, self._waiting = inputs, set(self.layers)
            self._count(self.layers[name], inputs)
        if name not in self._waiting or not _same(inputs, self._last):
            raise MethodError(
                f"cop: {self._space}: {name} is not given what the other layers of this space are; "
                "use find_spaces, or give it a space of its own"
            )
        self._waiting.discard(name)
        if not self._waiting:
            self._last = None

    def close(self) -> None:
        """After a pass: every layer must have met what the first one met."""
        if self._last is not None or self._gram is None:
            silent = self._waiting or set(self.layers)
            raise MethodError(f"cop: {self._space}: {', '.join(sorted(silent))}: not called with the space's input")

    def moments(self) -> Moments:
        if self._gram is None or not self._tokens:
            raise DataError(f"cop: {self._space}: no batch has a token that counts; nothing can be protected")
        return Moments(self._gram, self._tokens, self._weighting, self._own)

    def _count(self, constrained: Layer, inputs: Tensor) -> None:
        if self._gram is None:
            d = width(constrained)
            self._gram = torch.zeros(d, d, dtype=self._dtype, device=inputs.device)
            self._own = torch.promote_types(inputs.dtype, torch.float32)
        for part, share in rows(constrained, inputs, self.weights):
            scaled = part.to(self._dtype)
            if self._weighting == "unit":
                norm = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
                scaled = torch.where(norm > 0, scaled / norm, scaled)
            self._gram += scaled.mT @ (scaled * share[:, None].to(self._dtype))
            self._tokens += float(share.sum())


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b)


def untied(module: nn.Module) -> list[str]:
    """Layers that can be constrained and whose weight no other module has."""
    return [
        name
        for name, found in module.named_modules()
        if isinstance(found, Layer) and getattr(found, "groups", 1) == 1 and len(owners(module, found.weight)) == 1
    ]


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each submodule gets its own mode back."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextmanager
def _listening(layers: Mapping[str, Layer], hear: Any) -> Iterator[None]:
    """While open, ``hear(name, input)`` is called before each call of a layer."""

    def hook(name: str) -> Any:
        return lambda _, inputs: hear(name, inputs[0])

    handles = [found.register_forward_pre_hook(hook(name)) for name, found in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
