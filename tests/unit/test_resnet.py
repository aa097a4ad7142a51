"""The ResNet-18 for small images."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from letheon.errors import ConfigError
from letheon.models.resnet import ResNet18, ResNet18Shape
from letheon.tasks.base import params_of


def seeded(width: int) -> ResNet18:
    """A network with statistics that make every BatchNorm matter."""
    generator = torch.Generator().manual_seed(0)
    network = ResNet18(10, width)
    with torch.no_grad():
        for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
            if tensor.is_floating_point():
                tensor.normal_(0.0, 0.3, generator=generator)
            if name.endswith("running_var"):
                tensor.abs_().add_(0.5)
    return network.eval()


def normalised(maps: Tensor, own: Mapping[str, Tensor], name: str) -> Tensor:
    mean, var, weight, bias = (
        own[f"{name}.{kind}"].view(-1, 1, 1) for kind in ("running_mean", "running_var", "weight", "bias")
    )
    return (maps - mean) / (var + 1e-5).sqrt() * weight + bias


def written_out(own: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """The network from its description, one operation at a time."""
    maps = F.relu(normalised(F.conv2d(images, own["conv.weight"], padding=1), own, "norm"))
    for i, (stride, changes) in enumerate([(1, 0), (1, 0), (2, 1), (1, 0), (2, 1), (1, 0), (2, 1), (1, 0)]):
        at, kept = f"blocks.{i}", maps
        maps = F.relu(normalised(F.conv2d(maps, own[f"{at}.conv1.weight"], None, stride, 1), own, f"{at}.norm1"))
        maps = normalised(F.conv2d(maps, own[f"{at}.conv2.weight"], padding=1), own, f"{at}.norm2")
        if changes:
            kept = normalised(F.conv2d(kept, own[f"{at}.shortcut.0.weight"], None, stride), own, f"{at}.shortcut.1")
        maps = F.relu(maps + kept)
    assert maps.shape[-2:] == (images.shape[-2] // 8, images.shape[-1] // 8)
    return maps.flatten(2).sum(2) / maps[0, 0].numel() @ own["head.weight"].T + own["head.bias"]


@pytest.mark.parametrize("side", [32, 64])
def test_the_network_is_the_one_described(side: int) -> None:
    network = seeded(4)
    images = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(network(images), written_out(network.state_dict(), images), rtol=1e-4, atol=1e-4)


def test_the_first_and_the_last_layer_are_the_first_convolution_and_the_head() -> None:
    names = list(params_of(ResNet18(10, 8)))
    assert names[0] == "conv.weight"
    assert names[-2:] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("width", [1, 4, 16])
def test_the_head_sees_eight_times_the_width(width: int) -> None:
    network = ResNet18Shape(width).build(7, 32)
    seen: list[Tensor] = []
    network.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert seen[0].shape == (2, 8 * width)


def test_a_network_without_channels_is_refused() -> None:
    with pytest.raises(ConfigError, match="width must be at least 1, got 0"):
        ResNet18Shape(0)
