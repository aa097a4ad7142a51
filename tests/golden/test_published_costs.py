"""The communication (CM) and FLOPs columns that the paper prints, to the last digit, from model shape and rounds.

Rounds, participants and samples are deduced from the columns (``published.toml``): the paper prints neither. What is
shown is that one small set of integers explains both columns of Tables IV and V at once: bytes in float32, both ways;
FLOPs of three forward passes a sample, over all of the training data that the row may see.

What is not shown, or does not come out:

- Table VI's FLOPs: the tokens of a round are not published. Its rows stand in the ratios that rounds and shares of the
  data give; the absolute value cannot be computed.
- What the printed numbers leave out: Lethe's adapter and forget stream, FedAU's auxiliary head. A metered run of ours
  counts them and therefore lies above the printed costs for the same rounds.
- Figures 5 and 6 (client level) print no numbers.
"""

from __future__ import annotations

import pytest

from letheon import tree
from letheon.metrics.cost import LENET5, LORA_PARAMETERS, RESNET18, communication, computation
from letheon.models.resnet import ResNet18Shape
from letheon.reproduce.published import Deduced, published
from letheon.tasks.base import params_of
from letheon.tasks.vision import MNIST5k

METHODS = ("origin", "retrain", "fedau", "not", "lethe")
TABLES = ("lethe-table4", "lethe-table5")
ROWS = [(table, method) for table in TABLES for method in METHODS]


def printed(table: str, method: str, column: str) -> str:
    """The cell as the paper prints it: two decimals and a power of ten."""
    (row,) = published()[table].values.values()
    return f"{row[method][column]:.2e}"


def deduced(table: str, method: str) -> Deduced:
    return published()[table].deduced[method]


@pytest.mark.parametrize(("table", "method"), ROWS)
def test_a_printed_communication_cost_is_reproduced(table: str, method: str) -> None:
    known = deduced(table, method)
    found = communication(RESNET18.parameters, rounds=known.rounds, participants=known.participants)
    assert f"{found:.2e}" == printed(table, method, "CM")


@pytest.mark.parametrize(("table", "method"), ROWS)
def test_a_printed_number_of_flops_is_reproduced(table: str, method: str) -> None:
    known = deduced(table, method)
    assert f"{computation(RESNET18.macs, rounds=known.rounds, samples=known.samples):.2e}" == printed(
        table, method, "FLOPs"
    )


@pytest.mark.parametrize(("table", "method"), ROWS)
def test_no_other_number_of_rounds_explains_the_printed_flops(table: str, method: str) -> None:
    known = deduced(table, method)
    fitting = [
        rounds
        for rounds in range(1, 200)
        if f"{computation(RESNET18.macs, rounds=rounds, samples=known.samples):.2e}" == printed(table, method, "FLOPs")
    ]
    assert fitting == [known.rounds]


@pytest.mark.parametrize("method", ["origin", "retrain", "npo", "simnpo", "lethe"])
def test_table_vi_prints_bytes_of_ten_clients_in_four_byte_numbers(method: str) -> None:
    known = deduced("lethe-table6", method)
    found = communication(LORA_PARAMETERS, rounds=known.rounds, participants=known.participants)
    assert f"{found:.2e}" == printed("lethe-table6", method, "CM")


def test_the_adapters_have_the_size_that_the_shape_of_llama_3_2_3b_gives() -> None:
    width, keys, inner, layers, rank = 3072, 1024, 8192, 28, 32
    attention = 2 * (width + width) + 2 * (width + keys)
    perceptron = 3 * (width + inner)
    assert layers * rank * (attention + perceptron) == LORA_PARAMETERS


def test_twenty_clients_in_two_byte_numbers_explain_table_vi_as_well() -> None:
    four = communication(LORA_PARAMETERS, rounds=7, participants=10)
    assert communication(LORA_PARAMETERS, rounds=7, participants=20, scalar_bytes=2) == four


def test_one_price_of_a_sample_explains_all_flops_of_table_vi_though_its_value_is_not_published() -> None:
    """Every printed cell bounds the FLOPs of a sample; all intervals overlap."""
    (row,) = published()["lethe-table6"].values.values()
    low, high = 0.0, float("inf")
    for method, known in published()["lethe-table6"].deduced.items():
        cell = float(row[method]["FLOPs"])
        half = 0.005 * 10 ** int(f"{cell:.2e}".partition("e")[2])
        work = known.rounds * known.samples
        low, high = max(low, (cell - half) / work), min(high, (cell + half) / work)
    assert 0.99 * high < low < high


def test_the_columns_tell_the_count_of_multiply_accumulates_to_a_third_of_a_per_cent() -> None:
    """Convolutions and linear layers alone fit; 0.5565 GMAC, which tools print that also count BatchNorm, does not."""
    fitting = [
        macs
        for macs in range(540_000_000, 570_000_000, 50_000)
        if all(
            f"{computation(macs, rounds=deduced(*row).rounds, samples=deduced(*row).samples):.2e}"
            == printed(*row, "FLOPs")
            for row in ROWS
        )
    ]
    assert fitting[0] == pytest.approx(555.0e6, abs=0.1e6)
    assert fitting[-1] == pytest.approx(556.2e6, abs=0.1e6)
    assert fitting[0] < RESNET18.macs < fitting[-1] < 556_500_000


def test_the_shapes_are_those_of_the_models() -> None:
    # Where two convolutions and a bias-free shortcut change the shape, the image has 1024, 256, 64 and 16 places.
    stem, first = 27 * 64 * 1024, 4 * 9 * 64 * 64 * 1024
    stages = [
        places * (9 * (half * out + 3 * out * out) + half * out)
        for half, out, places in ((64, 128, 256), (128, 256, 64), (256, 512, 16))
    ]
    assert RESNET18.macs == stem + first + sum(stages) + 512 * 10
    assert tree.count(params_of(ResNet18Shape().build(10, 32))) == RESNET18.parameters
    assert tree.count(MNIST5k().init(0).params) == LENET5.parameters
    assert MNIST5k().flops == 2 * LENET5.macs


def test_the_counted_flops_of_the_model_are_those_of_its_shape() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        ResNet18Shape().build(10, 32).eval()(torch.zeros(1, 3, 32, 32))
    assert counter.get_total_flops() == 2 * RESNET18.macs


def test_a_client_round_of_the_published_resnet_is_89391696_bytes() -> None:
    assert communication(RESNET18.parameters, rounds=1, participants=1) == 89_391_696
