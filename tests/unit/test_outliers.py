"""A client cannot take a model where it wants by an update that is far longer than everybody's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from letheon import pipeline, tree
from letheon.errors import ConfigError, RoundError
from letheon.experiment import Experiment
from letheon.methods.fine_tuning import FineTuning
from letheon.middleware import Quorum
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.partition import Partition
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.testing.scene import Altered
from letheon.training import Local
from letheon.work import Reply, Work, average

SENT = {"w": torch.zeros(4)}
TRAIN = Work("train", SENT, part="retain")


class Lengths:
    """A federation whose clients c0, c1 … answer each work with updates of given norms, of which NaN is one."""

    def __init__(self, *norms: Sequence[float]) -> None:
        self.norms = norms
        self.given = 0

    def run(self, *works: Work) -> Iterator[Reply]:
        for k in range(max(len(norms) for norms in self.norms)):
            for at, norms in enumerate(self.norms[: len(works)]):
                if k < len(norms):
                    self.given += 1
                    yield Reply(at, f"c{k}", {"w": torch.tensor([norms[k], 0.0, 0.0, 0.0])}, weight=1.0)


def passed(inner: Lengths, *works: Work, factor: float | None = 10.0) -> list[tuple[int, str]]:
    return [(reply.work, reply.client) for reply in Quorum(inner, outlier_factor=factor).run(*works)]


@pytest.mark.parametrize("norms", [(1.0, 1.2, 200.0), (200.0, 1.0, 2.0, 0.5), (0.1, 30.0, 1.0, 1.0, 90.0)])
def test_an_update_that_is_far_longer_than_the_others_is_quarantined_by_name(norms: tuple[float, ...]) -> None:
    quorum = Quorum(Lengths(norms), outlier_factor=10.0)
    kept = [reply.client for reply in quorum.run(TRAIN)]
    quorum.observe("train", 3, None)  # type: ignore[arg-type]
    long = [f"c{k}" for k, norm in enumerate(norms) if norm > 20]
    assert kept == [f"c{k}" for k, norm in enumerate(norms) if norm <= 20]
    assert [(event["client"], event["phase"], event["round"]) for event in quorum.events] == [
        (client, "train", 3) for client in long
    ]


def test_the_reason_says_how_long_and_what_was_believed() -> None:
    quorum = Quorum(Lengths((1.0, 2.0, 2.0, 50.0)), outlier_factor=10.0)
    list(quorum.run(TRAIN))
    quorum.observe("p", 1, None)  # type: ignore[arg-type]
    (event,) = quorum.events
    assert event["reason"].startswith("its update has the norm 50, 25.0 times the median of the 4 replies")
    assert "up to 10 times is believed (outlier_factor)" in event["reason"]


@pytest.mark.parametrize("norms", [(1.0, 2.0, 9.0), (0.0, 0.0, 0.0, 5.0), (1.0, 500.0), (500.0,)])
def test_nobody_is_quarantined_for_less_than_the_factor_or_where_there_is_nothing_to_compare_with(
    norms: tuple[float, ...],
) -> None:
    assert len(passed(Lengths(norms), TRAIN)) == len(norms)


def test_a_factor_that_is_not_set_compares_nothing_and_holds_nothing() -> None:
    inner = Lengths((1.0, 1.0, 1.0, 500.0))
    stream = Quorum(inner).run(TRAIN)
    next(iter(stream))
    assert inner.given == 1
    assert len(list(stream)) == 3


def test_replies_are_compared_with_those_to_the_same_work_only() -> None:
    ascent = Work("train", SENT, part="forget", options={"objective": "ascent"})
    inner = Lengths((100.0, 110.0, 120.0, 5000.0), (1.0, 1.1, 90.0, 1.2))
    assert passed(inner, ascent, TRAIN) == [(0, "c0"), (1, "c0"), (0, "c1"), (1, "c1"), (0, "c2"), (1, "c3")]


def test_replies_that_are_no_update_are_not_compared() -> None:
    assert len(passed(Lengths((1.0, 1.0, 1.0, 1000.0)), Work("ridge-statistics", SENT, part="retain"))) == 4


def test_one_that_cannot_be_used_anyway_says_nothing_about_the_others() -> None:
    nan = float("nan")
    assert passed(Lengths((1.0, nan, 1.0, nan, 1.0, 30.0)), TRAIN) == [(0, "c0"), (0, "c2"), (0, "c4")]


def test_those_that_hold_nothing_say_nothing_about_the_others() -> None:
    class Weightless(Lengths):
        def run(self, *works: Work) -> Iterator[Reply]:
            for reply in super().run(*works):
                yield replace(reply, weight=float(reply.client in ("c0", "c1", "c2")))

    assert len(passed(Weightless((1.0, 1.0, 50.0, 50.0, 50.0, 50.0)), TRAIN)) == 5


def test_a_round_goes_on_under_the_quorum_and_is_refused_below_it() -> None:
    inner = Lengths((1.0, 1.0, 1.0, 99.0))
    assert average(Quorum(inner, minimum=3, outlier_factor=10.0).run(TRAIN)).clients == ("c0", "c1", "c2")
    with pytest.raises(RoundError, match=r"3 usable replies to 'train' on 'retain', 4 needed \(c3: its update has"):
        list(Quorum(inner, minimum=4, outlier_factor=10.0).run(TRAIN))


@pytest.mark.parametrize("factor", [1.0, 0.0, -3.0])
def test_a_factor_is_greater_than_one(factor: float) -> None:
    with pytest.raises(ConfigError, match="outlier_factor: must be greater than 1"):
        Quorum(Lengths((1.0,)), outlier_factor=factor)
    with pytest.raises(ConfigError, match="outlier_factor: must be greater than 1"):
        replace(EXPERIMENT, outlier_factor=factor)


EXPERIMENT = Experiment(
    Digits(),
    FineTuning(rounds=1),
    clients=4,
    partition=Partition("iid"),
    request=Target(min_forget=20, trigger=Trigger(size=2, margin=0)),
    local=Local(lr=0.05),
    train_rounds=1,
    continue_rounds=1,
)


class Rogue:
    """A runtime in which one client sends its updates many times too long."""

    gives = InProcess.gives

    def __init__(self, experiment: Experiment, client: str) -> None:
        from letheon.client import Client

        clients = [Client(name, data, experiment.task) for name, data in experiment.populate().clients.items()]
        self.inner = InProcess(clients, workers=1)
        self.client, self.admit, self.close = client, self.inner.admit, self.inner.close

    def run(self, *works: Work) -> Iterator[Reply]:
        return Altered(self.inner, self._stretched).run(*works)

    def _stretched(self, call: int, work: Work, reply: Reply) -> Reply:
        is_it = reply.client == self.client
        return replace(reply, tensors=tree.scale(reply.tensors, 1000.0)) if is_it else reply


def test_an_experiment_has_it_off_and_can_switch_it_on(tmp_path: Path) -> None:
    rogue = next(name for name in EXPERIMENT.populate().clients if name != EXPERIMENT.populate().request.client)
    guarded = replace(EXPERIMENT, outlier_factor=10.0)
    assert guarded.digest != EXPERIMENT.digest  # it can change a result
    off = pipeline.run(EXPERIMENT, tmp_path / "off", runtime=Rogue(EXPERIMENT, rogue))
    on = pipeline.run(guarded, tmp_path / "on", runtime=Rogue(guarded, rogue))
    assert off.origin.events == []
    assert {event["client"] for event in on.origin.events} == {rogue}
    assert tree.norm(on.origin.state.params) < tree.norm(off.origin.state.params) / 10
