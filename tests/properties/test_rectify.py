"""Proposition IV.1 of Lethe (Eq. 14), and what the rule does where the proposition is silent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from letheon.errors import ConfigError
from letheon.methods.lethe import Lethe
from letheon.methods.rectify import TINY, Alignment, Gamma, align, rectify
from letheon.tasks.vision import Digits
from letheon.tree import Params

Layers = dict[str, tuple[str, ...]]
Streams = tuple[Params, Params, Layers]

NUMBERS = st.floats(-1e3, 1e3, width=32)  # what float32 can hold; the sums are float64
BETAS = st.floats(0.0, 1.0)
ADMISSIBLE = st.one_of(
    st.builds(lambda beta: Gamma("auto", beta=beta), BETAS),
    st.builds(lambda beta, cap: Gamma("auto", beta=beta, cap=cap), BETAS, st.floats(1e-3, 1e3)),
    st.builds(lambda value: Gamma("clipped", value=value), st.floats(0.0, 1e6)),
)


def vector(size: int) -> st.SearchStrategy[list[float]]:
    return st.lists(NUMBERS, min_size=size, max_size=size)


@st.composite
def streams(draw: st.DrawFn) -> Streams:
    """Two updates in float64 of one to three layers with one or two tensors each."""
    retain: Params = {}
    forget: Params = {}
    layers: Layers = {}
    for i in range(draw(st.integers(1, 3))):
        layers[f"l{i}"] = tuple(f"l{i}.{own}" for own in ("weight", "bias")[: draw(st.integers(1, 2))])
        for name in layers[f"l{i}"]:
            size = draw(st.integers(1, 4))
            retain[name] = torch.tensor(draw(vector(size)), dtype=torch.float64)
            forget[name] = torch.tensor(draw(vector(size)), dtype=torch.float64)
    return retain, forget, layers


def flat(tensors: Params, names: Sequence[str]) -> list[float]:
    return [value for name in names for value in tensors[name].flatten().tolist()]


def inner(a: Sequence[float], b: Sequence[float]) -> float:
    """Exactly rounded: independent of the library's own sums."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def length(a: Sequence[float]) -> float:
    return math.sqrt(inner(a, a))


def one(retain: list[float], forget: list[float], gamma: Gamma, *, literal: bool = False) -> tuple[Tensor, Alignment]:
    """Rectify a model of one tensor."""
    both = [{"w": torch.tensor(values, dtype=torch.float64)} for values in (retain, forget)]
    update, alignments = rectify(both[0], both[1], {"l": ("w",)}, gamma, literal=literal)
    return update["w"], alignments["l"]


@settings(max_examples=1500)
@given(streams(), ADMISSIBLE, st.booleans())
def test_the_rectified_update_obeys_proposition_iv_1_in_every_layer_for_every_admissible_gamma(
    pair: Streams, gamma: Gamma, literal: bool
) -> None:
    retain, forget, layers = pair
    update, alignments = rectify(retain, forget, layers, gamma, literal=literal)
    assert update.keys() == retain.keys()
    for layer, names in layers.items():
        found = alignments[layer]
        delta, kept, gone = flat(update, names), flat(retain, names), flat(forget, names)
        if found.branch == "retain":  # outside of the proposition: there is nothing to move against
            assert not literal
            assert length(gone) < 1.001 * TINY
            assert delta == kept
            continue
        scale = length(kept) + found.gamma * length(gone) + length(gone)
        assert inner(delta, gone) <= 1e-9 * scale * length(gone)
        assert inner(delta, kept) >= -1e-9 * scale * length(kept)
        assert found.holds


@settings(max_examples=300)
@given(streams(), BETAS)
def test_the_admissible_interval_is_never_empty_and_auto_gamma_lies_in_it(pair: Streams, beta: float) -> None:
    retain, forget, layers = pair
    for names in layers.values():
        found = align(retain, forget, names, Gamma("auto", beta=beta))
        if found.branch == "subtract":
            assert found.s > 0
            assert found.lower <= found.upper * (1 + 1e-12)  # Cauchy-Schwarz, up to rounding
            low, high = sorted((found.lower, found.upper))
            assert low * (1 - 1e-12) <= found.gamma <= high * (1 + 1e-12)


