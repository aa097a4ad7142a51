"""Lethe's adapter as a change of low rank or of the whole last layer, against the change multiplied out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from of_three import Small
from torch.nn import functional as F

from letheon import tree
from letheon.adapter import Adapter, adapter_of, ascend, at_head, attached
from letheon.errors import ConfigError
from letheon.methods.lethe import Lethe
from letheon.models.resnet import ResNet18
from letheon.phase import State, drive
from letheon.tasks.base import params_of
from letheon.tasks.vision import MNIST5k
from letheon.training import Local, batches

LOCAL = Local(lr=0.05, batch_size=4)


def stirred(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An adapter that does something: nothing of it is zero."""
    generator = torch.Generator().manual_seed(5)
    return {name: 0.1 * torch.randn(t.shape, generator=generator) for name, t in tensors.items()}


def merged(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The module with every change of low rank multiplied out into its weights: W + BA, pixel by pixel of a kernel."""
    with torch.no_grad():
        for place in {name.partition("/")[2] for name in tensors}:
            left, right = tensors[f"adapter.left/{place}"], tensors[f"adapter.right/{place}"]
            product = torch.einsum("or,r...->o...", right.flatten(1), left)
            module.get_submodule(place).weight.add_(product)  # type: ignore[operator, union-attr]
    return module


def test_a_change_of_low_rank_is_the_one_multiplied_out() -> None:
    module = ResNet18(10, width=4).eval()
    adapter = Adapter(kind="lora", rank=3)
    tensors = adapter.start(params_of(module), "head", seed=0)
    assert {name.partition("/")[2] for name in tensors} == {"blocks.7.conv1", "blocks.7.conv2", "head"}
    inputs = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain = module(inputs)
        with attached(module, "head", tensors):
            assert torch.equal(module(inputs), plain)
        moved = stirred(tensors)
        with attached(module, "head", moved):
            changed = module(inputs)
        assert not torch.allclose(changed, plain, atol=1e-3)
        torch.testing.assert_close(changed, merged(module, moved)(inputs), rtol=1e-4, atol=1e-4)


def test_a_change_of_low_rank_follows_stride_and_padding() -> None:
    module = ResNet18(10, width=4).eval()
    places = ("conv", "blocks.2.conv1", "blocks.4.shortcut.0")
    moved = stirred(Adapter(kind="lora", rank=2, places=places).start(params_of(module), "head", seed=0))
    inputs = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        with attached(module, "head", moved):
            changed = module(inputs)
        torch.testing.assert_close(changed, merged(module, moved)(inputs), rtol=1e-4, atol=1e-4)


def test_a_change_of_low_rank_pads_by_name_as_its_layer_does() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3, padding="same", dilation=2))
    moved = stirred(Adapter(kind="lora", rank=2, places=("0",)).start(params_of(module), "head", seed=0))
    inputs = torch.randn(2, 4, 7, 7, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        with attached(module, "head", moved):
            changed = module(inputs)
        torch.testing.assert_close(changed, merged(module, moved)(inputs), rtol=1e-4, atol=1e-5)


def test_where_nothing_is_a_convolution_the_last_layer_alone_changes(small: Small) -> None:
    tensors = Adapter(kind="lora", rank=2).start(small.start.params, "head", seed=0)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {"adapter.left": (2, 32), "adapter.right": (10, 2)}
    lenet = Adapter(kind="lora").start(MNIST5k().init(0).params, "head", seed=0)
    assert {name.partition("/")[2] for name in lenet} == {"conv2", "head"}


def test_ascent_of_the_whole_last_layer_is_that_of_a_copy_of_it() -> None:
    head = torch.nn.Linear(6, 3)
    generator = torch.Generator().manual_seed(1)
    features, targets = torch.randn(13, 6, generator=generator), torch.randint(3, (13,), generator=generator)
    adapter = Adapter(kind="head", lr=0.1, cap=None, steps=5, batch_size=4, clip=None)
    start = adapter.start({"head.weight": head.weight, "head.bias": head.bias}, "head", seed=0)
    assert {name: tuple(t.shape) for name, t in start.items()} == {"adapter.weight": (3, 6), "adapter.bias": (3,)}
    found, *_ = ascend(adapter, at_head(head), F.cross_entropy, features, targets, start=start, seed=8)
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    for index in batches(13, Local(batch_size=4, steps=5), torch.Generator().manual_seed(8)):
        h, y = features[index], targets[index]
        error = ((h @ weight.T + bias).softmax(1) - F.one_hot(y, 3)) / len(y)
        weight, bias = weight + 0.1 * error.T @ h, bias + 0.1 * error.sum(0)
    torch.testing.assert_close(head.weight.detach() + found["adapter.weight"], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(head.bias.detach() + found["adapter.bias"], bias, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["lora", "head"])
def test_other_shapes_go_through_all_three_phases(kind: Any, small: Small) -> None:
    adapter = Adapter(kind=kind, rank=2, lr=0.5, cap=None, steps=3)
    method = Lethe(adapter=adapter, rounds=1, restore_rounds=1, local=LOCAL)
    states: list[State] = []
    observers = [lambda phase, done, state: states.append(state)]
    end = drive(method.phases(small.start, small.task), small.tap, small.start, seed=1, observers=observers)
    raised = adapter_of(states[0].scratch)
    assert all(float(tensor.norm()) > 0 for tensor in raised.values())
    streams = [work for work in small.tap.calls[1][0] if work.kind == "train"]
    assert [tree.digest(work.extras) for work in streams] == [tree.digest(raised)] * 2
    assert end.params.keys() == small.start.params.keys()


def test_shapes_and_places_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"adapter\.kind: unknown 'prefix'.*lora, head"):
        Adapter(kind="prefix")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="last layer only"):
        Adapter(kind="head", places=("conv2",))


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.Conv2d(4, 4, 3, groups=2),
        torch.nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        torch.nn.Conv1d(4, 4, 3),
    ],
    ids=["groups", "reflect", "one-dimensional"],
)
def test_a_layer_whose_change_of_low_rank_would_be_another_is_refused(layer: torch.nn.Conv1d | torch.nn.Conv2d) -> None:
    start = {"0.weight": torch.zeros(4, 4, *layer.kernel_size)}
    own = stirred(Adapter(kind="lora", places=("0",)).start(start, "head", seed=0))
    inputs = torch.zeros(1, 4, *(5 for _ in layer.kernel_size))
    with (
        attached(torch.nn.Sequential(layer), "head", own),
        pytest.raises(ConfigError, match=r"takes linear layers and convolutions of images.*leave it out"),
    ):
        torch.nn.Sequential(layer)(inputs)
