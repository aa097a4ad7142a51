"""What FedEraser's calibration promises of any update, and the conformance of its settings."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from letheon import tree
from letheon.methods.federaser import FIRST, LENGTH, FedEraser, calibrated, kept_of
from letheon.testing import CHECKS, STATISTICAL, check_method

NUMBERS = st.floats(-1e3, 1e3, width=32)
UPDATES = st.lists(st.lists(NUMBERS, min_size=1, max_size=5), min_size=1, max_size=4).map(
    lambda rows: {f"t{i}": torch.tensor(row, dtype=torch.float64) for i, row in enumerate(rows)}
)
LENGTHS = st.just(0.0) | st.floats(1e-3, 1e6)


@given(UPDATES, LENGTHS)
def test_a_calibrated_step_has_the_old_length_and_the_new_direction(update: tree.Params, length: float) -> None:
    step, norm = calibrated(update, length), tree.norm(update)
    if norm == 0.0:
        assert tree.norm(step) == 0.0
        return
    assert tree.norm(step) == pytest.approx(length * norm / (norm + 1e-12), rel=1e-9)
    for name, tensor in step.items():
        torch.testing.assert_close(tensor * norm, update[name] * tree.norm(step), rtol=1e-9, atol=1e-9)


@given(UPDATES, LENGTHS, st.floats(1e-3, 1e3))
def test_how_long_the_new_update_is_does_not_matter(update: tree.Params, length: float, factor: float) -> None:
    if tree.norm(update) > 1e-3:  # far from ε
        a, b = calibrated(update, length), calibrated(tree.scale(update, factor), length)
        for name in update:
            torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", ["b", "b/c", "/", "fc1.weight", "federaser/length/000000"])
def test_the_record_of_any_client_can_be_erased(name: str) -> None:
    own = {f"{LENGTH}000004/{name}": torch.ones(()), f"{FIRST}fc1.weight/{name}": torch.ones(2)}
    others = {f"{LENGTH}000004/a": torch.ones(()), f"{FIRST}fc1.weight/a": torch.ones(2), f"cop/{name}": torch.ones(1)}
    assert kept_of(own | others, ["a"]).keys() == others.keys()
    assert kept_of(own | others, ["a", name]).keys() == (own | others).keys()


@pytest.mark.parametrize("check", [check for check in CHECKS if check not in STATISTICAL])
@pytest.mark.parametrize(
    "method", [FedEraser(interval=1), FedEraser(interval=1, first="calibrated", ratio=1.0)], ids=repr
)
def test_more_than_one_kept_round_conforms_too(method: FedEraser, check: str) -> None:
    assert check_method(method, "client", check) == ""