@settings(max_examples=300)
@given(streams(), ADMISSIBLE, st.data())
def test_a_layer_depends_on_no_other_layer(pair: Streams, gamma: Gamma, data: st.DataObject) -> None:
    retain, forget, layers = pair
    assume(len(layers) > 1)
    update, _ = rectify(retain, forget, layers, gamma)
    changed = data.draw(st.sampled_from(sorted(layers)))
    other = {n: -3.0 * t + 1.0 if n in layers[changed] else t for n, t in forget.items()}
    again, _ = rectify(retain, other, layers, gamma)
    assert all(torch.equal(again[name], update[name]) for name in update if name not in layers[changed])


@settings(max_examples=300)
@given(st.integers(1, 4).flatmap(lambda n: st.tuples(vector(n), vector(n))))
def test_the_lower_end_of_the_interval_makes_the_update_orthogonal_to_the_forget_stream(
    pair: tuple[list[float], list[float]],
) -> None:
    retain, forget = pair
    update, found = one(retain, forget, Gamma("auto", beta=0.0))
    assume(found.branch == "subtract")
    assert abs(inner(update.tolist(), forget)) <= 1e-9 * length(retain) * length(forget)
    assert found.gamma == found.lower


@settings(max_examples=300)
@given(st.integers(1, 4).flatmap(lambda n: st.tuples(vector(n), vector(n))))
def test_the_upper_end_makes_it_orthogonal_to_the_retain_stream(pair: tuple[list[float], list[float]]) -> None:
    retain, forget = pair
    update, found = one(retain, forget, Gamma("auto", beta=1.0))
    assume(found.branch == "subtract")
    scale = length(retain) + found.gamma * length(forget)
    assert abs(inner(update.tolist(), retain)) <= 1e-9 * length(retain) * scale


@settings(max_examples=200)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=4), st.floats(1e-3, 1e3), BETAS)
def test_parallel_streams_collapse_the_interval_and_leave_no_step(
    forget: list[float], factor: float, beta: float
) -> None:
    assume(length(forget) > 1e-6)
    retain = [factor * value for value in forget]
    update, found = one(retain, forget, Gamma("auto", beta=beta))
    assert found.branch == "subtract"
    for gamma in (found.lower, found.upper, found.gamma):
        assert gamma == pytest.approx(factor, rel=1e-9)
    assert length(update.tolist()) <= 1e-9 * length(retain)


@settings(max_examples=300)
@given(
    st.integers(2, 4).flatmap(lambda n: st.tuples(vector(n), vector(n))),
    st.sampled_from([0.0, 0.5, 0.9, 1.1, 2.0, 1e3]),
)
def test_a_constant_gamma_outside_the_interval_is_logged_as_not_holding(
    pair: tuple[list[float], list[float]], factor: float
) -> None:
    retain, forget = pair
    _, inside = one(retain, forget, Gamma("auto", beta=0.5))
    assume(inside.branch == "subtract")
    # Where cos² of the angle is at least 0.01, both ends are decided well above rounding.
    assume(0.01 < inside.lower / inside.upper < 0.99)
    assume(1e-3 < length(forget) / length(retain) < 1e3)
    value = inside.lower * factor if factor < 1 else inside.upper * factor
    update, found = one(retain, forget, Gamma("constant", value=value))
    assert found.gamma == value
    assert not found.holds
    violated = inner(update.tolist(), forget) > 0 if factor < 1 else inner(update.tolist(), retain) < 0
    assert violated
    middle = (inside.lower + inside.upper) / 2
    assert one(retain, forget, Gamma("constant", value=middle))[1].holds


@settings(max_examples=200)
@given(st.integers(1, 4).flatmap(lambda n: st.tuples(vector(n), vector(n))), ADMISSIBLE)
def test_opposed_streams_are_answered_with_the_negated_forget_update(
    pair: tuple[list[float], list[float]], gamma: Gamma
) -> None:
    retain, forget = pair
    assume(inner(retain, forget) < 0 and length(forget) > 1e-6)
    update, found = one(retain, forget, gamma)
    assert found.branch == "negate"
    assert update.tolist() == [-value for value in forget]


@pytest.mark.parametrize("kind", ["auto", "constant", "clipped"])
@pytest.mark.parametrize("literal", [False, True])
def test_orthogonal_streams_go_to_the_negation_branch(kind: str, literal: bool) -> None:
    update, found = one([3.0, 0.0], [0.0, 2.0], Gamma(kind), literal=literal)  # type: ignore[arg-type]
    assert (found.s, found.branch, found.holds) == (0.0, "negate", True)
    assert update.tolist() == [0.0, -2.0]


