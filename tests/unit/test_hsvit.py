"""HSViT."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from letheon import tree
from letheon.client import Client
from letheon.data import Data
from letheon.errors import ConfigError
from letheon.models.hsvit import HSViT, HSViTShape
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.base import params_of
from letheon.tasks.cifar import CIFAR10
from letheon.training import Local
from letheon.work import Work

SMALL = HSViTShape(channels=2, depth=2, groups=4)


class Noise(CIFAR10):
    """CIFAR-10's shape, with noise for images."""

    def train(self) -> Data:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(12, 3, 32, 32, generator=generator)
        return Data(inputs, torch.arange(12) % 10, torch.arange(12))

    def test(self) -> Data:
        return self.train()


def seeded(side: int) -> HSViT:
    """A network with statistics and biases that make every part matter."""
    generator = torch.Generator().manual_seed(0)
    network = SMALL.build(5, side)
    with torch.no_grad():
        for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
            if tensor.is_floating_point():
                tensor.normal_(0.0, 0.5, generator=generator)
            if name.endswith("running_var"):
                tensor.abs_().add_(0.5)
    return network.eval()


def convolved(own: Mapping[str, Tensor], maps: Tensor, at: str, stride: int) -> Tensor:
    for conv, norm in ((0, 1), (3, 4)):
        maps = F.conv2d(maps, own[f"{at}.{conv}.weight"], padding=1)
        mean, var, weight, bias = (
            own[f"{at}.{norm}.{kind}"].view(-1, 1, 1) for kind in ("running_mean", "running_var", "weight", "bias")
        )
        maps = F.relu((maps - mean) / (var + 1e-5).sqrt() * weight + bias)
    return F.relu(F.max_pool2d(maps, 3, stride, 1)) if stride > 1 else maps


def attended(own: Mapping[str, Tensor], x: Tensor, at: str) -> Tensor:
    """x + MHSA(LN(x)), one head and one sequence ``(length, 64)`` after the other."""
    weight, bias = own[f"{at}.qkv.weight"], own[f"{at}.qkv.bias"]
    y = F.layer_norm(x, (64,), own[f"{at}.norm.weight"], own[f"{at}.norm.bias"])
    heads = []
    for head in range(8):
        rows = [slice(64 * part + 8 * head, 64 * part + 8 * head + 8) for part in range(3)]
        query, key, value = (y @ weight[row].T + bias[row] for row in rows)
        heads.append((query @ key.T / math.sqrt(8)).softmax(1) @ value)
    return x + torch.cat(heads, 1) @ own[f"{at}.out.weight"].T + own[f"{at}.out.bias"]


def written_out(own: Mapping[str, Tensor], image: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The logits of one image from the description, one group at a time."""
    maps = image[None]
    for i, stride in enumerate(strides):
        maps = convolved(own, maps, f"blocks.{i}", stride)
    assert maps.shape == (1, 8, 8, 8)
    tokens = F.relu(maps[0].flatten(1) @ own["project.weight"].T + own["project.bias"])
    total = torch.zeros(64)
    for group in range(4):
        at = f"groups.{group}"
        x = torch.cat([own[f"{at}.answer"][0], tokens[2 * group : 2 * group + 2]]) + own[f"{at}.positions"][0]
        for block in range(2):
            x = attended(own, x, f"{at}.stack.{block}")
        total += x[0]
    feature = F.layer_norm(total / 4, (64,), own["norm.weight"], own["norm.bias"])
    return feature @ own["head.weight"].T + own["head.bias"]


@pytest.mark.parametrize(("side", "strides"), [(64, (2, 2, 2, 1)), (32, (2, 1, 2, 1))])
def test_the_network_is_the_one_described(side: int, strides: tuple[int, ...]) -> None:
    network = seeded(side)
    images = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = torch.stack([written_out(network.state_dict(), image, strides) for image in images])
        torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-4)


def test_the_first_and_the_last_layer_are_the_first_convolution_and_the_head() -> None:
    network = SMALL.build(5, 32)
    names = list(params_of(network))
    assert names[0] == "blocks.0.0.weight"
    assert names[-2:] == ["head.weight", "head.bias"]
    seen: list[Tensor] = []
    network.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    assert seen[0].shape == (2, 64)


def test_each_attention_block_is_a_layer_of_its_own() -> None:
    layers = Noise(network=SMALL).layers
    assert next(iter(layers)) == "blocks.0.0"
    for group in range(4):
        assert layers[f"groups.{group}"] == (f"groups.{group}.answer", f"groups.{group}.positions")
        assert f"groups.{group}.stack.1.qkv" in layers


def test_dropout_draws_from_the_global_generator_while_training_only() -> None:
    assert Noise(network=SMALL).draws
    assert not Noise(network=HSViTShape(2, 2, 4, dropout=0.0)).draws
    network, images = SMALL.build(5, 32), Noise().test().inputs
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        first = network.train()(images)
        assert not torch.equal(first, network(images))
        assert torch.equal(network.eval()(images), network(images))


def test_tokens_and_attention_weights_are_both_dropped() -> None:
    network, images = SMALL.build(5, 32).eval(), Noise().test().inputs
    parts = [network.dropout, *(block for group in network.groups for block in group.stack)]  # type: ignore[union-attr]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for part in (parts[0], parts[1], parts[-1]):
            part.training = True
            assert not torch.equal(network(images), network(images))
            part.training = False


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_number_of_workers_changes_no_bit(dropout: float) -> None:
    task = Noise(network=HSViTShape(2, 1, 2, dropout))
    state, data = task.init(0), task.train()
    clients = [Client(f"c{k}", data.take(torch.arange(4 * k, 4 * k + 4)), task) for k in range(3)]
    digests = set()
    for workers in (1, 2):
        with InProcess(clients, workers=workers) as federation:
            work = Work("train", state.params, state.buffers, options=Local(batch_size=2).options(0), seed=3)
            replies = list(federation.run(work))
        assert not any(reply.error for reply in replies)
        digests.add(tuple(tree.digest(reply.tensors) for reply in replies))
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"channels": 0}, "channels must be at least 1"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"groups": 0}, "groups must be at least 1"),
        ({"channels": 2, "groups": 3}, "3 groups cannot share 8 tokens out evenly"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ({"dropout": float("nan")}, r"dropout must lie in \[0, 1\)"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(fields: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        HSViTShape(**fields)  # type: ignore[arg-type]


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="64x64 or 32x32, got 28x28"):
        SMALL.build(10, 28)
