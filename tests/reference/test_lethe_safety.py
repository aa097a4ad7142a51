"""What keeps Lethe from wrecking a model, and from stopping too early: the line search and the probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch
from of_three import Small

from letheon import tree
from letheon.errors import ConfigError
from letheon.methods.base import fedavg
from letheon.methods.lethe import MOST, PROBE, REBOUND, Lethe, Search, accuracy
from letheon.methods.rectify import Gamma
from letheon.phase import LOG, Phase, State, drive
from letheon.testing.scene import Altered
from letheon.training import Local
from letheon.work import Reply, Work

LOCAL = Local(lr=0.1, batch_size=4)


@dataclass
class Judge:
    """A federation that finds a model as accurate as ``rule`` says of the distance it has moved."""

    rule: Callable[[float], float]
    asked: list[float] = field(default_factory=list)

    def run(self, *works: Work) -> Iterator[Reply]:
        for work in works:
            self.asked.append(float(work.params["w"]))
            yield Reply(0, "c", {}, weight=1.0, metrics={"accuracy": self.rule(self.asked[-1])})


def longest(limit: float, **settings: float) -> tuple[float, int]:
    """The scale found, and how many trials it took, if models up to ``limit`` are good enough."""
    judge = Judge(lambda moved: 0.9 if moved <= limit else 0.1)
    start, update = State({"w": torch.tensor(0.0)}), {"w": torch.tensor(1.0)}
    scale = Search(**settings).scale(judge, start, update, 0.5)  # type: ignore[arg-type]
    return scale, len(judge.asked)


@pytest.mark.parametrize(
    ("limit", "scale", "trials"),
    [(1.0, 1.0, 2), (3.9, 2.0, 3), (100.0, 8.0, 4), (0.9, 0.5, 2), (0.02, 1 / 64, 7), (0.01, 0.0, 7), (0.0, 0.0, 7)],
)
def test_the_search_takes_the_longest_power_of_two_that_is_good_enough(limit: float, scale: float, trials: int) -> None:
    assert longest(limit) == (scale, trials)


def test_the_ends_of_the_search_are_settings() -> None:
    assert longest(100.0, largest=2.0) == (2.0, 2)
    assert longest(0.0, smallest=0.25) == (0.0, 3)


def trained(small: Small) -> State:
    """A model that is good on the retained data."""
    return drive([Phase("restore", fedavg(LOCAL), 10)], small.tap, small.start, seed=2)


def test_no_round_leaves_less_than_its_share_of_accuracy_however_wild_the_streams(small: Small) -> None:
    wild = replace(LOCAL, lr=5.0)
    method = Lethe(adapter=None, rounds=3, restore_rounds=0, search=Search(keep=0.8), local=wild)
    start = trained(small)
    seen = [start]
    phases = method.phases(start, small.task)
    drive(phases, small.tap, start, seed=1, observers=[lambda phase, done, state: seen.append(state)])
    first, *later = [accuracy(small.tap, state, "retain") for state in seen]
    assert all(tree.is_finite(state.params) for state in seen)
    assert first > 0.8
    assert min(later) >= 0.8 * first
    free = drive(replace(method, search=None).phases(start, small.task), small.tap, start, seed=1)
    assert accuracy(small.tap, free, "retain") < 0.8 * first  # without the search these streams do wreck it


def test_a_step_that_nothing_can_shorten_enough_is_undone_with_its_buffers(small: Small) -> None:
    method = Lethe(adapter=None, rounds=1, restore_rounds=0, local=replace(LOCAL, lr=50.0))
    method = replace(method, search=Search(keep=1.0, smallest=1.0, largest=1.0))
    start = trained(small)
    end = drive(method.phases(start, small.task), small.tap, start, seed=3)
    assert tree.digest(end.params | end.buffers) == tree.digest(start.params | start.buffers)


@pytest.mark.parametrize(
    ("gamma", "sizes"),
    [
        (Gamma("constant", value=2.0), {"forget": 3e38, "retain": 1.0}),  # γΔᵘ is not finite, though both streams are
        (Gamma(), {"forget": 1e-3, "retain": 3e38}),  # γ itself is beyond float32
    ],
)
def test_a_step_that_is_not_finite_is_undone(small: Small, gamma: Gamma, sizes: dict[str, float]) -> None:
    def vast(call: int, work: Work, reply: Reply) -> Reply:
        size = sizes[work.part]
        tensors = {name: torch.full_like(tensor, size) for name, tensor in reply.tensors.items()}
        return replace(reply, tensors=tensors)

    method = Lethe(adapter=None, gamma=gamma, rounds=1, restore_rounds=0, local=LOCAL)
    start = trained(small)
    end = drive(method.phases(start, small.task), Altered(small.tap, vast), start, seed=1)
    assert tree.digest(end.params | end.buffers) == tree.digest(start.params | start.buffers)


class Rebounding:
    """Lets everything through but what is known of the data to forget, which it makes up: (before, after) by round."""

    def __init__(self, small: Small, known: list[tuple[float, float]]) -> None:
        self._inner = small.tap
        self._known = [value for pair in known for value in pair]

    def run(self, *works: Work) -> Iterator[Reply]:
        for reply in self._inner.run(*works):
            work = works[reply.work]
            made_up = work.kind == "evaluate" and work.part == "forget"
            yield replace(reply, metrics={"accuracy": self._known.pop(0)}) if made_up else reply


@pytest.mark.parametrize(
    ("known", "rounds"),
    [([(0.0, REBOUND)], 1), ([(0.0, 0.5), (0.1, 0.11)], 2), ([(0.0, 0.5)] * 9, MOST), ([(0.4, 0.0)], 1)],
)
def test_rectification_goes_on_while_a_trial_round_brings_the_knowledge_back(
    small: Small, known: list[tuple[float, float]], rounds: int
) -> None:
    method = Lethe(adapter=None, rounds="probe", restore_rounds=0, local=LOCAL)
    seen: list[State] = []
    federation = Rebounding(small, known)
    phases = method.phases(small.start, small.task)
    drive(phases, federation, small.start, seed=1, observers=[lambda phase, done, state: seen.append(state)])
    assert len(seen) == rounds
    assert [tuple(state.scratch[LOG + PROBE].tolist()) for state in seen] == known[:rounds]


def test_the_trial_round_of_a_probe_is_thrown_away(small: Small) -> None:
    probed = Lethe(adapter=None, rounds="probe", restore_rounds=0, search=None, local=LOCAL)
    once = replace(probed, rounds=1)
    federation = Rebounding(small, [(0.0, 0.0)])
    ends = [
        drive(probed.phases(small.start, small.task), federation, small.start, seed=1),
        drive(once.phases(small.start, small.task), small.tap, small.start, seed=1),
    ]
    assert tree.digest(ends[0].params | ends[0].buffers) == tree.digest(ends[1].params | ends[1].buffers)


def test_rounds_are_a_number_or_probe() -> None:
    with pytest.raises(ConfigError, match="rounds"):
        Lethe(rounds=0)