def test_a_layer_without_forget_update_takes_the_retain_update() -> None:
    update, found = one([3.0, -1.0], [0.0, 0.0], Gamma())
    assert (found.branch, found.holds) == ("retain", True)
    assert update.tolist() == [3.0, -1.0]


def test_equation_10_to_the_letter_throws_the_retain_update_of_such_a_layer_away() -> None:
    update, found = one([3.0, -1.0], [0.0, 0.0], Gamma(), literal=True)
    assert (found.branch, found.s) == ("negate", 0.0)
    assert update.abs().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("literal", [False, True])
def test_a_layer_without_retain_update_is_negated(literal: bool) -> None:
    update, found = one([0.0, 0.0], [1.0, -2.0], Gamma(), literal=literal)
    assert found.branch == "negate"
    assert update.tolist() == [-1.0, 2.0]


def test_two_layers_without_any_update_stay_where_they_are() -> None:
    for literal in (False, True):
        update, _ = one([0.0], [0.0], Gamma(), literal=literal)
        assert abs(float(update)) == 0.0


def test_the_sign_is_taken_in_float64_where_float32_would_lose_it() -> None:
    retain, forget = torch.tensor([1e4, 1.0, -1e4]), torch.tensor([1e4, 0.1, 1e4])
    assert reduce(np.add, (retain * forget).numpy()) == np.float32(0.0)  # what a float32 sum makes of it
    found = align({"w": retain}, {"w": forget}, ("w",), Gamma())
    assert found.s == pytest.approx(0.1)
    assert found.branch == "subtract"


def test_a_module_is_one_layer_and_its_tensors_share_a_branch() -> None:
    retain = {"a.weight": torch.tensor([1.0]), "a.bias": torch.tensor([1.0])}
    forget = {"a.weight": torch.tensor([2.0]), "a.bias": torch.tensor([-1.0])}
    apart, _ = rectify(retain, forget, {n: (n,) for n in retain}, Gamma("constant", value=0.5))
    assert {n: t.tolist() for n, t in apart.items()} == {"a.weight": [0.0], "a.bias": [1.0]}
    together, found = rectify(retain, forget, {"a": ("a.weight", "a.bias")}, Gamma("constant", value=0.5))
    assert found["a"].s == 1.0
    assert {n: t.tolist() for n, t in together.items()} == {"a.weight": [0.0], "a.bias": [1.5]}


@pytest.mark.parametrize("layer", ["tensor", "module", "block", "global"])
@pytest.mark.parametrize("norm", ["rectify", "retain"])
def test_the_layers_are_a_partition_of_the_parameters_and_no_buffer_is_in_one(layer: str, norm: str) -> None:
    task = Digits(norm=True)
    start = task.init(0)
    groups = Lethe(layer=layer, norm=norm).layers(start, task)  # type: ignore[arg-type]
    names = [name for group in groups.values() for name in group]
    assert sorted(names) == sorted(start.params)
    assert len(names) == len(set(names))
    assert start.buffers
    assert not set(names) & start.buffers.keys()


def test_beta_moves_gamma_through_the_interval() -> None:
    gammas = [one([2.0, 1.0], [1.0, 0.0], Gamma("auto", beta=b))[1].gamma for b in (0.0, 0.1, 0.5, 1.0)]
    assert gammas == pytest.approx([2.0, 2.05, 2.25, 2.5])
    assert all(a < b for a, b in pairwise(gammas))


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), BETAS, st.floats(1e-3, 1e3))
def test_a_cap_lowers_gamma_and_never_below_the_interval(a: float, b: float, beta: float, cap: float) -> None:
    lower, upper = sorted((a, b))
    free, capped = Gamma(beta=beta).choose(lower, upper), Gamma(beta=beta, cap=cap).choose(lower, upper)
    assert min(free, lower) <= capped <= free
    assert capped <= max(lower, cap)
    assert capped == free or free > cap


def test_a_cap_is_for_gamma_in_its_interval() -> None:
    assert Gamma(beta=1.0, cap=1.0).choose(0.1, 40.0) == 1.0
    assert Gamma(beta=0.1, cap=1.0).choose(3.0, 40.0) == 3.0
    for kind, cap in (("auto", 0.0), ("constant", 1.0), ("clipped", 1.0)):
        with pytest.raises(ConfigError, match=r"gamma\.cap"):
            Gamma(kind, cap=cap)  # type: ignore[arg-type]
