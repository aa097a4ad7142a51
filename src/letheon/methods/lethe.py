"""Lethe: amplify, rectify, restore (arXiv 2601.22601)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any, ClassVar, Literal

import torch

from letheon import tree
from letheon.adapter import Adapter, adapter_of
from letheon.errors import ConfigError
from letheon.methods.base import PER_CLIENT, Method, fedavg, train_work
from letheon.methods.rectify import Gamma, rectify
from letheon.methods.search import Search, accuracy
from letheon.phase import LOG, Phase, State, seed_of
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Reply, Work, average, averages, separate

ALIGNMENT = "alignment"
"""Log: a row for each layer, columns ``rectify.COLUMNS``."""
AMPLIFIED = "amplified"
"""Log: steps taken in the ascent and the mean loss reached, in nats."""
PROBE = "probe"
"""Log: accuracy on the data to forget after the rectification and after the trial round."""
RECOVERED = "recovered"
"""Log: with ``restore_rounds = "until"``, accuracy on retained data after the round, and Origin's."""
BASELINE = "baseline"
PACE = "pace"
SHARE = "share"

MOST = 6
"""Rectification rounds of ``rounds = "probe"`` at most."""
REBOUND = 0.02
"""Accuracy on the data to forget that a trial round may bring back."""
LONGEST = 20
"""Rounds of ``restore_rounds = "until"`` at most."""
SLACK = 0.01
"""Accuracy on retained data that may be missing against Origin's when they end."""


def stays_gone(state: State) -> bool:
    """Whether the trial round brought back little enough."""
    before, after = state.scratch[LOG + PROBE].tolist()
    return bool(after - before <= REBOUND)


def is_restored(state: State) -> bool:
    """Whether the retained data are known as well as to Origin, but for ``SLACK``."""
    found, origin = state.scratch[LOG + RECOVERED].tolist()
    return bool(found >= origin - SLACK)


