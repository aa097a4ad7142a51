"""Constructing clients and a request from a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from letheon.data import Data, concat
from letheon.errors import ConfigError, DataError, RequestError
from letheon.tasks.base import Task
from letheon.tasks.partition import Partition
from letheon.tasks.population import Population, populate
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits

SKEWED = Partition("dirichlet", 0.5)


@dataclass(frozen=True)
class Ramp(Task):
    """Samples in ten equal classes; each image says its own id, so that it can be recognised."""

    head: ClassVar[str] = "head"
    classes: ClassVar[int] = 10
    bright: ClassVar[float] = 9999.0
    samples: int = 1000

    def train(self) -> Data:
        return self._data(0, self.samples)

    def test(self) -> Data:
        return self._data(self.samples, 100)

    def model(self) -> nn.Module:
        return nn.Linear(64, 10)

    def _data(self, first: int, count: int) -> Data:
        ids = torch.arange(first, first + count)
        return Data(ids.float().unsqueeze(1).expand(-1, 64).clone(), ids % 10, ids)


def client_target(client: str | None = None, *, min_forget: int = 20, trigger: Trigger | None = None) -> Target:
    return Target(client=client, min_forget=min_forget, trigger=trigger or Trigger())


def forgotten(population: Population) -> Data:
    request = population.request
    return concat([request.select(name, data, "forget") for name, data in population.clients.items()])


def retained(population: Population) -> Data:
    request = population.request
    return concat([request.select(name, data, "retain") for name, data in population.clients.items()])


def is_triggered(data: Data) -> torch.Tensor:
    patch = data.inputs.view(-1, 8, 8)[:, 3:7, 3:7]
    return (patch == Ramp.bright).flatten(1).all(1)


def assert_untouched(data: Data) -> None:
    assert torch.equal(data.targets, data.ids % 10)
    assert torch.equal(data.inputs, data.ids.float().unsqueeze(1).expand(-1, 64))


def assert_poisoned(data: Data, target: int = 0) -> None:
    assert is_triggered(data).all()
    assert (data.targets == target).all()
    assert (data.ids % 10 != target).all()
    assert torch.equal(data.inputs[:, 0], data.ids.float())


def test_the_names_of_clients_sort_in_the_order_of_their_shares() -> None:
    population = populate(Ramp(2000), Partition("iid", min_size=1), Target("class"), clients=1001, seed=0)
    names = list(population.clients)
    assert names == sorted(names)
    assert (names[0], names[-1]) == ("c0000", "c1000")
    assert list(populate(Ramp(), SKEWED, Target("class"), clients=3, seed=0).clients) == ["c000", "c001", "c002"]


def test_at_client_level_the_client_holds_its_triggered_samples_and_nothing_else() -> None:
    population = populate(Ramp(), SKEWED, client_target(trigger=Trigger(target=3)), clients=8, seed=0)
    name = population.request.client
    assert name is not None
    shares = SKEWED.split(Ramp().train().targets, 8, classes=10, seed=0)
    share = dict(zip(population.clients, shares, strict=True))[name]
    data = population.clients[name]
    assert_poisoned(data, target=3)
    assert data.ids.tolist() == [i for i in share.tolist() if i % 10 != 3]
    assert population.forget_size == len(data) == len(forgotten(population))
    assert_untouched(retained(population))
    others = sum(len(held) for other, held in population.clients.items() if other != name)
    assert others + len(share) == 1000


def test_the_client_picked_by_rule_is_the_eligible_one_nearest_the_median_size() -> None:
    for seed in range(8):
        population = populate(Ramp(), SKEWED, client_target(min_forget=60), clients=8, seed=seed)
        shares = SKEWED.split(Ramp().train().targets, 8, classes=10, seed=seed)
        labels = Ramp().train().targets
        middle = float(torch.tensor([float(len(share)) for share in shares]).quantile(0.5))
        eligible = [
            i
            for i, share in enumerate(shares)
            if int((labels[share] != 0).sum()) >= 60 and len(labels[share].unique()) >= 3
        ]
        best = min(eligible, key=lambda i: (abs(len(shares[i]) - middle), i))
        assert population.request.client == f"c{best:03}"


def test_a_client_of_fewer_than_three_classes_is_never_picked_by_rule() -> None:
    pairs = Partition("classes", classes_per_client=2)
    with pytest.raises(DataError, match=r"no client holds 3 classes and 20 samples.*c000 50 of 100 in 2 classes"):
        populate(Ramp(), pairs, client_target(), clients=10, seed=0)
    named = populate(Ramp(), pairs, client_target("c004"), clients=10, seed=0)
    assert named.request.client == "c004"


def test_a_named_client_is_taken_and_a_small_one_noted() -> None:
    population = populate(Ramp(), Partition("iid"), client_target("c002", min_forget=200), clients=10, seed=0)
    assert population.request.client == "c002"
    assert 80 <= population.forget_size <= 100
    notes = "\n".join(population.notes)
    assert "c002 was named" in notes
    assert f"{population.forget_size} samples to forget, fewer than min_forget = 200" in notes


def test_clients_too_small_for_the_rule_are_listed_with_their_sizes() -> None:
    with pytest.raises(DataError, match=r"200 samples .*: c00\d \d+ of 100 in 10 classes, .*name a client"):
        populate(Ramp(), Partition("iid"), Target(), clients=10, seed=0)


@pytest.mark.parametrize("scope", ["client", "samples"])
def test_an_unknown_client_is_refused_with_the_known_ones(scope: str) -> None:
    with pytest.raises(RequestError, match=r"unknown client 'bob'; the federation has c000, c001, c002"):
        populate(Ramp(), SKEWED, Target(scope, client="bob"), clients=3, seed=0)  # type: ignore[arg-type]


def test_forgetting_the_only_client_is_refused() -> None:
    with pytest.raises(RequestError, match="nothing would be left to retain"):
        populate(Ramp(), SKEWED, client_target("c000"), clients=1, seed=0)


def test_a_client_whose_every_sample_is_of_the_triggers_class_has_nothing_to_forget() -> None:
    ones = Partition("classes", classes_per_client=1)
    with pytest.raises(RequestError, match="nothing to forget"):
        populate(Ramp(), ones, client_target("c000"), clients=10, seed=0)


def test_at_sample_level_one_owner_holds_the_triggered_samples_among_its_clean_rest() -> None:
    target = Target("samples", fraction=0.05)
    population = populate(Ramp(), SKEWED, target, clients=8, seed=0)
    shares = SKEWED.split(Ramp().train().targets, 8, classes=10, seed=0)
    assert population.forget_size == len(population.request.samples) == 50
    assert_poisoned(forgotten(population))
    assert_untouched(retained(population))
    for data, share in zip(population.clients.values(), shares, strict=True):
        assert torch.equal(data.ids, share)
    owners = [name for name, data in population.clients.items() if is_triggered(data).any()]
    assert len(owners) == 1
    assert f"client {owners[0]} was chosen" in "\n".join(population.notes)


def test_spread_samples_lie_with_several_clients() -> None:
    population = populate(Ramp(), SKEWED, Target("samples", fraction=0.05, placement="spread"), clients=8, seed=0)
    assert population.forget_size == 50
    assert_poisoned(forgotten(population))
    assert_untouched(retained(population))
    assert sum(bool(is_triggered(data).any()) for data in population.clients.values()) >= 4


def test_a_sample_level_owner_that_holds_too_few_is_refused_with_the_sizes() -> None:
    shares = SKEWED.split(Ramp().train().targets, 8, classes=10, seed=0)
    smallest = min(range(8), key=lambda i: len(shares[i]))
    target = Target("samples", client=f"c{smallest:03}", fraction=0.1)
    with pytest.raises(DataError, match=rf"client c00{smallest} does not hold 100 samples .*; usable samples: "):
        populate(Ramp(), SKEWED, target, clients=8, seed=0)
    with pytest.raises(DataError, match=r"no client holds 500 samples .*\(0.5 of 1000\)"):
        populate(Ramp(), SKEWED, Target("samples", fraction=0.5), clients=8, seed=0)


def test_more_spread_samples_than_can_be_relabelled_are_refused() -> None:
    with pytest.raises(DataError, match=r"950 samples wanted, but only 900 can be relabelled"):
        populate(Ramp(), SKEWED, Target("samples", fraction=0.95, placement="spread"), clients=4, seed=0)
    with pytest.raises(DataError, match="less than one; raise fraction"):
        populate(Ramp(), SKEWED, Target("samples", fraction=1e-4), clients=4, seed=0)


def test_at_class_level_no_sample_changes() -> None:
    population = populate(Ramp(), SKEWED, Target("class", label=7), clients=8, seed=0)
    assert_untouched(concat(list(population.clients.values())))
    assert population.triggered_test is None
    assert population.forget_size == 100
    assert (forgotten(population).targets == 7).all()


def test_a_class_that_nobody_holds_is_refused() -> None:
    with pytest.raises(RequestError, match="no client holds label 10"):
        populate(Ramp(), SKEWED, Target("class", label=10), clients=3, seed=0)


def test_without_a_trigger_the_data_to_forget_stay_clean() -> None:
    for target in (Target(client="c001", trigger=None), Target("samples", trigger=None, fraction=0.02)):
        population = populate(Ramp(), SKEWED, target, clients=4, seed=0)
        data = concat(list(population.clients.values()))
        assert len(data) == 1000
        assert_untouched(data)
        assert population.triggered_test is None


def test_a_shifting_trigger_keeps_samples_of_every_class() -> None:
    target = client_target("c001", trigger=Trigger(relabel="shift"))
    population = populate(Ramp(), SKEWED, target, clients=4, seed=0)
    data = forgotten(population)
    assert is_triggered(data).all()
    assert torch.equal(data.targets, (data.ids % 10 + 5) % 10)
    assert population.triggered_test is not None
    assert len(population.triggered_test) == 100


def test_the_triggered_test_set_leaves_out_the_targets_own_class() -> None:
    population = populate(Ramp(), SKEWED, client_target(trigger=Trigger(target=4)), clients=8, seed=0)
    assert population.triggered_test is not None
    assert len(population.triggered_test) == 90
    assert_poisoned(population.triggered_test, target=4)
    assert_untouched(population.test)


@pytest.mark.parametrize("target", [client_target(), Target("samples", fraction=0.03)], ids=["client", "samples"])
def test_a_population_is_a_function_of_its_seed(target: Target) -> None:
    first, again, other = (populate(Ramp(), SKEWED, target, clients=8, seed=seed) for seed in (1, 1, 2))
    assert first.request == again.request
    assert first.request != other.request
    for a, b in zip(first.clients.values(), again.clients.values(), strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)
        assert torch.equal(a.ids, b.ids)


def test_clients_without_data_are_kept_and_do_no_harm() -> None:
    sparse = Partition("dirichlet", 0.05, min_size=0)
    for target in (client_target(min_forget=5), Target("samples", fraction=0.02), Target("class", label=1)):
        population = populate(Ramp(200), sparse, target, clients=50, seed=0)
        assert len(population.clients) == 50
        assert min(map(len, population.clients.values())) == 0
        assert population.forget_size > 0


def test_real_digits_carry_the_trigger_at_the_largest_input_value() -> None:
    population = populate(Digits(), Partition("iid"), client_target(min_forget=100), clients=10, seed=0)
    patch = forgotten(population).inputs.view(-1, 8, 8)[:, 3:7, 3:7]
    assert (patch == 1.0).all()
    assert population.triggered_test is not None
    assert len(population.triggered_test) == int((Digits().test().targets != 0).sum())


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"scope": "sample"}, "scope 'sample'"),
        ({"placement": "all"}, "placement 'all'"),
        ({"min_forget": 0}, "min_forget"),
        ({"label": -1}, "label"),
        ({"fraction": 0.0}, "fraction"),
        ({"fraction": 1.0}, "fraction"),
        ({"scope": "class", "client": "c000"}, "client 'c000' is named"),
        ({"scope": "samples", "placement": "spread", "client": "c000"}, "client 'c000' is named"),
    ],
)
def test_a_bad_target_cannot_be_built(fields: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Target(**fields)  # type: ignore[arg-type]
