"""Algebra on named tensors."""

from __future__ import annotations

import pytest
import torch

from letheon import tree

A = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([5.0])}
B = {"w": torch.ones(2, 2), "b": torch.tensor([-1.0])}


def test_sums_differences_and_multiples_are_taken_name_by_name() -> None:
    assert tree.add(A, B, 2.0)["w"].tolist() == [[3.0, 4.0], [5.0, 6.0]]
    assert tree.sub(A, B)["b"].tolist() == [6.0]
    assert tree.scale(A, -0.5)["b"].tolist() == [-2.5]
    assert tree.dot(A, B) == 10.0 - 5.0
    assert tree.dot(A, B, ["b"]) == -5.0
    assert tree.norm(A, ["w"]) == pytest.approx(30**0.5)
    assert (tree.count(A), tree.n_bytes(A)) == (5, 20)
    assert tree.n_bytes({"n": torch.zeros(3, dtype=torch.int64)}) == 24


def test_no_function_changes_its_arguments() -> None:
    before = tree.digest(A), tree.digest(B)
    for result in (tree.add(A, B), tree.sub(A, B), tree.scale(A, 2.0), tree.clone(A), tree.zeros_like(A)):
        for tensor in result.values():
            tensor.fill_(7.0)
    assert (tree.digest(A), tree.digest(B)) == before


def test_a_clone_of_a_parameter_carries_no_gradient() -> None:
    assert not tree.clone({"w": torch.ones(2, requires_grad=True)})["w"].requires_grad


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"w": torch.ones(2, 2)}, r"names differ: \['b'\]"),
        ({"w": torch.ones(4), "b": torch.ones(1)}, r"w is \(4,\).*expected \(2, 2\)"),
        ({"w": torch.ones(2, 2, dtype=torch.float64), "b": torch.ones(1)}, "w is .*float64, expected .*float32"),
    ],
)
def test_trees_that_do_not_match_are_refused_instead_of_broadcast(other: tree.Params, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tree.add(A, other)


def test_the_sign_of_a_sum_that_cancels_is_right() -> None:
    assert (torch.tensor(2.0**24) + 1.0).item() == 2.0**24  # in float32 the 1 is lost
    large, ones = {"w": torch.tensor([2.0**24, 1.0, -(2.0**24)])}, {"w": torch.ones(3)}
    assert tree.dot(large, ones) == 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_not_finite_is_found(value: float) -> None:
    assert tree.is_finite(A)
    assert tree.is_finite({"n": torch.tensor([1], dtype=torch.int64), "e": torch.empty(0)})
    assert not tree.is_finite(A | {"c": torch.tensor([0.0, value])})


def test_equal_digests_mean_equal_names_types_shapes_and_bits() -> None:
    digest = tree.digest(A)
    assert tree.digest(dict(reversed(list(A.items())))) == digest
    assert tree.digest(tree.clone(A)) == digest
    assert tree.digest({"w": A["w"].T.contiguous().T, "b": A["b"]}) == digest
    others = [
        {"v": A["w"], "b": A["b"]},
        {"w": A["w"].reshape(4), "b": A["b"]},
        {"w": A["w"].view(torch.int32), "b": A["b"]},
        {"w": torch.nextafter(A["w"], torch.tensor(9.0)), "b": A["b"]},
        {"w": A["w"]},
    ]
    assert len({digest, *map(tree.digest, others)}) == 1 + len(others)
    assert tree.digest({"z": torch.tensor(0.0)}) != tree.digest({"z": torch.tensor(-0.0)})


def test_every_dtype_has_a_digest() -> None:
    for dtype in (torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64):
        assert tree.digest({"x": torch.ones((), dtype=dtype)}) != tree.digest({"x": torch.zeros((), dtype=dtype)})
    assert tree.digest({"x": torch.empty(0)}) != tree.digest({})
