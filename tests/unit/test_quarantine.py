"""A client cannot steer a method by numbers that are none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from letheon.errors import RoundError
from letheon.middleware import Quorum
from letheon.tasks.vision import Digits
from letheon.work import Reply, Work, average


class Voices:
    """A federation of three clients that report an accuracy each."""

    def __init__(self, *accuracies: float) -> None:
        self.accuracies = accuracies

    def run(self, *works: Work) -> Iterator[Reply]:
        for k, accuracy in enumerate(self.accuracies):
            yield Reply(0, f"c{k}", {}, weight=1.0, metrics={"accuracy": accuracy})


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_metric_that_is_not_finite_quarantines_its_client(broken: float) -> None:
    quorum = Quorum(Voices(0.5, broken, 0.7))
    mean = average(quorum.run(Work("evaluate", {}, part="retain")))
    quorum.observe("rectify", 1, None)  # type: ignore[arg-type]
    assert mean.metrics["accuracy"] == pytest.approx(0.6)
    assert [event["client"] for event in quorum.events] == ["c1"]


def test_looking_at_a_task_moves_no_global_rng() -> None:
    task = replace(Digits(dropout=0.2))
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    _ = task.layers, task.flops, task.draws, task.init(3)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_data_to_forget_may_have_one_holder_whatever_the_minimum() -> None:
    quorum = Quorum(Voices(0.5), minimum=2)
    assert average(quorum.run(Work("evaluate", {}, part="forget"))).weight == 1.0
    with pytest.raises(RoundError, match="2 needed"):
        list(quorum.run(Work("evaluate", {}, part="retain")))
