"""Dealing samples to clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from letheon.errors import ConfigError, DataError
from letheon.tasks import partition as module
from letheon.tasks.partition import Kind, Partition


def some_labels(samples: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(classes, (samples,), generator=torch.Generator().manual_seed(seed))


def assert_disjoint_and_complete(shares: list[Tensor], samples: int) -> None:
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(samples))


def held_classes(share: Tensor, labels: Tensor) -> set[int]:
    return set(labels[share].tolist())


@settings(max_examples=150)
@given(
    kind=st.sampled_from(["iid", "dirichlet", "balanced"]),
    alpha=st.sampled_from([1e-3, 0.05, 0.1, 0.5, 1.0, 100.0]),
    samples=st.integers(0, 300),
    clients=st.integers(1, 60),
    classes=st.integers(1, 12),
    seed=st.integers(0, 2**63 - 1),
)
def test_shares_are_sorted_disjoint_and_complete(
    *, kind: Kind, alpha: float, samples: int, clients: int, classes: int, seed: int
) -> None:
    labels = some_labels(samples, classes, seed % 1000)
    shares = Partition(kind, alpha, min_size=0).split(labels, clients, classes=classes, seed=seed)
    assert len(shares) == clients
    assert_disjoint_and_complete(shares, samples)
    assert all(torch.equal(share, share.sort().values) for share in shares)


@settings(max_examples=150)
@given(data=st.data(), classes=st.integers(1, 12), clients=st.integers(1, 40), samples=st.integers(0, 300))
def test_by_classes_nobody_holds_more_classes_than_allowed(
    data: st.DataObject, classes: int, clients: int, samples: int
) -> None:
    held = data.draw(st.integers(-(-classes // clients), classes))
    labels = some_labels(samples, classes)
    shares = Partition("classes", classes_per_client=held, min_size=0).split(labels, clients, classes=classes, seed=1)
    assert_disjoint_and_complete(shares, samples)
    assert all(len(held_classes(share, labels)) <= held for share in shares)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["dirichlet", "balanced"])
def test_a_dirichlet_of_005_over_50_clients_and_200_samples_may_leave_clients_empty(kind: Kind, seed: int) -> None:
    labels = some_labels(200, 10)
    shares = Partition(kind, 0.05, min_size=0).split(labels, 50, classes=10, seed=seed)
    assert_disjoint_and_complete(shares, 200)
    assert min(map(len, shares)) == 0


@pytest.mark.parametrize("kind", ["dirichlet", "balanced"])
def test_the_lethe_papers_setting_reaches_its_minimum_size(kind: Kind) -> None:
    labels = some_labels(60_000, 10)
    shares = Partition(kind, 0.1, min_size=10).split(labels, 50, classes=10, seed=0)
    assert_disjoint_and_complete(shares, 60_000)
    assert min(map(len, shares)) >= 10


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "balanced", "classes"])
def test_shares_are_a_function_of_the_seed(kind: Kind) -> None:
    rule, labels = Partition(kind, 0.5), some_labels(1000, 10)
    first, again, other = (rule.split(labels, 10, classes=10, seed=seed) for seed in (3, 3, 4))
    assert all(map(torch.equal, first, again))
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_drawing_shares_leaves_the_global_generators_alone() -> None:
    before = torch.random.get_rng_state()
    Partition().split(some_labels(1000, 10), 10, classes=10, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_iid_shares_differ_by_at_most_one_sample() -> None:
    sizes = [len(share) for share in Partition("iid").split(some_labels(1003, 10), 10, classes=10, seed=0)]
    assert sorted(sizes) == [100] * 7 + [101] * 3


def test_a_small_alpha_skews_more_than_a_large_one() -> None:
    labels = some_labels(5000, 10)

    def largest_class_share(alpha: float) -> float:
        shares = Partition("dirichlet", alpha).split(labels, 10, classes=10, seed=0)
        tops = [float(torch.bincount(labels[share]).max()) / len(share) for share in shares]
        return sum(tops) / len(tops)

    assert largest_class_share(0.1) > 0.4
    assert largest_class_share(1000.0) < 0.2


def test_balanced_sizes_spread_less_than_plain_ones() -> None:
    labels = some_labels(5000, 10)

    def spread(kind: Kind) -> float:
        runs = [Partition(kind, 0.2, min_size=0).split(labels, 20, classes=10, seed=seed) for seed in range(10)]
        return sum(float(torch.tensor([float(len(share)) for share in shares]).std()) for shares in runs)

    assert spread("balanced") < 0.8 * spread("dirichlet")


def test_balanced_gives_a_full_client_nothing_of_the_next_classes() -> None:
    labels = some_labels(2000, 10)
    for seed in range(20):
        for share in Partition("balanced", 0.1, min_size=0).split(labels, 10, classes=10, seed=seed):
            counts = torch.bincount(labels[share], minlength=10)
            full_at = (counts.cumsum(0) >= 200).nonzero().flatten()
            assert not len(full_at) or int(counts[int(full_at[0]) + 1 :].sum()) == 0


def test_two_classes_for_each_of_ten_clients_pair_up_in_order() -> None:
    labels = torch.arange(10).repeat_interleave(101)
    shares = Partition("classes", classes_per_client=2).split(labels, 10, classes=10, seed=0)
    assert [held_classes(share, labels) for share in shares] == [{i // 2 * 2, i // 2 * 2 + 1} for i in range(10)]
    assert [len(share) for share in shares] == [100, 102] * 5


def test_too_few_class_slots_are_refused_with_the_usable_range() -> None:
    with pytest.raises(ConfigError, match=r"4 clients with 2 classes .* must lie in 3…10"):
        Partition("classes").split(some_labels(1000, 10), 4, classes=10, seed=0)


def test_a_minimum_size_out_of_reach_ends_after_a_thousand_counted_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[list[int]] = []
    default_rng = np.random.default_rng

    def counting(seed: list[int]) -> object:
        seeds.append(seed)
        return default_rng(seed)

    monkeypatch.setattr(np.random, "default_rng", counting)
    with pytest.raises(DataError, match=r"1000 tries .* min_size is 10; lower min_size .* raise alpha"):
        Partition("dirichlet", 0.01).split(some_labels(200, 4), 20, classes=4, seed=7)
    assert seeds == [[7, attempt] for attempt in range(1000)]


def test_a_retried_partition_reaches_the_minimum_that_the_first_draw_missed() -> None:
    labels = some_labels(400, 4)
    first = Partition("dirichlet", 0.3, min_size=0).split(labels, 8, classes=4, seed=0)
    assert min(map(len, first)) < 15
    retried = Partition("dirichlet", 0.3, min_size=15).split(labels, 8, classes=4, seed=0)
    assert min(map(len, retried)) >= 15


def test_more_clients_than_the_samples_allow_are_refused_at_once() -> None:
    for kind in ("iid", "dirichlet", "balanced"):
        with pytest.raises(DataError, match=r"99 samples over 10 clients, and in 1 try "):
            Partition(kind).split(some_labels(99, 10), 10, classes=10, seed=0)


def test_clients_left_without_a_class_are_refused_unless_empty_clients_are_allowed() -> None:
    labels = some_labels(1000, 10)
    with pytest.raises(DataError, match="multiple of the number of classes"):
        Partition("classes").split(labels, 7, classes=10, seed=0)
    assert_disjoint_and_complete(Partition("classes", min_size=0).split(labels, 7, classes=10, seed=0), 1000)


def test_overlapping_shares_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def overlapping(*_: object, **__: object) -> list[object]:
        return [np.arange(6), np.arange(5, 9)]

    monkeypatch.setattr(module, "_by_dirichlet", overlapping)
    with pytest.raises(DataError, match="1 samples dealt to nobody, 1 to several clients"):
        Partition(min_size=0).split(some_labels(10, 2), 2, classes=2, seed=0)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"kind": "pat"}, "kind 'pat'"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"alpha": float("inf")}, "alpha"),
        ({"classes_per_client": 0}, "classes_per_client"),
        ({"min_size": -1}, "min_size"),
    ],
)
def test_a_bad_rule_cannot_be_built(fields: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Partition(**fields)  # type: ignore[arg-type]


def test_bad_arguments_are_refused() -> None:
    labels = some_labels(100, 10)
    with pytest.raises(ConfigError, match="at least 1 client"):
        Partition().split(labels, 0, classes=10, seed=0)
    with pytest.raises(ConfigError, match="seed must not be negative"):
        Partition().split(labels, 2, classes=10, seed=-1)
    with pytest.raises(DataError, match=r"must lie in 0…4, found 0…9"):
        Partition().split(labels, 2, classes=5, seed=0)
    with pytest.raises(DataError, match="one integer label per sample"):
        Partition().split(labels.view(10, 10), 2, classes=10, seed=0)
