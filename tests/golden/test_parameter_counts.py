"""Published parameter counts."""

from __future__ import annotations

import pytest
import torch

from letheon import tree
from letheon.data import Data
from letheon.models.hsvit import HSViTShape
from letheon.tasks.cifar import CIFAR10
from letheon.tasks.tiny_imagenet import TinyImageNet
from letheon.tasks.vision import MNIST, Digits, MNIST5k


def test_lenet5_has_44426_parameters() -> None:
    assert tree.count(MNIST().init(0).params) == 44_426
    assert tree.count(MNIST5k().init(0).params) == 44_426


def test_lenet5_costs_281640_multiply_accumulates_a_sample() -> None:
    convolutions = 6 * 24 * 24 * 25 + 16 * 8 * 8 * 150
    linear = 256 * 120 + 120 * 84 + 84 * 10
    assert MNIST5k().flops == 2 * (convolutions + linear) == 2 * 281_640


def test_the_digits_perceptron_has_2410_parameters_and_with_batchnorm_65_buffer_scalars() -> None:
    assert tree.count(Digits().init(0).params) == 64 * 32 + 32 + 32 * 10 + 10 == 2410
    assert tree.count(Digits().init(0).buffers) == 0
    assert tree.count(Digits(norm=True).init(0).params) == 2410 + 64
    assert tree.count(Digits(norm=True).init(0).buffers) == 65


def blank(side: int) -> Data:
    """One sample: the counts depend on its shape alone."""
    return Data(torch.zeros(2, 3, side, side), torch.zeros(2, dtype=torch.int64), torch.arange(2))


class BlankCIFAR10(CIFAR10):
    """CIFAR-10's shape without its files."""

    def test(self) -> Data:
        return blank(32)


class BlankTinyImageNet(TinyImageNet):
    """Tiny-ImageNet's shape without its files."""

    def test(self) -> Data:
        return blank(64)


def test_resnet18_has_11173962_parameters_in_62_tensors_of_41_modules_and_9620_buffer_scalars() -> None:
    task = BlankCIFAR10()
    state = task.init(0)
    assert (tree.count(state.params), len(state.params), len(task.layers)) == (11_173_962, 62, 41)
    assert tree.count(state.buffers) == 9_620


def test_a_round_trip_of_resnet18_is_89391696_bytes() -> None:
    assert 2 * 4 * tree.count(BlankCIFAR10().init(0).params) == 89_391_696


def test_resnet18_costs_half_a_billion_multiply_accumulates_an_image() -> None:
    stages = [(64, 64, 32), (64, 128, 16), (128, 256, 8), (256, 512, 4)]
    convolutions = 27 * 64 * 32**2
    for channels, out, side in stages:
        convolutions += 9 * out * (channels + 3 * out) * side**2 + (channels * out * side**2 if channels != out else 0)
    assert BlankCIFAR10().flops == 2 * (convolutions + 512 * 10) == 2 * 555_422_720
    # The published 0.5565 billion count BatchNorm too, as two operations on each of its values.
    normalised = 64 * 32**2 + sum(out * side**2 * (5 if channels != out else 4) for channels, out, side in stages)
    assert (555_422_720 + 2 * normalised) / 1e9 == pytest.approx(0.5566, abs=1e-4)


def test_hsvit_has_11497224_parameters_on_tiny_imagenet_and_11484874_on_cifar10() -> None:
    state = BlankTinyImageNet().init(0)
    assert tree.count(state.params) == 11_497_224
    assert tree.count(BlankCIFAR10(network=HSViTShape()).init(0).params) == 11_484_874
    blocks = [tree.count({n: p for n, p in state.params.items() if n.startswith(f"blocks.{i}.")}) for i in range(4)]
    assert blocks == [151_424, 885_760, 3_540_992, 4_720_640]
    attention = {n: p for n, p in state.params.items() if ".stack." in n}
    assert tree.count(attention) == 16 * 8 * 16_768


def test_hsvit_costs_2821_million_multiply_accumulates_an_image() -> None:
    sides, outs = (64, 32, 16, 8), (128, 256, 512, 512)
    convolutions = sum(
        9 * out * (before + out) * side**2 for before, out, side in zip((3, *outs), outs, sides, strict=False)
    )
    projections = 512 * 64 * 64 + 16 * 8 * 33 * 4 * 64 * 64 + 64 * 200
    attention = 16 * 8 * 2 * 33 * 33 * 64
    assert BlankTinyImageNet().flops == 2 * (convolutions + projections + attention) == 2 * 2_821_222_912
