"""TFR-Net's rules alone: ranks, trajectories, budgets, candidates, acceptance, settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from letheon import config
from letheon.errors import ConfigError
from letheon.methods.base import Method
from letheon.methods.tfr import TFRNet
from letheon.text import trajectory
from letheon.text.channels import Track
from letheon.text.trajectory import Losses, Recovery, Suppression


def course(history: Sequence[Sequence[float]], rules: Suppression) -> tuple[Track, Tensor]:
    """After a history of risks, a row for each request."""
    track = None
    for row in history:
        risk = torch.tensor(row)
        track = trajectory.followed(track, risk, rules)
    assert track is not None
    return track, risk


def test_ranks_go_from_zero_to_one_and_ties_share_theirs() -> None:
    values = torch.tensor([3.0, 1.0, 1.0, 9.0, 0.0], dtype=torch.float64)
    assert trajectory.ranks(values).tolist() == [0.75, 0.375, 0.375, 1.0, 0.0]
    assert trajectory.ranks(torch.tensor([5.0])).tolist() == [0.0]


def test_a_trajectory_is_the_running_mean_from_the_first_risk_on() -> None:
    rows, rules = torch.rand(5, 7, generator=torch.Generator().manual_seed(0)).tolist(), Suppression(hot=0.5)
    track, _ = course(rows, rules)
    for channel in range(7):
        m, h = rows[0][channel], 0
        for row in rows[1:]:
            m = 0.7 * m + 0.3 * row[channel]
        h = sum(row[channel] > 0.5 for row in rows)
        assert float(track.trajectory[channel]) == pytest.approx(m, rel=1e-5)
        assert int(track.hits[channel]) == h


#          persistent  hot now   hot, cold, hot   never hot   hot before   cold
HISTORY = [
    [1.000, 0.50, 1.00, 0.985, 1.00, 0.1],
    [0.995, 0.50, 0.30, 0.985, 1.00, 0.2],
    [1.000, 1.00, 1.00, 0.985, 0.20, 0.0],
]


def test_persistent_transient_and_cold_channels_are_told_apart() -> None:
    rules = Suppression()
    track, risk = course(HISTORY, rules)
    persistent = trajectory.persistent(track, risk, rules, first=False).tolist()
    transient = trajectory.transient(track, risk, rules, first=False).tolist()
    assert persistent == [True, False, False, False, False, False]
    assert transient == [False, True, True, False, False, False]
    track, risk = course(HISTORY[:1], rules)
    assert trajectory.persistent(track, risk, rules, first=True).tolist() == [True, False, True, False, True, False]
    assert not trajectory.persistent(track, risk, rules, first=False).any(), "one hit is not enough later on"


def test_only_persistent_channels_are_closed_and_stay_so() -> None:
    rules = Suppression(budget=0.5, first_budget=0.0, total=1.0)
    track, risk = course(HISTORY, rules)
    closed = trajectory.suppressed(track, risk, rules, first=False)
    assert closed.closed.tolist() == [True, False, False, False, False, False]
    again = trajectory.suppressed(trajectory.followed(closed, risk * 0, rules), risk * 0, rules, first=False)
    assert again.closed.tolist() == closed.closed.tolist()


def test_budgets_hold_at_each_request_and_in_total() -> None:
    """All channels of 200 are wanted at every request: 1 at the first, 2 at each later one, 7 in all."""
    rules = Suppression(hot=0.0, level=0.0, hits=1, first_budget=0.005, budget=0.01, total=0.035)
    risk = torch.linspace(0.01, 1, 200)
    track, counts = None, []
    for request in range(6):
        track = trajectory.suppressed(trajectory.followed(track, risk, rules), risk, rules, first=request == 0)
        counts.append(int(track.closed.sum()))
    assert counts == [1, 3, 5, 7, 7, 7]
    assert track is not None
    assert torch.nonzero(track.closed)[:, 0].tolist() == list(range(193, 200)), "the highest m go first"
    assert trajectory.counted(0.29, 100) == 29


def test_candidates_are_closed_valuable_and_of_little_risk_best_first() -> None:
    gate = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    risk = torch.tensor([0.4, 0.1, 0.6, 0.1, 0.1, 0.1])
    value = torch.tensor([0.95, 0.9, 1.0, 0.8, 1.0, 1.0])
    track = Track(torch.tensor([0.4, 0.5, 0.1, 0.1, 0.6, 0.1]), torch.zeros(6), gate, torch.zeros(2, 5))
    one = Track(torch.tensor([0.0]), torch.zeros(1), torch.zeros(1), torch.zeros(2, 1))
    found = trajectory.candidates(
        {"a": track, "b": one}, {"a": risk, "b": torch.zeros(1)}, {"a": value, "b": torch.ones(1)}, Recovery()
    )
    assert found == [("b", 0), ("a", 1), ("a", 0)]


@pytest.mark.parametrize(
    ("after", "fine"),
    [
        (Losses(2.0, 1.0), True),
        (Losses(2.0, 1.0049), True),
        (Losses(2.0, 1.0051), False),
        (Losses(1.991, 0.5), True),
        (Losses(1.989, 0.5), False),
        (Losses(9.0, 0.1), True),
        (Losses(float("nan"), 1.0), False),
        (Losses(2.0, float("nan")), False),
    ],
)
def test_a_recovery_neither_costs_what_is_retained_nor_brings_back_what_is_forgotten(
    after: Losses, fine: bool
) -> None:
    assert Recovery().accepts(Losses(2.0, 1.0), after) == fine


def test_a_refused_block_is_halved_down_to_the_one_that_does_harm() -> None:
    tried: list[list[int]] = []

    def accepts(chosen: Sequence[int]) -> bool:
        tried.append(list(chosen))
        return 2 not in chosen

    assert trajectory.accepted(range(6), accepts, block=4, trials=99) == [0, 1, 3, 4, 5]
    assert tried == [[0, 1, 2, 3], [0, 1], [0, 1, 2, 3], [0, 1, 2], [0, 1, 3], [0, 1, 3, 4, 5]]
    tried.clear()
    assert trajectory.accepted(range(6), accepts, block=4, trials=2) == [0, 1]
    assert len(tried) == 2


@pytest.mark.parametrize(
    "method", [TFRNet(), TFRNet(Suppression(hot=0.7), None), TFRNet(recovery=Recovery(block=3, texts=5))]
)
def test_its_table_gives_it_back(method: TFRNet) -> None:
    assert config.build(Method, config.plain(method), "x.toml") == method  # type: ignore[type-abstract]


def test_recovery_is_turned_off_with_a_word() -> None:
    table = {"name": "tfr-net", "recovery": False, "suppression": {"hits": 3}}
    assert config.build(Method, table, "x.toml") == TFRNet(Suppression(hits=3), None)  # type: ignore[type-abstract]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"suppression": {"hot": 1.5}}, "suppression.hot: must lie in"),
        ({"suppression": {"strength": 0.0}}, "suppression.strength: must lie in"),
        ({"suppression": {"hits": 0}}, "suppression.hits: must be at least 1"),
        ({"recovery": {"tolerance": -0.1}}, "recovery.tolerance: must not be negative"),
        ({"recovery": {"trials": 0}}, "recovery.trials: must be at least 1"),
        ({"recovery": {"value": -0.5}}, "recovery.value: must lie in"),
    ],
)
def test_what_it_cannot_be_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.build(Method, {"name": "tfr-net", **table}, "x.toml")  # type: ignore[type-abstract]