@dataclass(frozen=True)
class Lethe(Method):
    """Lethe (Algorithm 1).

    Phase 1 trains a temporary adapter by ascent on the data to forget. Phase 2 runs two streams of local training on
    top of it and combines them layer by layer (Eq. 10). Phase 3 drops the adapter and restores utility by FedAvg.

    Attributes:
        gamma: how γ is chosen.
        adapter: the adapter and its ascent; None: no phase 1.
        rounds: T, rectification rounds. ``probe``: as many as it takes, at most six: after each, one round on the
            retained data is tried and thrown away; if it brings back more than two points of accuracy on the data to
            forget, rectification goes on.
        restore_rounds: R, FedAvg rounds afterwards. ``until``: until the accuracy on retained data, of ``search``'s
            samples, is within a point of Origin's, at most twenty.
        layer: what a layer of Eq. (9) is: a ``tensor`` (weight and bias apart), a ``module``, a ``block`` (what the
            model itself is made of: all parameters under one of its own parts) or ``global``, the whole model.
        norm: whether scales and shifts of normalisation layers are rectified like all parameters, or take the
            ``retain`` update as it is. Running statistics are never rectified.
        buffers: where running statistics stay in phase 2: None, with the retain stream; ``origin``, where they were
            before. In phase 3 they follow the retained clients. ``fresh``: as None, and after phase 2 and phase 3 one
            pass over the retained data gathers them anew.
        weights: p_k and q_k, how replies are averaged in both streams and in phase 3. None: by their samples, summing
            to 1 over those that take part. ``uniform``: all alike. ``literal``: q_k = n_k/N as Eq. (1) prints it with
            N the samples of all that take part, those to forget too: each retained step is shorter by their share.
        forget_steps: local steps of the forget stream in a round. None: as the recipe has it, so that a request for
            few samples has a short stream; ``median``: as many as the median retained client takes.
        search: how long the rectified step is; None: as long as Eq. (10) makes it.
        literal: keep Eq. (10) as printed where a layer's forget update is zero.
        local: local recipe of both streams and of phase 3; None: the experiment's.
    """

    name: ClassVar[str] = "lethe"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # Eq. 6 with a fixed number of steps and no cap; Eq. 10 with one constant γ. The paper gives neither number.
        "strict_paper": {
            "gamma": {"kind": "constant", "value": 1.0},
            "adapter": {"steps": 20, "cap": False, "clip": False},
            "search": False,
            "literal": True,
        },
    }

    gamma: Gamma = Gamma()
    adapter: Adapter | None = Adapter()
    rounds: int | Literal["probe"] = 4
    restore_rounds: int | Literal["until"] = 4
    layer: Literal["tensor", "module", "block", "global"] = "tensor"
    norm: Literal["rectify", "retain"] = "rectify"
    search: Search | None = Search()
    literal: bool = False
    buffers: Literal["origin", "fresh"] | None = None
    weights: Literal["uniform", "literal"] | None = None
    forget_steps: int | Literal["median"] | None = None
    local: Local | None = None

    @property
    def needed(self) -> frozenset[str]:
        reads_replies = self.forget_steps == "median" or self.weights == "uniform"
        return self.needs | {PER_CLIENT} if reads_replies else self.needs

    def __post_init__(self) -> None:
        if isinstance(self.forget_steps, int) and self.forget_steps < 1:
            raise ConfigError(f"lethe.forget_steps: must be at least 1, got {self.forget_steps}")
        if (self.rounds != "probe" and self.rounds < 1) or (self.restore_rounds != "until" and self.restore_rounds < 0):
            raise ConfigError("lethe: rounds must be at least 1 and restore_rounds at least 0")

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        layers = self.layers(start, task)
        kept = self.kept(task)
        if self.adapter:
            self.adapter.layers(start.params, task.head)  # refuses places that there are not

        def amplify(federation: Federation, state: State, t: int) -> State:
            return self.amplify(federation, state, task.head)

        def rectified(federation: Federation, state: State, t: int) -> State:
            return self.rectified(federation, state, t, layers, kept)

        def probed(federation: Federation, state: State, t: int) -> State:
            return self.probed(federation, rectified(federation, state, t), t)

        if self.rounds == "probe":
            second = Phase("rectify", probed, MOST, until=stays_gone)
        else:
            second = Phase("rectify", rectified, self.rounds)
        first = [Phase("amplify", amplify)] if self.adapter else []
        return [*first, second, *self.last(bool(start.buffers))]

    def last(self, has_buffers: bool) -> Sequence[Phase]:
        """Phase 3, and fresh running statistics before and after it."""
        fresh = [Phase("refresh", refreshed)] if has_buffers and self.buffers == "fresh" else []
        if self.restore_rounds == 0:
            return fresh
        if self.restore_rounds == "until":
            restore = Phase("restore", self.restore, LONGEST, until=is_restored)
        else:
            restore = Phase("restore", self.restore, self.restore_rounds)
        return [*fresh, restore, *(replace(phase, name="refresh-restored") for phase in fresh)]

    def layers(self, start: State, task: Task) -> Mapping[str, Sequence[str]]:
        """The groups of Eq. (9), in the order of the alignment log."""
        if self.layer == "tensor":
            return {name: (name,) for name in start.params}
        if self.layer == "module":
            return task.layers
        groups: dict[str, list[str]] = {}
        for name in start.params:
            block = name.partition(".")[0] if self.layer == "block" else "all"
            groups.setdefault("norms" if name in self.kept(task) else block, []).append(name)
        return groups

    def kept(self, task: Task) -> Set[str]:
        """The parameters that are not rectified."""
        return task.norms if self.norm == "retain" else frozenset()

    def amplify(self, federation: Federation, state: State, head: str) -> State:
        """Phase 1 (Eq. 6): the holders of the data to forget train the adapter; several are averaged."""
        assert self.adapter is not None
        start = self.adapter.start(state.params, head, seed_of(tree.digest(state.params)))
        work = Work("amplify", state.params, state.buffers, "forget", options=self.adapter.options(), extras=start)
        mean = average(federation.run(work))
        reached = torch.tensor([mean.metrics.get("steps", 0.0), mean.metrics.get("reached", 0.0)], dtype=torch.float64)
        return replace(state, scratch=state.scratch | mean.tensors).logged(**{AMPLIFIED: reached})

    def rectified(
        self, federation: Federation, state: State, t: int, layers: Mapping[str, Sequence[str]], kept: Set[str]
    ) -> State:
        """Phase 2 (Eq. 7–11): one round of both streams; buffers and ``kept`` parameters follow the retain stream."""
        extras = adapter_of(state.scratch)
        forgetting, pace = self.paced(federation, state)
        forget, retain = averages(
            self.weighed(federation).run(
                train_work(state, "forget", forgetting, t, extras=extras),
                train_work(state, "retain", self.recipe, t, extras=extras),
            ),
            works=2,
        )
        share = retain.weight / (retain.weight + forget.weight) if self.weights == "literal" else 1.0
        streams = tree.scale(retain.tensors, share), forget.tensors
        update, alignments = rectify(*streams, layers, self.gamma, literal=self.literal, kept=kept)
        following = replace(state, buffers=state.buffers if self.buffers == "origin" else retain.buffers)
        scale, baseline = self.length(federation, state, following, update)
        moved = following.moved(update, scale) if scale else state  # 0 times what is not finite is not 0
        rows = torch.tensor([a.row(scale) for a in alignments.values()], dtype=torch.float64)
        scratch = state.scratch | baseline | pace | {SHARE: torch.tensor(share, dtype=torch.float64)}
        return replace(moved, scratch=scratch).logged(**{ALIGNMENT: rows})

    def paced(self, federation: Federation, state: State) -> tuple[Local, Params]:
        """The forget stream's recipe, and what to keep of it in scratch: the retained clients are counted once."""
        if self.forget_steps is None:
            return self.recipe, {}
        if self.forget_steps != "median":
            return replace(self.recipe, steps=self.forget_steps), {}
        if PACE in state.scratch:
            return replace(self.recipe, steps=int(state.scratch[PACE])), {}
        count = Work("evaluate", state.params, state.buffers, "retain", options={"limit": 1})
        (replies,) = separate(federation.run(count), 1)
        steps = median_low(self.recipe.count(int(reply.weight)) for reply in replies)
        return replace(self.recipe, steps=steps), {PACE: torch.tensor(steps)}

    def weighed(self, federation: Federation) -> Federation:
        """The federation as its replies are averaged."""
        return Alike(federation) if self.weights == "uniform" else federation

    def length(self, federation: Federation, state: State, following: State, update: Params) -> tuple[float, Params]:
        """The step's length, and Origin's accuracy on retained data to keep in scratch: measured in the first round."""
        if self.search is None and self.restore_rounds != "until":
            return 1.0, {}
        if BASELINE not in state.scratch:
            origin = accuracy(federation, state, "retain", limit=self.samples)
        else:
            origin = float(state.scratch[BASELINE])
        kept = {BASELINE: torch.tensor(origin, dtype=torch.float64)}
        if self.search is None:
            return 1.0, kept
        return self.search.scale(federation, following, update, self.search.keep * origin), kept

    @property
    def samples(self) -> int:
        """Of each retained client that a look at the retained data takes."""
        return (self.search or Search()).samples

    def probed(self, federation: Federation, state: State, t: int) -> State:
        """Try one round of what comes next, see whether the knowledge comes back, and forget the trial."""
        trial = self.retained(federation, state, t)
        known = [accuracy(federation, each, "forget") for each in (state, trial)]
        log = {name.removeprefix(LOG): row for name, row in state.scratch.items() if name.startswith(LOG)}
        return state.logged(**log, **{PROBE: torch.tensor(known, dtype=torch.float64)})

    def restore(self, federation: Federation, state: State, t: int) -> State:
        """Phase 3: the adapter is gone; FedAvg on the retained data."""
        kept = {name: state.scratch[name] for name in (BASELINE, SHARE) if name in state.scratch}
        state = replace(self.retained(federation, state, t), scratch=kept)
        if self.restore_rounds != "until":
            return state
        known = [accuracy(federation, state, "retain", limit=self.samples), float(kept[BASELINE])]
        return state.logged(**{RECOVERED: torch.tensor(known, dtype=torch.float64)})

    def retained(self, federation: Federation, state: State, t: int) -> State:
        """One round of FedAvg on the retained data, without the adapter."""
        return fedavg(self.recipe, scale=float(state.scratch.get(SHARE, 1.0)))(self.weighed(federation), state, t)


class Alike:
    """A federation whose replies count alike, whatever samples they stand for; who has none still takes no part."""

    def __init__(self, inner: Federation) -> None:
        self._inner = inner

    def run(self, *works: Work) -> Iterator[Reply]:
        for reply in self._inner.run(*works):
            yield replace(reply, weight=1.0) if reply.weight > 0 else reply


def refreshed(federation: Federation, state: State, t: int) -> State:
    """Running statistics as one pass over the retained data gives them; nothing is trained."""
    mean = average(federation.run(Work("refresh", state.params, state.buffers, "retain")))
    return replace(state, buffers=mean.buffers).logged()
