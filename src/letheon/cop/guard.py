"""Keeping W V = S while something else trains W: on the applied update, whatever the objective and the optimizer."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from letheon import tree
from letheon.cop.basis import Basis
from letheon.cop.layers import Spaces, few, layer, owners, width
from letheon.errors import MethodError
from letheon.tree import Params

log = logging.getLogger(__name__)

SATURATED = 0.9
"""A blocked share of the gradient from here on is worth a warning."""
FRESH = 1e-5
"""An adapter whose ‖A V‖ is at most this share of ‖A‖ was opened in the complement."""

Pairs = Mapping[str, tuple[str, str]]
"""For each layer with a LoRA adapter, the names of its parameters A ``(r, d)`` and B ``(out, r)``."""


def freeze(module: nn.Module, spaces: Spaces, *, adapters: Pairs | None = None) -> tuple[str, ...]:
    """Leave only what a guard can hold trainable, and name what was frozen by this call.

    Frozen are norms, biases and embeddings, layers outside the spaces, and weights that another module shares, such as
    an output layer tied to the embedding: each would move the inputs of held layers. With adapters, all but these.
    """
    named = dict(module.named_parameters())
    if adapters is None:
        names = [name for members in spaces.values() for name in members]
        weights = [layer(module, name).weight for name in names]
        kept = {id(weight) for weight in weights if len(owners(module, weight)) == 1}
    else:
        kept = {id(module.get_parameter(name)) for pair in adapters.values() for name in pair}
    frozen = tuple(name for name, p in named.items() if p.requires_grad and id(p) not in kept)
    for name in frozen:
        named[name].requires_grad_(False)
    return frozen


@dataclass(slots=True)
class _Hold:
    """A tensor W ``(out, d)`` that must keep W V = S; V ``(d, m)``, S ``(out, m)``; ‖gV‖² and ‖g‖² summed up so far."""

    name: str
    weight: Tensor
    basis: Tensor
    response: Tensor
    blocked: Tensor
    total: Tensor

    def drift(self) -> Tensor:
        """W V − S."""
        return self.weight.detach().flatten(1) @ self.basis - self.response


class Guard:
    """Holds what the layers of a module answer to protected inputs, for one request.

    The feasible set {W : W V = S}, S = W₀ V, is affine, and W − (W V − S) Vᵀ is its nearest point. Going there after
    each step undoes what momentum, weight decay, an element-wise preconditioner and rounding have moved along V. It
    needs no copy of W₀. While all bases are empty, nothing is held or changed, and anything may train.

    LoRA: W + s B A keeps its response to V for every B if A V = 0. So the adapter must be fresh, is put into the
    complement here, and A is held there; B is free.

    Make it when a request begins, with a new optimizer: moments of before are not in the complement.

    Attributes:
        trainable: the parameters to train, in the module's order: those that require gradients.

    Args:
        module: with everything frozen that cannot be held; see ``freeze``.
        spaces: the layers of each input space.
        bases: of earlier requests, for each of the spaces.
        adapters: the parameters of LoRA adapters by layer.

    Raises:
        MethodError: a parameter would train that cannot be held, is tied, or is stored below float32; a basis is
            missing or of another width; an adapter is not fresh. The message names what is to blame.
    """

    def __init__(
        self, module: nn.Module, spaces: Spaces, bases: Mapping[str, Basis], *, adapters: Pairs | None = None
    ) -> None:
        self.trainable = [p for p in module.parameters() if p.requires_grad]
        self._holds: list[_Hold] = []
        self._statistics: list[tuple[Tensor, Tensor]] = []
        if not any(basis.rank for basis in bases.values()):
            return
        adapters = adapters or {}
        free = [module.get_parameter(pair[1]) for pair in adapters.values()]
        _check_space(module, spaces, bases)
        with torch.no_grad(), _full_precision(self.trainable):
            for space, names in spaces.items():
                for name in names:
                    self._take(module, name, bases[space].vectors, adapters.get(name))
        _check_trainable(module, [hold.weight for hold in self._holds], free)
        self._statistics = [(buffer, buffer.clone()) for buffer in _statistics(module)]
        self.restore()  # puts adapters into the complement; weights are where they must be

    def _take(self, module: nn.Module, name: str, vectors: Tensor, pair: tuple[str, str] | None) -> None:
        weight = layer(module, name).weight
        if weight.requires_grad:
            self._holds.append(_hold(f"{name}.weight", weight, vectors))
        if pair is not None:
            hold = _hold(pair[0], module.get_parameter(pair[0]), vectors)
            _check_fresh(hold, module.get_parameter(pair[1]), name)
            hold.response.zero_()
            self._holds.append(hold)

    def project(self, gradients: Sequence[Tensor | None]) -> None:
        """Take V out of the gradients in place: g ← g − (g V) Vᵀ for the held among ``trainable``.

        Before clipping by the global norm and before the optimizer: neither must be ruled by what cannot move anyway.

        Args:
            gradients: of ``trainable``, in that order: ``[p.grad for p in guard.trainable]``, or as ``autograd.grad``
                returns them. What has none is skipped.
        """
        by_weight = {id(p): g for p, g in zip(self.trainable, gradients, strict=True)}
        with torch.no_grad(), _full_precision(self.trainable):
            for hold in self._holds:
                gradient = by_weight[id(hold.weight)]
                if gradient is None:
                    continue
                along = gradient.flatten(1) @ hold.basis
                hold.blocked += along.square().sum()
                hold.total += torch.linalg.vector_norm(gradient) ** 2
                _subtract(gradient, along, hold.basis)

    def restore(self) -> None:
        """W ← W − (W V − S) Vᵀ, in place; after every step of the optimizer.

        Running statistics of BatchNorm are put back: they would move the inputs of all layers after them.
        """
        with torch.no_grad(), _full_precision(self.trainable):
            for hold in self._holds:
                _restore(hold)
            for buffer, before in self._statistics:
                buffer.copy_(before)

    def drifts(self) -> dict[str, float]:
        """For each held tensor ‖W V − S‖ / ‖S‖, or / ‖W‖ where S = 0 (an adapter's A). After ``restore``, rounding."""
        found = {}
        with torch.no_grad(), _full_precision(self.trainable):
            for hold in self._holds:
                scale = float(hold.response.norm()) or float(hold.weight.detach().norm()) or 1.0
                found[hold.name] = float(hold.drift().norm()) / scale
        return found

    def blocked(self) -> dict[str, float]:
        """For each held tensor the share ‖g V‖² / ‖g‖² of all gradients so far that was taken away.

        A share of 0.9 or more is logged as a warning: the request repeats an earlier one, or the layer is full.
        """
        shares = {hold.name: float(hold.blocked) / (float(hold.total) or 1.0) for hold in self._holds}
        if full := [name for name, share in shares.items() if share >= SATURATED]:
            log.warning(
                "cop: at least %.0f %% of the gradient is blocked in %s: the request repeats an earlier one, or the "
                "space is full; lower selection.rank, or look whether it was forgotten before",
                *(100 * SATURATED, few(full)),
            )
        return shares


def confined(update: Mapping[str, Tensor], spaces: Spaces, bases: Mapping[str, Basis]) -> Params:
    """An update Δ of a model's parameters with nothing that moves protected responses: Δ − (Δ V) Vᵀ, and 0 elsewhere.

    For updates that come from where no guard was: an average over clients, who never see V. While all bases are empty,
    the update is returned as it is.

    Args:
        update: by parameter name; weights of constrained layers are ``LAYER.weight``.
        spaces: the layers of each input space.
        bases: one for each space.
    """
    if not any(basis.rank for basis in bases.values()):
        return dict(update)
    left = tree.zeros_like(update)
    for space, names in spaces.items():
        for name in (name for member in names if (name := f"{member}.weight") in update):
            vectors = bases[space].vectors.to(update[name])
            left[name] = update[name].clone()
            _subtract(left[name], left[name].flatten(1) @ vectors, vectors)
    return left


def _hold(name: str, weight: Tensor, vectors: Tensor) -> _Hold:
    if torch.finfo(weight.dtype).bits < 32:
        raise MethodError(
            f"cop: {name} is stored in {weight.dtype}, whose rounding is larger than an update: nothing can be held. "
            "Keep float32 weights while training (autocast may compute in less)."
        )
    basis = vectors.to(weight.device, weight.dtype)
    zero = torch.zeros((), dtype=weight.dtype, device=weight.device)
    return _Hold(name, weight, basis, weight.detach().flatten(1) @ basis, zero, zero.clone())


def _restore(hold: _Hold) -> None:
    _subtract(hold.weight.detach(), hold.drift(), hold.basis)


def _subtract(tensor: Tensor, along: Tensor, basis: Tensor) -> None:
    """``tensor`` ← ``tensor`` − ``along`` Vᵀ, in place."""
    if tensor.dim() == 2:
        tensor.addmm_(along, basis.mT, alpha=-1)
    else:
        tensor.sub_((along @ basis.mT).view(tensor.shape))


def _full_precision(trainable: Sequence[Tensor]) -> torch.autocast:
    """Also inside an autocast region the products are computed as the weights are stored."""
    return torch.autocast(trainable[0].device.type if trainable else "cpu", enabled=False)


def _statistics(module: nn.Module) -> Iterable[Tensor]:
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            yield from part.buffers(recurse=False)


def _check_space(module: nn.Module, spaces: Spaces, bases: Mapping[str, Basis]) -> None:
    if missing := sorted(spaces.keys() - bases.keys()):
        raise MethodError(f"cop: no basis for {', '.join(missing)}, while other spaces have one; extend all together")
    for space, names in spaces.items():
        for name in names:
            if (d := width(layer(module, name))) != (known := len(bases[space].vectors)):
                raise MethodError(f"cop: {name} has {d} inputs, the basis of {space} has {known}: of another model")


def _check_trainable(module: nn.Module, held: Sequence[Tensor], free: Sequence[Tensor]) -> None:
    known = {id(p) for p in (*held, *free)}
    strangers = [n for n, p in module.named_parameters() if p.requires_grad and id(p) not in known]
    tied = [" = ".join(names) for weight in held if len(names := owners(module, weight)) > 1]
    problems = []
    if strangers:
        problems.append(f"these would train and cannot be held: {', '.join(strangers)}; freeze them (cop.freeze)")
    if tied:
        problems.append(f"these weights are tied: {', '.join(tied)}; freeze (cop.freeze) or untie them")
    if problems:
        raise MethodError(f"cop: earlier requests would not stay as they are: {'; '.join(problems)}")


def _check_fresh(hold: _Hold, up: Tensor, name: str) -> None:
    if bool(up.any()) and float(hold.response.norm()) > FRESH * float(hold.weight.detach().norm()):
        raise MethodError(
            f"cop: the adapter of {name} is not fresh: it answers to protected inputs, and would answer differently "
            "after any change of B. Merge it into the weight and open a new one."
        )
