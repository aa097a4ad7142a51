"""Lethe: amplify, rectify, restore (arXiv 2601.22601)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from letheon import tree
from letheon.adapter import Adapter
from letheon.errors import ConfigError
from letheon.methods.base import Method, fedavg, train_work
from letheon.phase import Phase, State, seed_of
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Work, average, averages

ALIGNMENT = "log/alignment"
AMPLIFIED = "log/amplified"
COLUMNS = ("s", "retain_norm", "forget_norm", "lower", "upper", "gamma", "branch", "holds")
"""Columns of the alignment log, a row for each layer. ``branch`` is an index into ``BRANCHES``."""
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
    """

    kind: Literal["auto", "constant", "clipped"] = "auto"
    beta: float = 0.1
    value: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ConfigError(f"gamma.beta: must lie in [0, 1], got {self.beta}")
        if self.value < 0:
            raise ConfigError(f"gamma.value: must not be negative, got {self.value}")

    def choose(self, lower: float, upper: float) -> float:
        """γ for a layer whose admissible interval is [lower, upper]."""
        if self.kind == "auto":
            return lower + self.beta * (upper - lower)
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
        """Whether both inequalities of Eq. (14) hold, with the rounding of float64 sums allowed for."""
        slack = 1e-9 * (self.retain_norm + self.forget_norm) ** 2
        if self.branch == "negate":
            return self.s <= slack
        forget = self.s - self.gamma * self.forget_norm**2
        retain = self.retain_norm**2 - self.gamma * self.s
        return forget <= slack and retain >= -slack

    def row(self) -> list[float]:
        """As a row of the alignment log."""
        values = [self.s, self.retain_norm, self.forget_norm, self.lower, self.upper, self.gamma]
        return [*values, float(BRANCHES.index(self.branch)), float(self.holds)]


def align(retain: Params, forget: Params, names: Sequence[str], gamma: Gamma, *, literal: bool = False) -> Alignment:
    """Eq. (9) and (13) for the layer made of ``names``, and the branch of Eq. (10).

    Eq. (10) sends a layer without forget update (frozen, unused) into the negation branch, where its step is −0 and
    the retained progress is lost. Unless ``literal``, such a layer takes the retain update.
    """
    s = tree.dot(retain, forget, names)
    retain_norm, forget_norm = tree.norm(retain, names), tree.norm(forget, names)
    if not literal and forget_norm < TINY:
        return Alignment(s, retain_norm, forget_norm, 0.0, 0.0, 0.0, "retain")
    if s <= 0:
        return Alignment(s, retain_norm, forget_norm, 0.0, 0.0, 0.0, "negate")
    lower, upper = s / forget_norm**2, retain_norm**2 / s
    return Alignment(s, retain_norm, forget_norm, lower, upper, gamma.choose(lower, upper), "subtract")


def rectify(
    retain: Params, forget: Params, layers: Mapping[str, Sequence[str]], gamma: Gamma, *, literal: bool = False
) -> tuple[Params, dict[str, Alignment]]:
    """The rectified update Δ̃ of Eq. (10) and the alignment of each layer.

    Args:
        retain: Δʳ, the aggregated update of the retain stream (Eq. 8).
        forget: Δᵘ, the update of the forget stream (Eq. 7); same names and shapes.
        layers: what "layer" means: a name, and the tensors that belong to it.
        gamma: how γ is chosen.
        literal: follow Eq. (10) also where the forget update is zero.
    """
    update: Params = {}
    alignments = {}
    for layer, names in layers.items():
        alignment = alignments[layer] = align(retain, forget, names, gamma, literal=literal)
        for name in names:
            if alignment.branch == "negate":
                update[name] = -forget[name]
            elif alignment.branch == "retain":
                update[name] = retain[name]
            else:
                update[name] = torch.sub(retain[name], forget[name], alpha=alignment.gamma)
    return update, alignments


