"""FedEraser: the training run replayed without the forgotten client (Liu et al., IWQoS 2021, arXiv 2012.13891)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import nn

from letheon import tree
from letheon.client import KINDS, Client, client_work
from letheon.data import Data
from letheon.errors import ConfigError, MethodError
from letheon.methods.base import Method
from letheon.middleware import Recording
from letheon.phase import Phase, State, Step
from letheon.request import Scope
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Reply, Work, average

LENGTH, FIRST = "federaser/length/", "federaser/first/"
"""Memory: ``LENGTH + ROUND/CLIENT`` is ‖U_k‖, ``FIRST + TENSOR/CLIENT`` the update itself in the first kept round."""
EPSILON = 1e-12


def calibrated(update: Params, length: float) -> Params:
    """Ũ_k = ‖U_k‖·Û_k/(‖Û_k‖ + ε): the old length along the new direction; a zero update is no step.

    Args:
        update: Û_k, one client's update now.
        length: ‖U_k‖ of the same client then, over the whole model.
    """
    return tree.scale(update, length / (tree.norm(update) + EPSILON))


def lengths(memory: Params, round: int) -> dict[str, float]:
    """‖U_k‖ by client, as recorded in a round of training."""
    place = f"{LENGTH}{round:06d}/"
    return {name.removeprefix(place): float(value) for name, value in memory.items() if name.startswith(place)}


def first_updates(memory: Params) -> dict[str, Params]:
    """U_k of the first kept round by client."""
    updates: dict[str, Params] = {}
    for name, tensor in memory.items():
        if name.startswith(FIRST):
            parameter, _, client = name.removeprefix(FIRST).partition("/")
            updates.setdefault(client, {})[parameter] = tensor
    return updates


def kept_of(memory: Params, clients: Iterable[str]) -> Params:
    """The memory without what FedEraser recorded of other clients than these."""
    known = set(clients)
    return {
        name: tensor
        for name, tensor in memory.items()
        if not name.startswith((LENGTH, FIRST)) or name.split("/", 3)[3] in known
    }


def _shortened(work: Work, n: int) -> Work:
    """The work with only the fraction ``ratio`` of its steps, rounded, but at least one."""
    full = Local.from_options(work.options).count(n)
    steps = max(1, round(float(work.options["ratio"]) * full))
    return work if steps >= full else replace(work, options={**work.options, "steps": steps})


def _calibrate_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    return KINDS["train"].cost(task, _shortened(work, n), n)


@client_work("calibrate", _calibrate_cost)
def _calibrate(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Local training cut short. Replies w_k − w."""
    return KINDS["train"].do(client, _shortened(work, len(data)), data, module, seed)


