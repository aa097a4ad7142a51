"""The formulas of diagnostics against slow loops written from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from letheon.diagnostics.connectivity import barrier, heights, mixed, path, per_distance, recalibrate
from letheon.diagnostics.features import dispersion, explained, principal, relative_dispersion
from letheon.diagnostics.membership import attack, confidence, true_positives
from letheon.diagnostics.probe import probe
from letheon.diagnostics.relearn import budget
from letheon.diagnostics.rollback import FLOOR, rollback, rollback_tendency
from letheon.metrics.interval import Floats, wilson
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.ranking import auc
from letheon.models.mlp import MLP
from letheon.phase import State
from letheon.tree import Params


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=shape)


def tensors(seed: int) -> Params:
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(3, 4, generator=generator), "b": torch.randn(5, generator=generator)}


def reason(value: float | Undefined | Measurement) -> str:
    inner = value.value if isinstance(value, Measurement) else value
    assert isinstance(inner, Undefined), inner
    return inner.reason


# Features


def slow_dispersion(features: Floats) -> float:
    n, d = features.shape
    centre = [sum(features[i][j] for i in range(n)) / n for j in range(d)]
    return sum(sum((features[i][j] - centre[j]) ** 2 for j in range(d)) for i in range(n)) / n


def test_dispersion_is_the_mean_squared_distance_to_the_centre() -> None:
    features = 2.0 + normal(30, 4)
    found = dispersion(features)
    assert found.value == pytest.approx(slow_dispersion(features), rel=1e-12)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert found.n == 30


def test_dispersion_grows_with_the_square_of_the_norm_and_its_ratio_does_not() -> None:
    ours, others = normal(40, 3), 3.0 * normal(50, 3, seed=1)
    assert dispersion(10 * ours).value == pytest.approx(100 * slow_dispersion(ours))
    ratio, scaled = relative_dispersion(ours, others), relative_dispersion(10 * ours, 10 * others)
    assert ratio.value == pytest.approx(slow_dispersion(ours) / slow_dispersion(others))
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx((ratio.value, ratio.low, ratio.high))


def test_dispersion_does_not_lose_its_digits_far_from_the_origin() -> None:
    features = normal(30, 4)
    near, far = dispersion(features), dispersion(features + 1e6)
    assert (far.value, far.low, far.high) == pytest.approx((near.value, near.low, near.high), rel=1e-6)


@pytest.mark.parametrize(
    ("features", "word"), [(np.ones((1, 2)), "1 sample"), (np.array([[1.0, np.nan], [0.0, 0.0]]), "not finite")]
)
def test_what_has_no_dispersion_says_why(features: Floats, word: str) -> None:
    assert word in reason(dispersion(features))
    assert word in reason(explained(_basis(normal(5, 2)), features))
    found = principal(features)
    assert isinstance(found, Undefined)
    assert word in found.reason


def test_features_that_are_all_alike_have_no_axes_and_are_no_yardstick() -> None:
    flat = np.ones((6, 3))
    assert dispersion(flat).value == 0.0
    assert isinstance(principal(flat), Undefined)
    assert "all alike" in reason(relative_dispersion(normal(6, 3), flat))
    assert "all alike" in reason(explained(_basis(normal(6, 3)), flat))


def _basis(features: Floats) -> object:
    found = principal(features)
    assert not isinstance(found, Undefined)
    return found


def test_principal_axes_are_the_leading_eigenvectors_of_the_covariance() -> None:
    features = normal(60, 5) @ np.diag([1.0, 3.0, 0.5, 2.0, 0.1]) + 7.0
    basis = principal(features)
    assert not isinstance(basis, Undefined)
    centre = features.mean(0)
    covariance = sum(np.outer(h - centre, h - centre) for h in features) / 60
    values, vectors = np.linalg.eigh(covariance)
    for axis, vector in zip(basis.axes, vectors.T[::-1], strict=False):
        assert abs(float(axis @ vector)) == pytest.approx(1.0)
        assert axis[np.abs(axis).argmax()] > 0
    np.testing.assert_allclose(basis.project(features).mean(0), 0.0, atol=1e-12)
    shares = explained(basis, features)
    assert shares.value == pytest.approx(100 * values[-2:].sum() / values.sum())
    assert shares.low is not None
    assert shares.high is not None
    assert shares.low < shares.value < shares.high


def test_axes_do_not_depend_on_the_order_of_samples() -> None:
    features = normal(40, 4) @ np.diag([4.0, 2.0, 1.0, 0.5])
    one, other = principal(features), principal(features[::-1].copy())
    assert not isinstance(one, Undefined)
    assert not isinstance(other, Undefined)
    np.testing.assert_allclose(one.axes, other.axes, atol=1e-10)


def test_the_axes_of_one_set_explain_less_of_another() -> None:
    basis = principal(normal(40, 6) @ np.diag([9.0, 9.0, 1.0, 1.0, 1.0, 1.0]))
    assert not isinstance(basis, Undefined)
    other = explained(basis, normal(40, 6, seed=3) @ np.diag([1.0, 1.0, 9.0, 9.0, 1.0, 1.0]))
    assert isinstance(other.value, float)
    assert other.value < 10.0


# Rollback


def slow_cosine(one: Params, other: Params, names: list[str]) -> float:
    a = [float(x) for name in names for x in one[name].flatten()]
    b = [float(x) for name in names for x in other[name].flatten()]
    product = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return product / (math.fsum(x * x for x in a) ** 0.5 * math.fsum(y * y for y in b) ** 0.5)


def test_rollback_tendency_is_equation_24_whole_and_by_layer() -> None:
    models, origin = [tensors(seed) for seed in range(4)], tensors(9)
    found = rollback(models, origin, {"first": ("a",), "second": ("b",)})
    back = {name: origin[name] - models[0][name] for name in origin}
    for t in range(3):
        update = {name: models[t + 1][name] - models[t][name] for name in origin}
        assert found.rounds[t] == pytest.approx(slow_cosine(update, back, ["a", "b"]), rel=1e-6)
        assert found.layers["first"][t] == pytest.approx(slow_cosine(update, back, ["a"]), rel=1e-6)
        assert found.layers["second"][t] == pytest.approx(slow_cosine(update, back, ["b"]), rel=1e-6)
    known = [value for value in found.rounds if isinstance(value, float)]
    assert (found.mean.value, found.mean.low, found.mean.high, found.mean.n) == pytest.approx(
        (sum(known) / 3, min(known), max(known), 3)
    )


def test_a_round_straight_back_has_tendency_one_and_straight_away_minus_one() -> None:
    unlearned, origin = tensors(0), tensors(1)
    back = {name: origin[name] - unlearned[name] for name in origin}
    for factor in (0.01, 5.0):
        assert rollback_tendency({n: factor * t for n, t in back.items()}, origin, unlearned) == pytest.approx(1.0)
        assert rollback_tendency({n: -factor * t for n, t in back.items()}, origin, unlearned) == pytest.approx(-1.0)


def test_a_model_that_never_moved_has_no_way_back() -> None:
    origin = tensors(1)
    assert "no way back" in reason(rollback_tendency(tensors(2), origin, origin))
    assert "no way back" in reason(rollback([origin, tensors(2)], origin, {}).mean)
    part = {"a": origin["a"], "b": origin["b"] + 1}
    found = rollback([part, tensors(2)], origin, {"still": ("a",), "moved": ("b",)})
    assert "no way back" in reason(found.layers["still"][0])
    assert isinstance(found.layers["moved"][0], float)
    assert isinstance(found.mean.value, float)


def test_an_update_of_zero_gives_zero_by_the_floor() -> None:
    zero = {name: torch.zeros_like(t) for name, t in tensors(0).items()}
    assert rollback_tendency(zero, tensors(0), tensors(1)) == 0.0
    short = {name: torch.full_like(t, FLOOR / 100) for name, t in zero.items()}
    value = rollback_tendency(short, tensors(0), tensors(1))
    assert isinstance(value, float)
    assert abs(value) < 0.05


def test_no_round_is_no_tendency() -> None:
    assert "no round" in reason(rollback([tensors(0)], tensors(1), {}).mean)


# Connectivity


def test_the_barrier_is_the_largest_rise_above_the_chord() -> None:
    at, losses = path(7), np.abs(normal(7, 50))
    means = [sum(row) / 50 for row in losses.tolist()]
    rises = [means[i] - ((1 - a) * means[0] + a * means[-1]) for i, a in enumerate(at.tolist())]
    found = barrier(losses, at)
    assert found.height.value == pytest.approx(max(rises))
    assert found.at == pytest.approx(at[rises.index(max(rises))])
    assert found.losses == pytest.approx(means)
    assert found.height.n == 50


def test_a_hill_of_known_height_is_found_and_a_valley_is_none() -> None:
    at = path(21)
    hill = 4.0 * at * (1.0 - at) + (1.0 - at) * 6.0 + at * 1.0
    found = barrier(np.tile(hill[:, None], (1, 8)), at)
    assert (found.height.value, found.height.low, found.height.high) == pytest.approx((1.0, 1.0, 1.0))
    assert found.at == 0.5
    assert float(heights((1.0 - at) ** 2, at)) == 0.0


def test_a_barrier_per_distance_is_undefined_without_a_distance() -> None:
    height = Measurement(2.0, 1.0, 3.0, 9)
    assert per_distance(height, 4.0) == Measurement(0.5, 0.25, 0.75, 9)
    assert "same model" in reason(per_distance(height, 0.0))


def test_losses_must_be_finite_and_a_path_must_have_a_middle() -> None:
    with pytest.raises(ValueError, match="finite"):
        barrier(np.full((3, 2), np.inf), path(3))
    with pytest.raises(ValueError, match="at least 3"):
        path(2)


def test_both_ends_of_a_path_are_the_models_themselves_and_counters_are_not_mixed() -> None:
    one, other = (
        State(tensors(s), {"mean": tensors(s + 5)["b"], "count": torch.tensor(3 * s + 4)}) for s in (0, 1)
    )
    for a, end in ((0.0, one), (1.0, other)):
        between = mixed(one, other, a)
        assert all(torch.equal(between.params[name], t) for name, t in end.params.items())
        assert torch.equal(between.buffers["mean"], end.buffers["mean"])
        assert between.buffers["count"] == one.buffers["count"]
    quarter = mixed(one, other, 0.25)
    wanted = 0.75 * one.params["a"] + 0.25 * other.params["a"]
    torch.testing.assert_close(quarter.params["a"], wanted)
    with pytest.raises(ValueError, match="names differ"):
        mixed(one, State({"a": one.params["a"]}), 0.5)


def test_recalibration_sets_the_statistics_of_the_whole_set_and_nothing_else() -> None:
    torch.manual_seed(0)
    module = MLP(64, 32, 10, norm=True, dropout=0.5)
    inputs = torch.rand(200, 64) + 1.0
    before = {name: p.clone() for name, p in module.named_parameters()}
    norm = next(layer for layer in module.modules() if isinstance(layer, nn.BatchNorm1d))
    momentum, seen = norm.momentum, []
    handle = norm.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    drawn = torch.random.get_rng_state()
    recalibrate(module, inputs)
    handle.remove()
    assert torch.equal(drawn, torch.random.get_rng_state())  # Dropout did not draw
    assert norm.running_mean is not None
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, seen[0].mean(0))
    torch.testing.assert_close(norm.running_var, seen[0].var(0))
    assert (norm.momentum, module.training, norm.training) == (momentum, False, False)
    assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())


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
