"""The published numbers, as data: consistent with each other, with the registry and with what is run."""

from __future__ import annotations

from typing import Any

import pytest

from letheon import registry
from letheon.errors import ConfigError
from letheon.metrics.resurfacing import resurfacing_rate, unsuccessful
from letheon.reproduce.published import Claim, published
from letheon.reproduce.targets import targets

Cells = dict[str, Any]


def printed_rates() -> list[tuple[str, str, str]]:
    """Every cell of a column RR but Retrain's."""
    return [
        (table, row, method)
        for table, found in published().items()
        for row, lines in found.values.items()
        for method, cells in lines.items()
        if "RR" in cells and method != "retrain"
    ]


def lines(table: str, row: str) -> dict[str, Cells]:
    return {method: dict(cells) for method, cells in published()[table].values[row].items()}


@pytest.mark.parametrize(("table", "row", "method"), printed_rates())
def test_every_printed_rate_follows_from_the_printed_retention(table: str, row: str, method: str) -> None:
    found = lines(table, row)
    ours, origin, retrain = found[method], found["origin"], found["retrain"]
    if ours["RR"] == "UF":
        assert unsuccessful(ours["U-KR"], origin["U-KR"], retrain["U-KR"])
    else:
        rate = resurfacing_rate(ours["CT-KR"], origin["U-KR"], retrain["CT-KR"])
        assert f"{rate:.2f}" == f"{ours['RR']:.2f}"
        assert unsuccessful(ours["U-KR"], origin["U-KR"], retrain["U-KR"]) is None


def test_twelve_rates_are_above_zero_and_one_is_a_mark() -> None:
    rates = [lines(table, row)[method]["RR"] for table, row, method in printed_rates()]
    assert sum(rate == "UF" for rate in rates) == 1
    assert sum(rate != "UF" and rate > 0 for rate in rates) == 12


@pytest.mark.parametrize("table", list(published()))
def test_rows_and_claims_speak_of_known_methods_rows_and_quantities(table: str) -> None:
    found = published()[table]
    language = registry.names("method", language=True)
    known = {*registry.names("method"), *(f"{name}+cop" for name in language), "origin"}
    named = {method for row in found.values.values() for method in row}
    named |= {e for c in found.claims for e in (*c.low, *c.high, *c.near, c.to) if isinstance(e, str) and e}
    assert named <= known
    assert found.deduced.keys() <= named
    if table in targets():
        assert {row for claim in found.claims for row in claim.rows} <= targets()[table].rows.keys()
        columns = {column for row in found.values.values() for cells in row.values() for column in cells}
        assert not columns or columns == targets()[table].shows.keys()


def test_origin_and_retrain_are_in_every_table() -> None:
    for table in ("lethe-table3", "lethe-table4", "lethe-table5", "lethe-table6"):
        for row in published()[table].values:
            assert {"origin", "retrain", "lethe"} <= lines(table, row).keys()
            assert set(lines(table, row)["origin"]) == set(lines(table, row)["lethe"]) - {"CT-KR", "RR"}


def test_costs_of_methods_lie_below_those_of_retraining() -> None:
    for table in ("lethe-table4", "lethe-table5"):
        found = lines(table, "resnet18")
        for cost in ("CM", "FLOPs"):
            assert found["fedau"][cost] < found["lethe"][cost] < found["not"][cost] < found["retrain"][cost]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"low": ("lethe",)},
        {"near": ("lethe",), "to": "retrain"},
        {"near": ("lethe",), "within": 1.0},
        {"low": ("lethe",), "high": ("not",), "near": ("lethe",), "to": 0.0, "within": 1.0},
    ],
)
def test_a_claim_is_either_an_order_or_a_nearness(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="low and high, or near, to and within"):
        Claim("a sentence", "rr", **fields)


def test_a_claim_without_rows_is_about_all_of_them() -> None:
    found = published()["lethe-figure4"]
    assert len(found.claims_of("hsvit")) == 2
    assert len(found.claims_of("lenet5")) == 2
    assert found.claims_of("hsvit") != found.claims_of("lenet5")
