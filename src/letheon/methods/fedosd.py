"""FedOSD: unlearning along a direction orthogonal to every retained client's (Pan et al., arXiv 2412.20200)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch

from letheon import tree
from letheon.errors import ConfigError
from letheon.methods.base import Method, train_work
from letheon.phase import Phase, State
from letheon.projection import turned
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, pooled, separate

log = logging.getLogger(__name__)

ORIGIN = "fedosd/origin/"
SPANNED = "fedosd/spanned"


def uniform_mean(updates: Sequence[Params]) -> Params:
    """1/K Σ Δ_k, summed in float64."""
    total = {name: torch.zeros(t.shape, dtype=torch.float64) for name, t in updates[0].items()}
    for update in updates:
        for name, tensor in update.items():
            total[name].add_(tensor)
    return {name: (tensor / len(updates)).to(updates[0][name].dtype) for name, tensor in total.items()}


def away_from(update: Params, gone: Params, project: Literal["always", "if_reverting"]) -> Params:
    """A retained update without its component along the way gone, w − w_0, at its old length.

    Args:
        update: Δ_k; the paper's g_k is −Δ_k/η.
        gone: w − w_0. Nothing gone: nothing to protect.
        project: ``if_reverting``: only if Δ_k·(w − w_0) < 0, that is, if the update leads back.
    """
    if project == "if_reverting" and tree.dot(update, gone) >= 0:
        return update
    return turned(update, [gone]) or tree.zeros_like(update)


@dataclass(frozen=True)
class FedOSD(Method):
    """Steps orthogonal to all retained updates, then training that does not go back.

    The paper works with pseudo-gradients g_k = −Δ_k/η. The projection is linear and the step is multiplied by η again,
    so η cancels, and updates Δ_k are projected as they come. They only read as gradients under plain SGD.

    Clients count alike: a client with more samples takes more steps, and its update is longer. At class and sample
    level a client may hold something of both parts; it then answers for both. In continued training nothing protects
    the model any more.

    Attributes:
        rounds: of unlearning; the authors take 100 with small steps.
        restore_rounds: of training across the way gone.
        project: whether the second stage turns every retained update, or only those that lead back.
        local: local recipe of both stages, SGD without momentum; None: lr 0.01 with the experiment's batches.
    """

    name: ClassVar[str] = "fedosd"
    needs: ClassVar[frozenset[str]] = frozenset({"per-client"})

    rounds: int = 20
    restore_rounds: int = 10
    project: Literal["always", "if_reverting"] = "always"
    local: Local | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.restore_rounds < 0:
            raise ConfigError("fedosd: rounds must be at least 1 and restore_rounds at least 0")
        if self.local and (self.local.optimizer != "sgd" or self.local.momentum):
            raise ConfigError("fedosd.local: updates are read as gradients; use optimizer = 'sgd' and momentum = 0")

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        batches = {"batch_size": local.batch_size, "epochs": local.epochs, "steps": local.steps}
        own = Local(lr=0.01, momentum=0.0, **batches)  # type: ignore[arg-type]
        return replace(self, local=self.local or own)

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        unlearn = Phase("unlearn", self.unlearn, self.rounds, until=lambda state: SPANNED in state.scratch)
        restore = [Phase("restore", self.restore, self.restore_rounds)] if self.restore_rounds else []
        return [unlearn, *restore]

    def unlearn(self, federation: Federation, state: State, t: int) -> State:
        """One step along d = g_u − Gᵀ(GGᵀ)⁺Gg_u, rescaled to ‖g_u‖; none if the retained updates span g_u."""
        forgetting = train_work(state, "forget", self.recipe, t)
        forgetting = replace(forgetting, options={**forgetting.options, "objective": "uce"})
        forget, retain = separate(federation.run(forgetting, train_work(state, "retain", self.recipe, t)), 2)
        if t == 0:
            state = replace(state, scratch={**state.scratch, **{ORIGIN + n: p for n, p in state.params.items()}})
        step = turned(uniform_mean([reply.tensors for reply in forget]), [reply.tensors for reply in retain])
        if step is None:
            log.warning("fedosd: the retained updates span the one to unlearn; no step is left after round %d", t)
            return replace(state, scratch=state.scratch | {SPANNED: torch.ones(1)})
        return replace(state.moved(step), buffers=pooled(retain))

    def restore(self, federation: Federation, state: State, t: int) -> State:
        """One round of retained training across w − w_0."""
        (retain,) = separate(federation.run(train_work(state, "retain", self.recipe, t)), 1)
        gone = {name: tensor - state.scratch[ORIGIN + name] for name, tensor in state.params.items()}
        updates = [away_from(reply.tensors, gone, self.project) for reply in retain]
        return replace(state.moved(uniform_mean(updates)), buffers=pooled(retain))