@dataclass(frozen=True)
class Lethe(Method):
    """Lethe (Algorithm 1).

    Phase 1 trains a temporary adapter by ascent on the data to forget. Phase 2 runs two streams of local training on
    top of it and combines them layer by layer (Eq. 10). Phase 3 drops the adapter and restores utility by FedAvg.

    Attributes:
        gamma: how γ is chosen.
        adapter: the adapter and its ascent; None: no phase 1.
        rounds: T, rectification rounds.
        restore_rounds: R, FedAvg rounds afterwards.
        layer: what a layer of Eq. (9) is: a ``tensor`` (weight and bias apart) or a ``module``.
        literal: keep Eq. (10) as printed where a layer's forget update is zero.
        local: local recipe of both streams and of phase 3; None: the experiment's.
    """

    name: ClassVar[str] = "lethe"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # Eq. 6 with a fixed number of steps and no cap; Eq. 10 with one constant γ. The paper gives neither number.
        "strict_paper": {
            "gamma": {"kind": "constant", "value": 1.0},
            "adapter": {"steps": 20, "cap": False, "clip": False},
            "literal": True,
        },
    }

    gamma: Gamma = Gamma()
    adapter: Adapter | None = Adapter()
    rounds: int = 2
    restore_rounds: int = 6
    layer: Literal["tensor", "module"] = "tensor"
    literal: bool = False
    local: Local | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.restore_rounds < 0:
            raise ConfigError("lethe: rounds must be at least 1 and restore_rounds at least 0")

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        layers = self.layers(start, task)

        def amplify(federation: Federation, state: State, t: int) -> State:
            return self.amplify(federation, state, task.head)

        def rectified(federation: Federation, state: State, t: int) -> State:
            return self.rectified(federation, state, t, layers)

        first = [Phase("amplify", amplify)] if self.adapter else []
        restore = [Phase("restore", self.restore, self.restore_rounds)] if self.restore_rounds else []
        return [*first, Phase("rectify", rectified, self.rounds), *restore]

    def layers(self, start: State, task: Task) -> Mapping[str, Sequence[str]]:
        """The groups of Eq. (9), in the order of the alignment log."""
        return {name: (name,) for name in start.params} if self.layer == "tensor" else task.layers

    def amplify(self, federation: Federation, state: State, head: str) -> State:
        """Phase 1 (Eq. 6): the holders of the data to forget train the adapter; several are averaged."""
        assert self.adapter is not None
        features = state.params[f"{head}.weight"].shape[1]
        start = self.adapter.init(features, seed_of(tree.digest(state.params)))
        work = Work("amplify", state.params, state.buffers, "forget", options=self.adapter.options(), extras=start)
        mean = average(federation.run(work))
        reached = torch.tensor([mean.metrics.get("steps", 0.0), mean.metrics.get("reached", 0.0)], dtype=torch.float64)
        return replace(state, scratch={**state.scratch, **mean.tensors, AMPLIFIED: reached})

    def rectified(self, federation: Federation, state: State, t: int, layers: Mapping[str, Sequence[str]]) -> State:
        """Phase 2 (Eq. 7–11): one round of both streams; buffers follow the retain stream."""
        extras = {name: t for name, t in state.scratch.items() if name.startswith("adapter.")}
        forget, retain = averages(
            federation.run(
                train_work(state, "forget", self.recipe, t, extras=extras),
                train_work(state, "retain", self.recipe, t, extras=extras),
            ),
            works=2,
        )
        update, alignments = rectify(retain.tensors, forget.tensors, layers, self.gamma, literal=self.literal)
        rows = torch.tensor([a.row() for a in alignments.values()], dtype=torch.float64)
        moved = replace(state.moved(update), buffers=retain.buffers)
        return replace(moved, scratch=state.scratch | {ALIGNMENT: rows})

    def restore(self, federation: Federation, state: State, t: int) -> State:
        """Phase 3: the adapter is gone; FedAvg on the retained data."""
        return fedavg(self.recipe)(federation, replace(state, scratch={}), t)


def alignment_log(state: State) -> Tensor | None:
    """``(layers, 8)`` float64 with the columns of ``COLUMNS``, if ``state`` comes out of a rectification round."""
    return state.scratch.get(ALIGNMENT)
