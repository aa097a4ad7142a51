"""The formulas of diagnostics against slow loops written from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from letheon.diagnostics.connectivity import barrier, heights, mixed, path, per_distance
from letheon.diagnostics.features import dispersion, explained, principal, relative_dispersion
from letheon.diagnostics.rollback import FLOOR, rollback, rollback_tendency
from letheon.metrics.interval import Floats
from letheon.metrics.measurement import Measurement, Undefined
from letheon.models.mlp import MLP
from letheon.phase import State
from letheon.training import recalibrate
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


def test_recalibration_in_chunks_averages_the_statistics_of_even_parts() -> None:
    torch.manual_seed(0)
    module = MLP(64, 32, 10, norm=True)
    inputs = torch.rand(100, 64)
    norm = next(layer for layer in module.modules() if isinstance(layer, nn.BatchNorm1d))
    recalibrate(module, inputs, chunk=40)
    with torch.no_grad():
        parts = [module.fc1(inputs[start::3]) for start in range(3)]
    assert norm.running_mean is not None
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, torch.stack([part.mean(0) for part in parts]).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([part.var(0) for part in parts]).mean(0))
