"""Published parameter counts."""

from __future__ import annotations

from letheon import tree
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
