"""The rectification rule of Lethe (arXiv 2601.22601, Eq. 9–14): pure functions over two updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import torch

from letheon import tree
from letheon.errors import ConfigError
from letheon.tree import Params

COLUMNS = ("s", "retain_norm", "forget_norm", "lower", "upper", "gamma", "branch", "holds", "scale")
"""Columns of the alignment log, a row for each layer. ``branch`` is an index into ``BRANCHES``; ``scale`` is the length
of the step taken, in lengths of Δ̃, the same for all layers of a round."""
BRANCHES = ("subtract", "negate", "retain")
TINY = 1e-12


@dataclass(frozen=True)
class Gamma:
    """How γ of Eq. (10) is chosen. The paper gives no value, and one that suits every layer need not exist.

    Attributes:
        kind: ``auto``: lower + β (upper − lower) of Eq. (13), for each layer and round, admissible by construction.
            ``constant``: ``value`` everywhere. ``clipped``: ``value`` moved into the interval.
        beta: place in the interval, 0 … 1. 0 is the projection of PCGrad, which barely forgets.
        value: of ``constant`` and ``clipped``.
        cap: of ``auto``: γ is at most so large, unless the interval begins above it; it then is where it begins. Where
            the streams hardly agree, the interval reaches far up, and β of the way is a long step. None: no cap.
    """

    kind: Literal["auto", "constant", "clipped"] = "auto"
    beta: float = 0.1
    value: float = 0.3
    cap: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ConfigError(f"gamma.beta: must lie in [0, 1], got {self.beta}")
        if self.value < 0:
            raise ConfigError(f"gamma.value: must not be negative, got {self.value}")
        if self.cap is not None and (self.cap <= 0 or self.kind != "auto"):
            raise ConfigError(f"gamma.cap: must be positive, and is for kind 'auto'; got {self.cap} for {self.kind!r}")

    def choose(self, lower: float, upper: float) -> float:
        """γ for a layer whose admissible interval is [lower, upper]."""
        if self.kind == "auto":
            gamma = lower + self.beta * (upper - lower)
            return gamma if self.cap is None else min(gamma, max(lower, self.cap))
        return self.value if self.kind == "constant" else min(max(self.value, lower), upper)


@dataclass(frozen=True, slots=True)
class Alignment:
    """The two streams in one layer (Eq. 9) and what follows from it. Sums are float64."""

    s: float
    retain_norm: float
    forget_norm: float
    lower: float
    upper: float
    gamma: float
    branch: Literal["subtract", "negate", "retain"]

    @property
    def holds(self) -> bool:
        """Whether both inequalities of Eq. (14) hold for this γ, by the streams' float64 sums, rounding allowed for."""
        slack = 1e-9 * (self.retain_norm + self.forget_norm) ** 2
        if self.branch == "negate":
            return self.s <= slack
        forget = self.s - self.gamma * self.forget_norm**2
        retain = self.retain_norm**2 - self.gamma * self.s
        return forget <= slack and retain >= -slack

    def row(self, scale: float) -> list[float]:
        """As a row of the alignment log."""
        values = [self.s, self.retain_norm, self.forget_norm, self.lower, self.upper, self.gamma]
        return [*values, float(BRANCHES.index(self.branch)), float(self.holds), scale]


def align(
    retain: Params, forget: Params, names: Sequence[str], gamma: Gamma, *, literal: bool = False, keep: bool = False
) -> Alignment:
    """Eq. (9) and (13) for the layer made of ``names``, and the branch of Eq. (10).

    Eq. (10) sends a layer without forget update (frozen, unused) into the negation branch, where its step is −0 and
    the retained progress is lost. Unless ``literal``, such a layer takes the retain update; ``keep``: it always does.
    """
    s = tree.dot(retain, forget, names)
    retain_norm, forget_norm = tree.norm(retain, names), tree.norm(forget, names)
    if keep or (not literal and forget_norm < TINY):
        return Alignment(s, retain_norm, forget_norm, 0.0, 0.0, 0.0, "retain")
    if s <= 0:
        return Alignment(s, retain_norm, forget_norm, 0.0, 0.0, 0.0, "negate")
    lower, upper = s / forget_norm**2, retain_norm**2 / s
    return Alignment(s, retain_norm, forget_norm, lower, upper, gamma.choose(lower, upper), "subtract")


def rectify(
    retain: Params,
    forget: Params,
    layers: Mapping[str, Sequence[str]],
    gamma: Gamma,
    *,
    literal: bool = False,
    kept: Set[str] = frozenset(),
) -> tuple[Params, dict[str, Alignment]]:
    """The rectified update Δ̃ of Eq. (10) and the alignment of each layer.

    Args:
        retain: Δʳ, the aggregated update of the retain stream (Eq. 8).
        forget: Δᵘ, the update of the forget stream (Eq. 7); same names and shapes.
        layers: what "layer" means: a name, and the tensors that belong to it.
        gamma: how γ is chosen.
        literal: follow Eq. (10) also where the forget update is zero.
        kept: names of tensors that are not rectified; a layer of nothing else takes the retain update.
    """
    update: Params = {}
    alignments = {}
    for layer, names in layers.items():
        keep = kept >= set(names)
        alignment = alignments[layer] = align(retain, forget, names, gamma, literal=literal, keep=keep)
        for name in names:
            if alignment.branch == "negate":
                update[name] = -forget[name]
            elif alignment.branch == "retain":
                update[name] = retain[name]
            else:
                # A γ beyond the tensors' range makes a step that is not finite, and is treated as such.
                largest = torch.finfo(forget[name].dtype).max
                update[name] = torch.sub(retain[name], forget[name], alpha=min(alignment.gamma, largest))
    return update, alignments
