"""Lethe's adapter: what it is before, during and after its ascent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from letheon.adapter import Adapter, adapt, ascend, at_head, attached, penultimate
from letheon.errors import ConfigError
from letheon.models.mlp import MLP

N = 40


@pytest.fixture
def module() -> MLP:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MLP(norm=True)


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.rand(N, 64, generator=torch.Generator().manual_seed(1))


TARGETS = torch.arange(N) % 10


def raised(adapter: Adapter, module: MLP, inputs: torch.Tensor, seed: int = 0) -> tuple[dict[str, Any], int, float]:
    features = penultimate(module, "head", inputs)
    start = adapter.init(features.shape[1], 0)
    return ascend(adapter, at_head(module.head), F.cross_entropy, features, TARGETS, start=start, seed=seed)


def loss_of(module: MLP, inputs: torch.Tensor, tensors: dict[str, torch.Tensor]) -> float:
    return F.cross_entropy(module.head(adapt(penultimate(module, "head", inputs), tensors)), TARGETS).item()


def test_a_fresh_adapter_changes_nothing(module: MLP, inputs: torch.Tensor) -> None:
    features = penultimate(module, "head", inputs)
    assert torch.equal(adapt(features, Adapter().init(features.shape[1], 0)), features)


def test_the_adapter_is_a_residual_bottleneck() -> None:
    tensors = {k: torch.randn_like(v) for k, v in Adapter(rank=3).init(5, 0).items()}
    features = torch.randn(2, 5)
    down, down_bias, up, up_bias = tensors.values()
    expected = [h + up @ torch.relu(down @ h + down_bias) + up_bias for h in features]
    torch.testing.assert_close(adapt(features, tensors), torch.stack(expected))


def test_penultimate_features_are_what_enters_the_head(module: MLP, inputs: torch.Tensor) -> None:
    module.train()
    features = penultimate(module, "head", inputs, chunk=7)
    module.eval()
    torch.testing.assert_close(module.head(features), module(inputs))
    assert not features.requires_grad
    assert module.norm.num_batches_tracked.item() == 0  # type: ignore[operator, union-attr]


def test_ascent_stops_at_the_cap(module: MLP, inputs: torch.Tensor) -> None:
    before = loss_of(module, inputs, Adapter().init(32, 0))
    adapter = Adapter(cap=before + 0.5, lr=0.5, steps=400)
    tensors, steps, reached = raised(adapter, module, inputs)
    assert before + 0.5 <= reached < before + 2.0
    assert reached == pytest.approx(loss_of(module, inputs, tensors))
    assert 0 < steps < 400


def test_a_loss_above_the_cap_needs_no_step(module: MLP, inputs: torch.Tensor) -> None:
    tensors, steps, reached = raised(Adapter(cap=0.1), module, inputs)
    assert steps == 0
    assert reached > 0.1
    assert torch.equal(tensors["adapter.up"], torch.zeros(32, 16))


def test_without_a_cap_all_steps_are_taken(module: MLP, inputs: torch.Tensor) -> None:
    assert raised(Adapter(cap=None, steps=7), module, inputs)[1] == 7


def test_ascent_touches_neither_the_backbone_nor_its_start(module: MLP, inputs: torch.Tensor) -> None:
    before = [p.clone() for p in module.parameters()]
    features, start = penultimate(module, "head", inputs), Adapter().init(32, 0)
    copy = {k: v.clone() for k, v in start.items()}
    ascend(Adapter(cap=None), at_head(module.head), F.cross_entropy, features, TARGETS, start=start, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert all(torch.equal(start[k], copy[k]) for k in start)


def test_an_attached_adapter_acts_only_inside_its_block(module: MLP, inputs: torch.Tensor) -> None:
    tensors, *_ = raised(Adapter(cap=None, steps=5, lr=1.0), module, inputs)
    expected = loss_of(module, inputs, tensors)
    module.eval()
    plain = module(inputs)
    with attached(module, "head", tensors):
        assert F.cross_entropy(module(inputs), TARGETS).item() == pytest.approx(expected)
        assert not torch.equal(module(inputs), plain)
    assert torch.equal(module(inputs), plain)
    with attached(module, "head", {}):
        assert torch.equal(module(inputs), plain)


def test_an_attached_adapter_is_removed_when_training_fails(module: MLP) -> None:
    with pytest.raises(ZeroDivisionError), attached(module, "head", Adapter().init(32, 0)):
        raise ZeroDivisionError
    assert len(module.head._forward_pre_hooks) == 0


def test_options_survive_the_way_to_a_client() -> None:
    for adapter in (Adapter(), Adapter(cap=None, clip=None), Adapter(rank=3, lr=1.0, cap=2.0, steps=5, batch_size=8)):
        assert Adapter.from_options(adapter.options()) == adapter


@pytest.mark.parametrize("field", ["rank", "lr", "cap", "steps", "batch_size", "clip"])
def test_nothing_of_an_adapter_can_be_zero(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"adapter\.{field}: must be positive"):
        Adapter(**{field: 0})


def test_a_small_batch_ascends_even_with_a_last_batch_of_one() -> None:
    head = nn.Linear(4, 10)
    features = torch.randn(33, 4)
    start = Adapter(rank=2).init(4, 0)
    adapter, targets = Adapter(rank=2, cap=None, steps=4), torch.arange(33) % 10
    _, steps, _ = ascend(adapter, at_head(head), F.cross_entropy, features, targets, start=start, seed=0)
    assert steps == 4
