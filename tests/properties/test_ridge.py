"""What makes ridge heads exact: statistics form a group under addition, and the head is a function of them alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from letheon.errors import MethodError, RequestError
from letheon.methods.gram import Inverse, Statistics, root, woodbury

CLASSES = 3
Samples = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Matrices are tiny, and threads would wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@st.composite
def samples(draw: st.DrawFn, *, least: int = 1) -> Samples:
    """``(n, d)`` features as an extractor gives them, and labels."""
    count, size = draw(st.integers(least, 12)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    features = torch.randn(count, size, generator=generator) * draw(st.floats(0.01, 3.0))
    return features.clamp_min(0.0), torch.randint(CLASSES, (count,), generator=generator)


def of(data: Samples) -> Statistics:
    return Statistics.of(*data, CLASSES)


def off(found: Tensor, wanted: Tensor) -> float:
    """Relative Frobenius distance."""
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-12))


def taken(data: Samples, index: Tensor) -> Samples:
    return data[0][index], data[1][index]


@settings(max_examples=60)
@given(samples(least=2), st.data(), st.floats(0.1, 10.0))
def test_adding_and_then_deleting_leaves_the_same_head(data: Samples, draw: st.DataObject, penalty: float) -> None:
    cut = draw.draw(st.integers(1, len(data[1]) - 1))
    first, second = (of(taken(data, index)) for index in (torch.arange(cut), torch.arange(cut, len(data[1]))))
    again = first.added(second).deleted(second)
    assert off(again.gram, first.gram) < 1e-9
    assert off(again.solve(penalty), first.solve(penalty)) < 1e-9


@settings(max_examples=60)
@given(samples(least=3), st.data(), st.floats(0.1, 10.0))
def test_neither_the_partition_nor_the_order_of_clients_matters(
    data: Samples, draw: st.DataObject, penalty: float
) -> None:
    owner = torch.tensor(draw.draw(st.lists(st.integers(0, 3), min_size=len(data[1]), max_size=len(data[1]))))
    parts = [of(taken(data, owner == k)) for k in draw.draw(st.permutations(range(4)))]
    total = Statistics.none(data[0].shape[1], CLASSES)
    for part in parts:
        total = total.added(part)
    assert off(total.gram, of(data).gram) < 1e-9
    assert off(total.solve(penalty), of(data).solve(penalty)) < 1e-9


@settings(max_examples=60)
@given(samples(least=3), st.data(), st.floats(0.1, 10.0))
def test_deletion_is_retraining_on_what_is_left_whatever_the_order_of_requests(
    data: Samples, draw: st.DataObject, penalty: float
) -> None:
    order = torch.tensor(draw.draw(st.permutations(range(len(data[1])))))
    gone, kept = order[: len(order) // 2], order[len(order) // 2 :]
    total = of(data)
    for i in gone:
        total = total.deleted(of(taken(data, i[None])))
    features, targets = taken(data, kept)
    phi = torch.cat([features.double(), torch.ones(len(kept), 1, dtype=torch.float64)], 1)
    wanted = torch.linalg.solve(
        sum(torch.outer(row, row) for row in phi) + penalty * torch.eye(phi.shape[1], dtype=torch.float64),
        sum(torch.outer(row, torch.eye(CLASSES, dtype=torch.float64)[y]) for row, y in zip(phi, targets, strict=True)),
    )
    assert off(total.solve(penalty), wanted) < 1e-9


@settings(max_examples=60)
@given(samples(least=2), st.floats(0.5, 10.0), st.integers(1, 4))
def test_an_update_of_the_inverse_is_a_new_factorisation_and_a_down_date_undoes_it(
    data: Samples, penalty: float, count: int
) -> None:
    phi = torch.cat([data[0].double(), torch.ones(len(data[1]), 1, dtype=torch.float64)], 1)
    eye = torch.eye(phi.shape[1], dtype=torch.float64)
    first, second = phi[:-count], phi[-count:]
    before = torch.linalg.inv(first.T @ first + penalty * eye)
    after = torch.linalg.inv(phi.T @ phi + penalty * eye)
    assert off(woodbury(before, second, 1), after) < 1e-9
    assert off(woodbury(after, second, -1), before) < 1e-9


@settings(max_examples=60)
@given(samples(least=2), st.data())
def test_what_was_never_added_is_refused(data: Samples, draw: st.DataObject) -> None:
    whole = of(data)
    label = int(data[1][0])
    more = torch.full((int((data[1] == label).sum()) + 1,), label)  # one sample of the class too many
    with pytest.raises(RequestError, match=f"more samples of class {label} than there are"):
        whole.deleted(Statistics.of(torch.zeros(len(more), data[0].shape[1]), more, CLASSES))
    far = Statistics.of(data[0][:1] + 1000.0, data[1][:1], CLASSES)  # of a right class, but other features
    with pytest.raises(RequestError, match="an eigenvalue of A"):
        whole.deleted(far)


def test_a_sample_that_is_nearly_the_one_that_was_added_is_refused_too() -> None:
    whole = Statistics.of(torch.tensor([[1.0]]), torch.tensor([0]), CLASSES)
    with pytest.raises(RequestError, match="an eigenvalue of A"):
        whole.deleted(Statistics.of(torch.tensor([[1.001]]), torch.tensor([0]), CLASSES))


@settings(max_examples=30)
@given(samples())
def test_all_may_go_and_the_head_is_then_zero(data: Samples) -> None:
    left = of(data).deleted(of(data))
    assert float(left.solve(1.0).abs().max()) < 1e-9


@settings(max_examples=60)
@given(samples(least=3), st.data(), st.floats(0.1, 10.0))
def test_deleting_by_woodbury_gives_the_head_of_factorising_anew(
    data: Samples, draw: st.DataObject, penalty: float
) -> None:
    order = torch.tensor(draw.draw(st.permutations(range(len(data[1])))))
    cut = draw.draw(st.integers(1, len(order) - 1))
    total = of(data)
    kept = Inverse.of(total, penalty)
    for gone in (order[:cut], order[cut : cut + 1]):  # two requests, one after the other
        part = taken(data, gone)
        factor = root(torch.cat([part[0].double(), torch.ones(len(gone), 1, dtype=torch.float64)], 1))
        assert factor.shape == (min(len(gone), data[0].shape[1] + 1), data[0].shape[1] + 1)
        assert off(factor.T @ factor, of(part).gram) < 1e-9
        total, kept = total.deleted(of(part)), kept.deleted(factor, of(part).moment)
        assert float((kept.solve(penalty) - total.solve(penalty)).abs().max()) < 1e-9
        assert torch.equal(kept.inverse, kept.inverse.T)


@pytest.mark.parametrize(("n", "dead"), [(5, 0), (5, 2), (12, 0), (12, 3)])
def test_a_root_is_the_same_for_all_samples_with_the_same_products(n: int, dead: int) -> None:
    generator = torch.Generator().manual_seed(n + dead)
    features = torch.randn(n, 8, generator=generator, dtype=torch.float64)
    features[:, :dead] = 0.0  # as ReLU leaves them
    turn = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]
    for others in (turn @ features, features.flip(0), -features):
        assert off(root(others), root(features)) < 1e-9
    assert off(root(features).T @ root(features), features.T @ features) < 1e-9


def test_what_woodbury_has_no_digits_for_is_not_called_a_false_request() -> None:
    features, targets = torch.tensor([[0.0], [0.0], [300.0]]), torch.tensor([0, 1, 2])
    last = torch.tensor([[300.0, 1.0]], dtype=torch.float64)
    gone = Statistics.of(features[2:], targets[2:], CLASSES)
    whole = Statistics.of(features, targets, CLASSES)
    with pytest.raises(MethodError, match=r"too little is left to update the inverse.*train without solver"):
        Inverse.of(whole, 1e-6).deleted(last, gone.moment)
    found = Inverse.of(whole, 1.0).deleted(last, gone.moment).solve(1.0)
    assert off(found, whole.deleted(gone).solve(1.0)) < 1e-9


def test_woodbury_refuses_what_was_never_added_as_far_as_it_can_see() -> None:
    whole = Inverse.of(Statistics.of(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0]), CLASSES), 0.1)
    one = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    with pytest.raises(RequestError, match="more samples of class 1 than there are"):
        whole.deleted(one, Statistics.of(torch.tensor([[1.0]]), torch.tensor([1]), CLASSES).moment)
    far = Statistics.of(torch.tensor([[9.0]]), torch.tensor([0]), CLASSES)
    with pytest.raises(RequestError, match="an eigenvalue of I − RPRᵀ"):
        whole.deleted(one * torch.tensor([9.0, 1.0]), far.moment)
    assert torch.equal(whole.deleted(one[:0], torch.zeros_like(whole.moment)).inverse, whole.inverse)
