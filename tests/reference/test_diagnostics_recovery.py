"""Diagnostics of what can be got back or found out, by hand: relearning, membership, probes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from letheon.diagnostics.features import relative_dispersion
from letheon.diagnostics.membership import attack, confidence, true_positives
from letheon.diagnostics.probe import probe
from letheon.diagnostics.relearn import budget
from letheon.metrics.interval import Floats, wilson
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.ranking import auc


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=shape)


def reason(value: float | Undefined | Measurement) -> str:
    inner = value.value if isinstance(value, Measurement) else value
    assert isinstance(inner, Undefined), inner
    return inner.reason


# Relearning


def test_a_budget_is_the_first_round_at_which_enough_is_known_again() -> None:
    correct = [0, 10, 44, 46, 60, 90]
    found = budget(correct, 100, kr_origin=90.0, unit="rounds")
    assert found.value == 3.0  # 46 of 100 is the first that reaches half of 90 %
    lows, highs = ([wilson(c, 100)[end] for c in correct] for end in (0, 1))
    assert found.low == next(t for t, end in enumerate(highs) if end >= 0.45) == 2
    assert found.high == next(t for t, end in enumerate(lows) if end >= 0.45) == 4


def test_what_never_went_away_needs_no_relearning() -> None:
    assert budget([80], 100, kr_origin=90.0, unit="rounds") == Measurement(0.0, 0.0, 0.0, 100)


def test_a_budget_that_is_not_enough_says_how_far_it_came() -> None:
    found = budget([0, 5, 20, 19], 100, kr_origin=90.0, unit="rounds")
    assert reason(found) == "more than 3 rounds: KR reaches 20.0 %"
    assert (found.low, found.high) == (None, None)
    assert "knows nothing" in reason(budget([0], 100, kr_origin=0.0, unit="rounds"))


# Membership


def test_confidence_is_the_log_odds_of_the_label() -> None:
    outputs, targets = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 5
    for found, row, target in zip(confidence(outputs, targets), outputs.tolist(), targets.tolist(), strict=True):
        p = math.exp(row[target]) / math.fsum(math.exp(z) for z in row)
        assert found == pytest.approx(math.log(p / (1 - p)), rel=1e-9)


def test_confidence_tells_apart_what_rounds_to_certainty() -> None:
    outputs = torch.tensor([[200.0, 0.0], [300.0, 0.0]])
    assert confidence(outputs, torch.tensor([0, 0])).tolist() == [200.0, 300.0]


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    members, others = np.round(normal(25) + 0.5, 1), np.round(normal(31, seed=1), 1)
    pairs = [(a > b) + 0.5 * (a == b) for a in members for b in others]
    assert any(pair == 0.5 for pair in pairs)
    assert auc(members, others) == pytest.approx(sum(pairs) / len(pairs))
    assert auc(others, members) == pytest.approx(1.0 - auc(members, others))


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1])
def test_true_positives_are_counted_above_the_least_threshold_that_few_enough_others_pass(rate: float) -> None:
    members, others = np.round(normal(150) + 1.0, 1), np.round(normal(200, seed=1), 1)
    best = 0.0
    for threshold in sorted({*others.tolist(), *members.tolist()}):
        if sum(o > threshold for o in others) <= rate * 200:
            best = max(best, sum(m > threshold for m in members) / 150)
    assert true_positives(members, others, rate) == pytest.approx(best)


def test_an_attack_tells_members_apart_if_and_only_if_the_model_does() -> None:
    same = attack(normal(300), normal(400, seed=1))
    told = attack(normal(300) + 2.0, normal(400, seed=1))
    assert isinstance(same.auc.value, float)
    assert isinstance(told.auc.value, float)
    assert same.auc.low is not None
    assert same.auc.high is not None
    assert told.auc.low is not None
    assert same.auc.low < 0.5 < same.auc.high
    assert told.auc.low > 0.85
    assert told.tpr[0].value > same.tpr[0].value  # type: ignore[operator]


def test_intervals_over_two_samples_are_as_wide_as_the_smaller_one_makes_them() -> None:
    area, ratio = attack(normal(3000), normal(30, seed=1)).auc, relative_dispersion(normal(3000, 3), normal(30, 3))
    assert area.high - area.low > 0.15  # type: ignore[operator]
    assert ratio.high - ratio.low > 0.3  # type: ignore[operator]


def test_an_attack_that_is_always_right_still_has_an_interval() -> None:
    found = attack(normal(200) + 100.0, normal(150, seed=1))
    assert (found.auc.value, found.auc.high) == (1.0, 1.0)
    assert found.auc.low == wilson(150, 150)[0]
    assert found.tpr[0].value == 100.0
    assert found.tpr[0].low == pytest.approx(100 * wilson(200, 200)[0])


def test_a_rate_that_the_strangers_cannot_resolve_is_undefined() -> None:
    found = attack(normal(50), normal(150, seed=1))
    assert isinstance(found.tpr[0].value, float)
    assert reason(found.tpr[1]) == "a false positive rate of 0.1 % needs 1000 non-members, there are 150"
    assert "not finite" in reason(attack(np.array([np.nan]), normal(5)).auc)
    assert "needs members" in reason(attack(normal(5), normal(0)).auc)


# Probe


def test_a_probe_finds_what_is_linearly_there() -> None:
    clean = normal(200, 6)
    found = probe(clean, clean + np.array([3.0, 0, 0, 0, 0, 0]), seed=0)
    assert isinstance(found.accuracy.value, float)
    assert found.accuracy.value > 85.0
    assert found.auc.low is not None
    assert found.auc.low > 0.9
    assert (found.accuracy.n, found.n_train) == (100, 100)


def test_a_probe_finds_nothing_where_nothing_is() -> None:
    found = [probe(normal(200, 6, seed=s), normal(200, 6, seed=100 + s), seed=s).accuracy for s in range(12)]
    assert sum(one.value for one in found) / 12 == pytest.approx(50.0, abs=4.0)  # type: ignore[misc]
    assert sum(one.low <= 50.0 <= one.high for one in found) >= 10  # type: ignore[operator]


def test_both_versions_of_an_image_are_on_one_side() -> None:
    each_its_own = np.eye(40)  # what is learnt of one version can only mislead about the other
    found = probe(each_its_own, each_its_own, seed=0)
    assert (found.accuracy.value, found.auc.value) == (50.0, 0.5)


def test_a_probe_is_a_function_of_its_seed() -> None:
    clean, marked = normal(60, 4), normal(60, 4, seed=1) + 0.7
    assert probe(clean, marked, seed=3) == probe(clean, marked, seed=3)
    assert probe(clean, marked, seed=3) != probe(clean, marked, seed=4)


def test_a_probe_needs_pairs_enough_images_and_numbers() -> None:
    with pytest.raises(ValueError, match="with and without"):
        probe(normal(30, 2), normal(29, 2), seed=0)
    assert "20 held-out images" in reason(probe(normal(19, 2), normal(19, 2), seed=0).accuracy)
    assert "not finite" in reason(probe(np.full((30, 2), np.nan), normal(30, 2), seed=0).auc)
