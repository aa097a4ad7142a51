"""What FedOSD's projections promise, for any updates: orthogonality, length, and no dependence on scale."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from letheon import tree
from letheon.methods.fedosd import away_from
from letheon.projection import complement, gram, turned
from letheon.tree import Params

SHAPES = {"a.weight": (4, 5), "a.bias": (4,), "b.weight": (3, 4)}
SEEDS = st.integers(0, 2**31)


def draw(seed: int, count: int, *, dtype: torch.dtype = torch.float32) -> list[Params]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in SHAPES.items()}
        for _ in range(count)
    ]


def cosine(a: Params, b: Params) -> float:
    return tree.dot(a, b) / (tree.norm(a) * tree.norm(b))


def flat(vector: Params) -> torch.Tensor:
    return torch.cat([tensor.double().flatten() for tensor in vector.values()])


def slow_complement(vector: Params, rows: Sequence[Params]) -> torch.Tensor:
    """By Gram–Schmidt, twice for accuracy, one row after another."""
    basis: list[torch.Tensor] = []
    for row in rows:
        left = flat(row)
        for _ in range(2):
            for axis in basis:
                left = left - torch.dot(left, axis) * axis
        if left.norm() > 1e-6 * flat(row).norm():
            basis.append(left / left.norm())
    left = flat(vector)
    for _ in range(2):
        for axis in basis:
            left = left - torch.dot(left, axis) * axis
    return left


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 12), st.integers(-8, 4))
def test_the_step_is_orthogonal_to_every_retained_update_and_as_long_as_the_one_to_unlearn(
    seed: int, clients: int, exponent: int
) -> None:
    vector, *rows = draw(seed, clients + 1)
    scaled = [tree.scale(row, 10.0**exponent) for row in rows]
    step = turned(vector, scaled)
    assert step is not None
    assert all(abs(cosine(step, row)) < 1e-6 for row in scaled)
    assert tree.norm(step) == pytest.approx(tree.norm(vector), rel=1e-6)
    assert tree.dot(step, vector) > 0.0
    assert {name: tensor.dtype for name, tensor in step.items()} == dict.fromkeys(SHAPES, torch.float32)


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 10))
def test_the_gram_form_is_the_gram_schmidt_form(seed: int, clients: int) -> None:
    vector, *rows = draw(seed, clients + 1, dtype=torch.float64)
    rows = [*rows, tree.add(rows[0], rows[-1], 2.0)]  # a dependent one
    torch.testing.assert_close(flat(complement(vector, rows)), slow_complement(vector, rows), rtol=1e-9, atol=1e-10)


@settings(max_examples=20)
@given(SEEDS, st.integers(2, 6))
def test_one_small_update_among_large_ones_is_protected_too(seed: int, clients: int) -> None:
    vector, *rows = draw(seed, clients + 1)
    rows[0] = tree.scale(rows[0], 1e-9)
    step = turned(vector, rows)
    assert step is not None
    assert all(abs(cosine(step, row)) < 1e-6 for row in rows)


@settings(max_examples=20)
@given(SEEDS, st.integers(2, 6))
def test_retained_updates_that_nearly_agree_are_protected_one_and_all(seed: int, clients: int) -> None:
    vector, common, *own = draw(seed, clients + 2)
    rows = [tree.add(common, one, 1e-3) for one in own]
    step = turned(vector, rows)
    assert step is not None
    assert all(abs(cosine(step, one)) < 1e-4 for one in (tree.sub(row, rows[0]) for row in rows[1:]))
    assert all(abs(cosine(step, row)) < 1e-6 for row in rows)


@settings(max_examples=20)
@given(SEEDS)
def test_what_the_retained_updates_span_leaves_no_step(seed: int) -> None:
    first, second = draw(seed, 2)
    assert turned(tree.add(first, second, -0.5), [first, second]) is None
    assert turned(first, [tree.scale(first, -1e-4)]) is None


def test_updates_of_length_zero_span_nothing_and_have_no_direction() -> None:
    (vector,) = draw(1, 1)
    nothing = tree.zeros_like(vector)
    for rows in ([nothing], [nothing, *draw(2, 1), nothing]):
        step = turned(vector, rows)
        assert step is not None
        assert all(abs(tree.dot(step, row)) < 1e-5 for row in rows)
    still = turned(nothing, [vector])
    assert still is not None
    assert tree.norm(still) == 0.0


def test_the_gram_matrix_holds_all_inner_products() -> None:
    rows = draw(5, 4)
    wanted = torch.tensor([[tree.dot(a, b) for b in rows] for a in rows], dtype=torch.float64)
    torch.testing.assert_close(gram(rows), wanted, rtol=1e-12, atol=1e-12)


@settings(max_examples=20)
@given(SEEDS)
def test_after_the_projection_no_retained_update_leads_back_or_on(seed: int) -> None:
    update, gone = draw(seed, 2)
    held = away_from(update, gone, "always")
    assert abs(cosine(held, gone)) < 1e-6
    assert tree.norm(held) == pytest.approx(tree.norm(update), rel=1e-6)


@settings(max_examples=20)
@given(SEEDS)
def test_if_reverting_turns_only_updates_that_lead_back(seed: int) -> None:
    update, gone = draw(seed, 2)
    held = away_from(update, gone, "if_reverting")
    if tree.dot(update, gone) < 0:
        assert abs(cosine(held, gone)) < 1e-6
    else:
        assert held is update


def test_an_update_straight_back_is_dropped_and_without_a_way_gone_nothing_is() -> None:
    (gone,) = draw(3, 1)
    back = tree.scale(gone, -0.1)
    assert tree.norm(away_from(back, gone, "always")) == 0.0
    kept = away_from(gone, tree.zeros_like(gone), "always")
    torch.testing.assert_close(kept, gone)
