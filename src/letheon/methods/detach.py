"""Detaching: what is to be forgotten leaves, the model stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from letheon.methods.base import Method
from letheon.phase import Phase, State
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.work import Federation


@dataclass(frozen=True)
class Detach(Method):
    """Nobody is asked for anything: the request is admitted, and training goes on without the data it covers.

    Removed from the federation is not unlearned: the control for what continued training forgets by itself. Its one
    round exists so that it has a curve and a record like every other method; it costs nothing.

    Attributes:
        local: unused; nothing is trained.
    """

    name: ClassVar[str] = "detach"
    known_failures: ClassVar[Mapping[str, str]] = {
        "forgets": "the control for leaving without unlearning: the model stays as it is",
    }

    local: Local | None = None

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("detach", leave)]


def leave(federation: Federation, state: State, t: int) -> State:
    """The state as it is."""
    return state