@dataclass(frozen=True)
class FedEraser(Method):
    """Take the retained clients' steps of the training run again, in their old lengths and in new directions.

    While the model learns, the server keeps of every client, every ``interval`` rounds, how long its update was, and in
    the first of these rounds the update itself. To unlearn it starts from Origin's initial weights, adds the first
    updates of the retained clients, and then has them train for a fraction of a round at each kept round: the step is
    Σ q_k Ũ_k with q_k = n_k/Σ n_j over the retained clients, and Ũ_k is rescaled for each client over the whole model.

    The federation tells who is retained: one sample's evaluation is asked of whoever still holds data, and of those who
    do not answer everything recorded is erased at once; a client that is merely late then is lost for this method.
    What was recorded of the retained clients stays, for a later request: their first updates began at the initial
    weights, which know of nobody, and ‖Ũ_k‖ = ‖U_k‖, so it is the history of the replayed run as well. Rounds of
    training after the request are in no history.

    It is an approximation of retraining, and not only for its shortened rounds: the lengths ‖U_k‖ were measured on
    models that the forgotten client had helped to make.

    A run so short that one round was kept has that round calibrated: nothing else would be asked of anybody.

    Attributes:
        interval: Δt: rounds 0, Δt, 2Δt … of training are kept, ⌊E/Δt⌋ in all.
        ratio: r, the fraction of the local steps that a client takes to calibrate.
        first: whether the first kept round is ``stored`` as it was (the paper) or ``calibrated`` like the others, which
            spares the server K copies of the model.
        rounds: kept rounds; None: all ⌊E/Δt⌋.
        init_seed: seed of the initial weights; None: the experiment's, with which Origin began.
        local: local recipe, its schedule that of the kept rounds; None: the experiment's.
    """

    name: ClassVar[str] = "federaser"
    scopes: ClassVar[frozenset[Scope]] = frozenset({"client"})  # what is stored are whole updates
    needs: ClassVar[frozenset[str]] = frozenset({"history", "per-client"})

    interval: int = 2
    ratio: float = 0.5
    first: Literal["stored", "calibrated"] = "stored"
    rounds: int | None = None
    init_seed: int | None = None
    local: Local | None = None

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ConfigError(f"federaser.interval: must be at least 1, got {self.interval}")
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"federaser.ratio: must lie in (0, 1], got {self.ratio}")
        if self.first not in ("stored", "calibrated"):
            raise ConfigError(f"federaser.first: unknown {self.first!r}; use stored or calibrated")
        if self.rounds is not None and self.rounds < 1:
            raise ConfigError(f"federaser.rounds: must be at least 1, got {self.rounds}")

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        return self.filled({"local": local, "rounds": max(1, train_rounds // self.interval), "init_seed": seed})

    @property
    def kept(self) -> range:
        """The rounds of training that are kept."""
        return range(0, self.interval * (self.rounds or 1), self.interval)

    @property
    def to_calibrate(self) -> range:
        """Those of them that are calibrated."""
        return self.kept[1:] if self.first == "stored" and len(self.kept) > 1 else self.kept

    def training(self, step: Step) -> Step:
        def recorded(federation: Federation, state: State, t: int) -> State:
            if t not in self.kept:
                return step(federation, state, t)
            recording = Recording(federation, lambda reply: self.note(reply, t))
            after = step(recording, state, t)
            return replace(after, memory=after.memory | recording.notes)

        return recorded

    def note(self, reply: Reply, t: int) -> Params:
        """What is kept of a client's update in round ``t`` of training."""
        if t in self.to_calibrate:
            return {f"{LENGTH}{t:06d}/{reply.client}": torch.tensor(tree.norm(reply.tensors), dtype=torch.float64)}
        return {f"{FIRST}{name}/{reply.client}": tensor for name, tensor in reply.tensors.items()}

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        fresh = task.init(self.init_seed or 0)

        def replay(federation: Federation, state: State, t: int) -> State:
            begin = self.begin(federation, fresh, state.memory) if t == 0 else state
            return self.calibrate(federation, begin, self.to_calibrate[t])

        return [Phase("replay", replay, len(self.to_calibrate))]

    def begin(self, federation: Federation, fresh: State, memory: Params) -> State:
        """The initial weights, moved by the first updates of the retained clients, if those were stored."""
        self.check(memory)
        work = Work("evaluate", fresh.params, fresh.buffers, "retain", options={"limit": 1})
        present = list(federation.run(work))
        memory = kept_of(memory, average(present).clients)
        begin, updates = replace(fresh, memory=memory), first_updates(memory)
        if self.to_calibrate == self.kept:
            return begin
        known = [replace(reply, tensors=updates[reply.client]) for reply in present if reply.client in updates]
        return begin.moved(average(known).tensors) if known else begin

    def check(self, memory: Params) -> None:
        """Raise ``MethodError`` unless every round that is replayed was recorded."""
        missing = [t for t in self.to_calibrate if not lengths(memory, t)]
        if self.to_calibrate != self.kept and not first_updates(memory):
            missing.insert(0, 0)
        if missing:
            raise MethodError(
                f"federaser: needs what clients sent in rounds 0, {self.interval}, {2 * self.interval} … of training; "
                f"this model has no record of round {missing[0]}. Train with federaser listed, with the same interval "
                "and first, or use another method."
            )

    def calibrate(self, federation: Federation, state: State, round: int) -> State:
        """One kept round: Σ q_k Ũ_k over the retained clients whose length was recorded; buffers follow them.

        Where not all train in a round, it may have been the forgotten clients' alone: it is then no step.
        """
        known = lengths(state.memory, round)
        if not known:
            return state
        options = replace(self.recipe, first_round=0).options(round) | {"ratio": self.ratio}
        clients = tuple(sorted(known))
        work = Work("calibrate", state.params, state.buffers, "retain", options=options, clients=clients)
        replies = federation.run(work)
        mean = average(replace(reply, tensors=calibrated(reply.tensors, known[reply.client])) for reply in replies)
        return replace(state.moved(mean.tensors), buffers=mean.buffers)
