"""What an unlearning method is, and the FedAvg round that most of them end with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from letheon.errors import ConfigError, MethodError
from letheon.phase import Phase, State, Step
from letheon.request import Part, Scope
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Work, average

PER_CLIENT = "per-client"
_LACKS = {
    PER_CLIENT: "it reads single clients' replies, and this federation, which aggregates securely, shows only their "
    "mean; take another method, or set secure_aggregation = false",
}
ALL_SCOPES: frozenset[Scope] = frozenset({"client", "class", "samples"})


class Method(ABC):
    """A way to unlearn. Leaves are frozen dataclasses: their fields are the ``[method]`` table of an experiment.

    A leaf has a field ``local``, the local recipe of its training rounds; None: the experiment's.

    Class attributes:
        name: as in the registry.
        scopes: levels of request that it serves.
        needs: what it needs, whatever its settings: a record of the training run (``history``), replies one by one and
            not only their weighted mean (``per-client``), a language model (``text``). Refused early if absent.
        repeats: whether it can serve a second request on the model that it left; refused before any work if not.
        remembers: whether it leaves memory of its own to the next request, derived from what was forgotten.
        mixes: whether requests of different scopes can be served together, in one pass; refused before any work if not.
        presets: named sets of field values.
        known_failures: conformance checks that the method cannot pass, each with the reason.
    """

    name: ClassVar[str]
    scopes: ClassVar[frozenset[Scope]] = ALL_SCOPES
    needs: ClassVar[frozenset[str]] = frozenset()
    repeats: ClassVar[bool] = True
    mixes: ClassVar[bool] = True
    remembers: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    known_failures: ClassVar[Mapping[str, str]] = {}

    local: Local | None

    @property
    def needed(self) -> frozenset[str]:
        """What it needs with these settings: ``needs``, or more."""
        return self.needs

    def training(self, step: Step) -> Step:
        """A hook into the rounds before the request: what the method has to record while the model learns.

        It goes to ``State.memory`` under names that begin with the method's own, ``name/…``: a method gets its entries
        and nobody else's.
        """
        return step

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        """Fill in from the experiment what the method's own table left open."""
        return self.filled({"local": local})

    def filled(self, values: Mapping[str, Any]) -> Self:
        """A copy in which fields that are None take these values."""
        left = {name: value for name, value in values.items() if getattr(self, name) is None}
        return replace(self, **left)  # type: ignore[type-var]

    def origin(self, task: Task, local: Local, rounds: int) -> Sequence[Phase]:
        """The phases of a training run of the method's own, from fresh weights and on all data.

        Empty for a method that starts from any model; what is exact by construction (FATS, ridge heads) holds only for
        a model that was trained its way.
        """
        return ()

    def remarks(self, sizes: Mapping[str, Mapping[str, int]]) -> Sequence[str]:
        """What whoever plans a run should know of it; ``sizes``: by client, how many samples each part has."""
        return ()

    @property
    def recipe(self) -> Local:
        """The local recipe in force."""
        return self.local or Local()

    @abstractmethod
    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        """The phases that lead from ``start`` (the model at the request) to the unlearned model."""


def demand_rounds(method: Method, rounds: int | None, *, least: int = 0) -> None:
    """Raise ``ConfigError`` if ``method.rounds`` is set to fewer than ``least``."""
    if rounds is not None and rounds < least:
        raise ConfigError(f"{method.name}.rounds: must be at least {least}, got {rounds}")


def demand_given(method: Method, gives: frozenset[str]) -> None:
    """Raise ``MethodError``, with the method's name, if it needs what a federation does not give."""
    for need in sorted(method.needed - gives):
        raise MethodError(f"{method.name}: {_LACKS.get(need, f'needs {need}, which this runtime does not give')}")


def train_work(
    state: State, part: Part, local: Local, t: int, *, extras: Params | None = None
) -> Work:
    """Local training from ``state`` on ``part``, as of round ``t``."""
    return Work("train", state.params, state.buffers, part, options=local.options(t), extras=extras or {})


def fedavg(local: Local, part: Part = "retain", *, scale: float = 1.0) -> Step:
    """One round of FedAvg (Eq. 1), weights n_k / Σ n_j over the participants of the round, its step times ``scale``."""

    def step(federation: Federation, state: State, t: int) -> State:
        mean = average(federation.run(train_work(state, part, local, t)))
        return replace(state.moved(mean.tensors, scale), buffers=mean.buffers)

    return step
