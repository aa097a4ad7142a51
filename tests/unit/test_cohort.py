"""Rounds in which a share of the clients trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from letheon import config, tree
from letheon.cohort import Sampled, cohort_size
from letheon.errors import ConfigError
from letheon.experiment import Experiment
from letheon.methods.federaser import FedEraser
from letheon.methods.fedosd import FedOSD
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.lethe import Lethe
from letheon.middleware import Cost
from letheon.pipeline import Run, run
from letheon.plan import COUNTED, Plan, plan
from letheon.tasks.partition import Partition
from letheon.tasks.target import Target
from letheon.tasks.vision import Digits
from letheon.training import Local
from letheon.work import Reply, Work

NAMES = [f"c{i}" for i in range(10)]
HOLDERS = {"all": NAMES, "retain": NAMES[1:]}
EXPERIMENT = Experiment(
    Digits(),
    Lethe(rounds=1, restore_rounds=2),
    compare=(FineTuning(rounds=1), FedOSD(rounds=1, restore_rounds=1), FedEraser(interval=2)),
    clients=8,
    train_rounds=4,
    continue_rounds=3,
    request=Target(min_forget=50),
    local=Local(lr=0.05, batch_size=16),
)


class Asked:
    """Notes what it is asked and answers nothing."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def run(self, *works: Work) -> Iterator[Reply]:
        self.works += works
        return iter(())


def asked(*works: Work, share: float = 0.3) -> list[Work]:
    inner = Asked()
    list(Sampled(inner, HOLDERS, share).run(*works))  # type: ignore[arg-type]
    return inner.works


def test_a_cohort_is_the_share_of_the_clients_rounded_up() -> None:
    sizes = {(10, 0.3): 3, (10, 0.31): 4, (10, 0.01): 1, (9, 1.0): 9, (1, 0.5): 1}
    assert {given: cohort_size(*given) for given in sizes} == sizes


def test_training_asks_a_cohort_of_those_who_hold_the_part() -> None:
    everybody, retained = asked(Work("train", {}, part="all", seed=1), Work("train", {}, part="retain", seed=1))
    assert everybody.clients is not None
    assert retained.clients is not None
    assert (len(everybody.clients), len(retained.clients)) == (3, 3)
    assert list(everybody.clients) == sorted(everybody.clients)
    assert "c0" not in retained.clients


def test_other_work_the_data_to_forget_and_who_is_named_are_left_alone() -> None:
    works = (
        Work("train", {}, part="forget", seed=1),
        Work("evaluate", {}, part="retain", seed=1),
        Work("train", {}, part="retain", clients=("c5",), seed=1),
    )
    assert asked(*works) == list(works)


def test_over_the_rounds_each_client_trains_as_often_as_another() -> None:
    counts = Counter(c for seed in range(2000) for c in asked(Work("train", {}, seed=seed))[0].clients or ())
    assert set(counts) == set(NAMES)
    assert all(abs(count - 600) < 5 * (2000 * 0.3 * 0.7) ** 0.5 for count in counts.values())
    again = [asked(Work("train", {}, seed=7))[0].clients for _ in range(2)]
    assert again[0] == again[1]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(replace(EXPERIMENT, participation=0.4), tmp_path_factory.mktemp("sampled") / "run", workers=1)


def cost(done: Run, label: str, phase: str) -> Cost:
    costs = [*done.unlearned[label].costs, *done.continued[label].costs, *done.origin.costs]
    return next(cost for cost in costs if cost.phase == phase)


def test_a_run_asks_and_hears_as_many_as_it_says(sampled: Run) -> None:
    model = tree.n_bytes(sampled.origin.state.params)
    assert cost(sampled, "lethe", "train").bytes_up == 4 * 4 * model  # 0.4 of 8 clients, rounded up
    for label in sampled.continued:
        assert cost(sampled, label, "continue").bytes_up == 3 * 3 * model  # 0.4 of the 7 that are left
    assert cost(sampled, "retrain", "retrain").bytes_up == 4 * 3 * model
    assert all(torch.isfinite(t).all() for o in sampled.continued.values() for t in o.state.params.values())
    assert not any(sampled.diverged(label) for label in sampled.continued)


def test_the_plan_of_it_is_an_upper_bound(sampled: Run) -> None:
    planned = {stage.stage: stage.phases for stage in plan(sampled.experiment, workers=1).stages}
    for label, outcome in sampled.continued.items():
        (phase,) = planned[f"{label}.continue"]
        (real,) = outcome.costs
        assert not phase.is_exact
        assert (phase.bytes_up, phase.rounds) == (real.bytes_up, real.rounds)
        assert phase.samples >= real.samples > 0.5 * phase.samples


def demand_within(planned: Plan, done: Run) -> None:
    """Nothing that a phase counted is more than was planned for it."""
    most = {(stage.stage, phase.phase): phase for stage in planned.stages for phase in stage.phases}
    stages = {"origin": done.origin} | {f"{label}.unlearn": outcome for label, outcome in done.unlearned.items()}
    for name, outcome in stages.items():
        for real in outcome.costs:
            over = {n for n in COUNTED if getattr(real, n) > getattr(most[name, real.phase], n)}
            assert not over, (name, real, most[name, real.phase])


def test_no_phase_of_any_method_exceeds_its_plan(sampled: Run) -> None:
    demand_within(plan(sampled.experiment, workers=1), sampled)


def test_nor_where_the_cohort_and_the_holders_of_a_class_are_different_clients(tmp_path: Path) -> None:
    few = replace(
        EXPERIMENT,
        method=Lethe(rounds=3, restore_rounds=1, search=None),
        compare=(),
        train_rounds=1,
        continue_rounds=1,
        partition=Partition(alpha=0.05),
        request=Target("class", label=3),
        participation=0.25,
    )
    demand_within(plan(few, workers=1), run(few, tmp_path / "run", workers=1))


def test_if_all_take_part_no_bit_changes(tmp_path: Path) -> None:
    fast = replace(EXPERIMENT, compare=(), train_rounds=2, continue_rounds=1)
    whole = run(fast, tmp_path / "whole", workers=1)
    same = run(replace(fast, participation=1.0), tmp_path / "same", workers=1)
    assert tree.digest(whole.continued["lethe"].state.params) == tree.digest(same.continued["lethe"].state.params)
    assert "participation" not in config.plain(fast)


@pytest.mark.parametrize("share", [0.0, 1.1, -1.0])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"participation: must lie in \(0, 1\]"):
        replace(EXPERIMENT, participation=share)


def test_a_quorum_larger_than_the_cohort_is_refused_before_any_work() -> None:
    assert replace(EXPERIMENT, participation=0.4, minimum=3).populate().clients.keys()
    with pytest.raises(ConfigError, match=r"minimum: each round needs 4 replies, but of 7 .* participation = 0.4 is 3"):
        replace(EXPERIMENT, participation=0.4, minimum=4).populate()
