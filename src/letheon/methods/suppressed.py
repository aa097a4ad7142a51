"""Recovery that may not go back: an ablation in the manner of FedCARE (arXiv 2601.22589)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from letheon import tree
from letheon.errors import ConfigError
from letheon.methods.base import Method, demand_rounds, train_work
from letheon.methods.distance import origin_of, remembering
from letheon.phase import Phase, State
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, average, averages


def without(step: Params, direction: Params) -> Params:
    """``step`` less its component along ``direction`` (zero: the step as it is)."""
    square = tree.dot(direction, direction)
    return tree.add(step, direction, -tree.dot(step, direction) / square) if square else step


def ascent(forget: Params, retain: Params, rate: float) -> Params:
    """−λΔᵘ, less its component against Δʳ if it has one: ⟨step, Δʳ⟩ ≥ 0."""
    step = tree.scale(forget, -rate)
    return without(step, retain) if tree.dot(step, retain) < 0 else step


def suppressed(step: Params, back: Params) -> Params:
    """A recovery step less its component along ``back`` = w_ori − w if it points there: ⟨step, back⟩ ≤ 0."""
    return without(step, back) if tree.dot(step, back) > 0 else step


@dataclass(frozen=True)
class SuppressedRecovery(Method):
    """Projected ascent on the data to forget, then FedAvg rounds that may not lead back towards the old model.

    An ablation, not FedCARE: of that method only the two ideas are here. Its ascent is projected against gradients of
    class proxies, which it gains by data-free inversion; here the conflict is with the averaged update on the
    retained data. Its ascent is a clients' loss; here it is an ordinary update on the data to forget, subtracted. Its
    recovery has further terms; here only the component along w_ori − w_t goes, over all parameters at once.

    Attributes:
        rate: λ, length of the ascent in lengths of the forget update.
        ascent_rounds: of projected ascent.
        rounds: of recovery.
        local: local recipe; None: the experiment's.
    """

    name: ClassVar[str] = "suppressed-recovery"

    rate: float = 2.0
    ascent_rounds: int = 1
    rounds: int = 7
    local: Local | None = None

    def __post_init__(self) -> None:
        demand_rounds(self, self.rounds)
        if self.rate <= 0:
            raise ConfigError(f"suppressed-recovery.rate: must be positive, got {self.rate}")
        if self.ascent_rounds < 1:
            raise ConfigError(f"suppressed-recovery.ascent_rounds: must be at least 1, got {self.ascent_rounds}")

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("ascend", self.ascend, self.ascent_rounds), Phase("recover", self.recover, self.rounds)]

    def ascend(self, federation: Federation, state: State, t: int) -> State:
        """One projected ascent step; buffers follow the retain stream, and w_ori goes to the scratch."""
        state = remembering(state)
        works = [train_work(state, part, self.recipe, t) for part in ("forget", "retain")]
        forget, retain = averages(federation.run(*works), 2)
        return replace(state.moved(ascent(forget.tensors, retain.tensors, self.rate)), buffers=retain.buffers)

    def recover(self, federation: Federation, state: State, t: int) -> State:
        """One round of FedAvg whose mean step does not go back."""
        mean = average(federation.run(train_work(state, "retain", self.recipe, t)))
        step = suppressed(mean.tensors, tree.sub(origin_of(state), state.params))
        return replace(state.moved(step), buffers=mean.buffers)
