"""COP's tables and figures: printed values, what is run for them, and what is made of a finished stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from letheon.errors import ConfigError
from letheon.methods.descent import Descent
from letheon.metrics.measurement import Undefined
from letheon.reproduce import streams
from letheon.reproduce.comparison import compared
from letheon.reproduce.measured import Measured, Value
from letheon.reproduce.ordering import check
from letheon.reproduce.page import as_markdown
from letheon.reproduce.published import published
from letheon.reproduce.quantities import QUANTITIES
from letheon.reproduce.running import check_device, experiment_of
from letheon.reproduce.targets import Recipe, Scale, recipe, target, targets
from letheon.stream.experiment import Stream

COP = [found for found in targets().values() if found.id.startswith("cop")]
TABLES = {"cop-table1": "llama-1b", "cop-table2": "llama-3b", "cop-table3": "llama-3b"}
SCALES: tuple[Scale, ...] = ("small", "paper")


def stream(name: str, scale: Scale, *sets: str) -> Stream:
    found = target(name)
    ((row, experiment),) = found.rows.items()
    made = experiment_of(found, row, scale, recipe=recipe(experiment, scale), sets=sets)
    assert isinstance(made, Stream)
    return made


def printed(table: str) -> dict[str, dict[str, Value]]:
    """The printed numbers as quantities, by method."""
    found: dict[str, dict[str, Value]] = {}
    for method, cells in published()[table].values[TABLES[table]].items():
        values: dict[str, Any] = {column.lower().replace(" ", "_"): value for column, value in cells.items()}
        utility = [values[f"mu_{k}"] for k in range(1, 6)]
        found[method] = values | {"mu_range": max(utility) - min(utility), "mu_fall": utility[0] - utility[-1]}
    return found


@pytest.mark.parametrize(
    ("table", "method", "column", "value"),
    [
        ("cop-table1", "origin", "FR 1", 0.92),
        ("cop-table1", "ga", "MU 5", 0.159),
        ("cop-table1", "npo+cop", "EM 5", 0.56),
        ("cop-table2", "ga+cop", "ES 1", 0.24),
        ("cop-table2", "npo", "FR 3", 0.24),
        ("cop-table3", "ga", "MU 4", 0.004),
        ("cop-table3", "npo+cop", "FP 5", 0.00),
        ("cop-table3", "origin", "EM 5", 0.66),
    ],
)
def test_values_are_as_printed(table: str, method: str, column: str, value: float) -> None:
    assert published()[table].values[TABLES[table]][method][column] == value


@pytest.mark.parametrize("table", TABLES)
def test_five_methods_with_twenty_numbers_each(table: str) -> None:
    rows = published()[table].values[TABLES[table]]
    assert list(rows) == ["origin", "ga", "ga+cop", "npo", "npo+cop"]
    assert {len(cells) for cells in rows.values()} == {20}
    assert len({rows["origin"][f"MU {k}"] for k in range(1, 6)}) == 1  # Origin's columns differ, Origin does not


@pytest.mark.parametrize("table", TABLES)
def test_no_sentence_of_the_paper_contradicts_its_numbers(table: str) -> None:
    values = printed(table)
    found = [
        check(claim, {method: row[claim.quantity] for method, row in values.items()}, QUANTITIES[claim.quantity])
        for claim in published()[table].claims
    ]
    decided = [one for one in found if "not run" not in one.reason]
    assert not [one for one in found if one.status == "fails"]
    assert len([one for one in decided if one.status == "holds"]) >= 3
    # NPO on 3B after request 3: 0.592 against 0.593 is no difference by our measure.
    assert [one.reason[:17] for one in decided if one.status == "open"] in ([], ["too close to tell"])


def test_the_figure_of_table_1_agrees_with_its_numbers() -> None:
    values = printed("cop-table1")
    for claim in published()["cop-fig2"].claims:
        found = check(claim, {m: row[claim.quantity] for m, row in values.items()}, QUANTITIES[claim.quantity])
        assert found.status == ("holds" if claim.high[0] in values else "open")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [found.id for found in COP])
def test_a_base_and_its_variant_share_every_setting(name: str, scale: Scale) -> None:
    methods = [method for method in stream(name, scale).methods.values() if isinstance(method, Descent)]
    assert {method.name for method in methods} == {"ga", "npo", "simnpo", "idk"}
    for base in (method for method in methods if method.cop is None):
        variants = [m for m in methods if m.name == base.name and m.cop is not None]
        assert variants
        for variant in variants:
            assert replace(variant, cop=None) == base


def test_settings_are_those_of_the_paper_as_far_as_they_are_known() -> None:
    one, three, rwku = (stream(name, "paper") for name in TABLES)
    assert "1B" in str(one.texts.language.model)
    assert "3B" in str(three.texts.language.model)
    assert "3B" in str(rwku.texts.language.model)
    assert (one.task.name, three.task.name, rwku.task.name) == ("tofu", "tofu", "rwku")
    for found in (one, three):
        assert [len(request.samples) for request in found.requests] == [40] * 5
        assert found.texts.language.template == "chat"
    assert {found.device for found in (one, three, rwku)} == {"cuda"}
    assert stream("cop-table1", "small").digest == stream("cop-fig2", "small").digest
    assert stream("cop-table3", "small").digest == stream("cop-fig3", "small").digest


@pytest.mark.parametrize("scale", SCALES)
def test_the_sweep_differs_in_its_caps_only(scale: Scale) -> None:
    sweep, table = stream("cop-fig4", scale), stream("cop-table1", scale)
    assert sweep.task == table.task
    caps = {m.cop.rank for m in sweep.methods.values() if isinstance(m, Descent) and m.cop}
    assert caps == ({2, 8, 32} if scale == "small" else {8, 32, 128, 512})
    assert len(sweep.methods) == 4 * (1 + len(caps))


@pytest.mark.parametrize("found", COP, ids=lambda found: found.id)
def test_the_paper_scale_says_that_it_needs_a_gpu(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (experiment,) = found.rows.values()
    assert any("needs a GPU" in text for text in recipe(experiment, "paper").departures)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="needs a GPU"):
        check_device(stream(found.id, "paper"))
    check_device(stream(found.id, "small"))
    check_device(stream(found.id, "paper", "device=cpu"))


def row(k: int, mu: float | None, em: float, **more: Any) -> dict[str, Any]:
    scores = {"rouge": em + 10, "probability": em + 20, "es_openunlearning": em - 10}
    return {"requests": k, "mu": mu, "em": em, **scores, **more}


def test_rows_of_a_stream_become_shares_after_each_request() -> None:
    found = dict(streams._values([row(1, 50.0, 60.0), row(2, 20.0, 40.0), row(3, 30.0, 20.0)]))
    assert (found["mu_1"], found["em_2"], found["fr_2"], found["fp_2"], found["es_3"]) == (0.5, 0.4, 0.5, 0.6, 0.1)
    assert found["mu_range"] == pytest.approx(0.3)
    assert found["mu_fall"] == pytest.approx(0.2)


def test_a_model_without_a_utility_has_neither_range_nor_fall() -> None:
    found = dict(streams._values([row(1, 50.0, 60.0), row(2, None, 40.0, diverged="loss")]))
    for key in ("mu_2", "mu_range", "mu_fall"):
        assert found[key] == Undefined("the model collapsed", "collapsed")


def test_a_sweep_is_summed_up_by_its_ends_and_its_worst() -> None:
    values: dict[str, dict[str, Value]] = {
        label: {"mu_5": mu, "es_5": es}
        for label, mu, es in (("ga", 0.1, 0.03), ("small", 0.2, 0.2), ("middle", 0.5, 0.4), ("large", 0.4, 0.1))
    }
    caps = {0.0: "ga", 2.0: "small", 8.0: "middle", 32.0: "large"}
    found = streams._by_rank(values, caps, 5)
    assert found["rank_gain"] == pytest.approx(0.2)
    assert found["rank_es"] == 0.4
    values["large"]["mu_5"] = Undefined("the model collapsed", "collapsed")
    assert isinstance(streams._by_rank(values, caps, 5)["rank_gain"], Undefined)


@pytest.fixture
def measured() -> Measured:
    """The paper's own numbers, as if they had been measured."""
    values = {method: dict(found) for method, found in printed("cop-table1").items()}
    return Measured(0, "run0", "", frozenset(), n_forget=40, n_test=60, values=values, series=())


def test_twenty_columns_are_printed_in_five_tables(measured: Measured) -> None:
    found = compared(
        target("cop-table1"), "llama-1b", "paper", recipe=Recipe({}, (), {}), changes=(), found=[measured]
    )
    page = as_markdown(found)
    assert page.startswith("## Preserving Utility in Continual LLM Unlearning via Orthogonal Projections, Table 1, row")
    assert page.count("| method |") == 5
    assert "| method | FR 5 | ES 5 | EM 5 | MU 5 |" in page
    assert "| ga+cop | 0.34 / 0.340 (±0.000) | 0.07 / 0.070 (±0.000) | 0.63 / 0.630 (±0.000) | 0.461 / 0.461" in page
    assert "FR 1, FR 2, FR 3, FR 4, FR 5: ROUGE-L recall" in page
    assert {order.status for order in found.orders.values()} <= {"agrees", "undefined"}


def test_a_share_is_too_close_by_hundredths(measured: Measured) -> None:
    quantity = QUANTITIES["mu_5"]
    assert quantity.order(0.50, 0.509) == 0
    assert quantity.order(0.50, 0.52) == -1
    assert QUANTITIES["em_5"].order(0.50, 0.519) == 0
