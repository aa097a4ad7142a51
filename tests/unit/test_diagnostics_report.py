"""Diagnostics as tables and in the report."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from letheon.diagnostics.measures import Suite
from letheon.diagnostics.suite import diagnose, keep
from letheon.experiment import Experiment
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.negate import NoT
from letheon.pipeline import Run, run
from letheon.report import diagrams
from letheon.report.diagnostics import Diagnostics, as_text, diagnostics_of, grids, limits
from letheon.report.html import html, write_report
from letheon.report.model import report_of
from letheon.report.words import DOES_NOT_SHOW
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.training import Local

EXPERIMENT = Experiment(
    task=Digits(),
    method=FineTuning(rounds=1),
    compare=(NoT(rounds=1),),
    clients=4,
    request=Target(min_forget=50, trigger=Trigger(size=2, margin=0)),
    local=Local(lr=0.05),
    train_rounds=3,
    continue_rounds=2,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(EXPERIMENT, tmp_path_factory.mktemp("run"), workers=1)


@pytest.fixture(scope="module")
def told(trained: Run) -> Diagnostics:
    suite = Suite(rollback_rounds=2, recovery_rounds=2, relearn_rounds=2, points=3, samples=60)
    keep(trained, diagnose(trained, suite=suite, workers=1))
    found = diagnostics_of(trained)
    assert found is not None
    return found


def changed(told: Diagnostics, section: str, label: str, **fields: Any) -> Diagnostics:
    found = copy.deepcopy(dict(told.found))
    found["sections"][section]["rows"][label].update(fields)
    return replace(told, found=found)


def cell(told: Diagnostics, label: str, column: str) -> tuple[str, str]:
    for grid in grids(told):
        if column in grid.columns:
            cells = dict(grid.lines)[label]
            found = cells[grid.columns.index(column) - 1]
            return found.value, found.interval
    raise AssertionError(column)


def printed(told: Diagnostics) -> str:
    console = Console(width=160, record=True, color_system=None)
    with console.capture() as captured:
        for table in as_text(told):
            console.print(table)
    return captured.get()


def test_a_cell_has_its_value_and_its_interval(told: Diagnostics) -> None:
    row = changed(told, "membership", "retrain", auc=0.5, auc_low=0.25, auc_high=0.75)
    assert cell(row, "retrain", "MIA AUC") == ("0.500", "[0.250, 0.750]")
    row = changed(told, "rollback", "retrain", rt=-0.1234, rt_low=-0.2, rt_high=0.1)
    assert cell(row, "retrain", "RT") == ("-0.123", "[-0.200, +0.100]")


def test_what_did_not_return_within_the_limit_is_told_as_more_than_it(told: Diagnostics) -> None:
    reason = "more than 2 rounds: KR reaches 7.0 %"
    row = changed(told, "connectivity", "not", recovery_rounds=None, recovery_rounds_reason=reason, course=[0, 3, 7])
    assert cell(row, "not", "recovers in rounds") == ("> 2", "")
    assert f"not: recovers in rounds undefined, {reason}." in printed(row)
    open_ended = changed(told, "connectivity", "not", recovery_rounds=2.0, recovery_rounds_low=1.0)
    open_ended = changed(open_ended, "connectivity", "not", recovery_rounds_high=None, recovery_rounds_reason=None)
    assert cell(open_ended, "not", "recovers in rounds") == ("2", "[1, …]")


def test_what_is_undefined_is_a_dash_with_its_reason_under_the_table(told: Diagnostics) -> None:
    assert cell(told, "origin", "RT") == cell(told, "detach", "RT") == ("–", "")
    assert cell(told, "untrained", "FD") == ("–", "")
    text = printed(told)
    assert "origin, detach: RT undefined, the unlearned model is the original model: there is no way back." in text
    gone = changed(told, "features", "not", undefined="collapsed: gone")
    assert cell(gone, "not", "FD") == ("–", "")
    assert "not: FD undefined, collapsed: gone." in printed(gone)


def test_rounds_that_came_out_otherwise_are_told(told: Diagnostics) -> None:
    assert "did not come out" not in printed(told)
    other = changed(told, "rollback", "not", redriven=False, differs_in_round=2)
    assert "not: round 2 of continued training did not come out as in the run" in printed(other)


def test_only_what_was_measured_has_columns(trained: Run, told: Diagnostics) -> None:
    some = diagnostics_of(trained, ["rollback", "probe"])
    assert some is not None
    names = [name for grid in grids(some) for name in grid.columns]
    assert names == ["model", "RT", "model", "probe accuracy %", "probe AUC"]


def test_a_report_without_diagnostics_does_not_speak_of_them(trained: Run, tmp_path: Path) -> None:
    page = html(report_of(trained))
    assert "<h2>Diagnostics</h2>" not in page
    assert diagnostics_of(replace(trained, folder=tmp_path)) is None
    assert limits(None) == DOES_NOT_SHOW


def test_a_report_shows_diagnostics_when_the_file_is_there(trained: Run, told: Diagnostics, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(trained, path)
    page = path.read_text()
    assert "<h2>Diagnostics</h2>" in page
    for word in ("loss on the straight path", "Penultimate features of all models", "RT by layer", "common axes"):
        assert word in page
    assert "No membership inference" not in page
    assert "noise as far as fine-tuning" in page
    write_report(trained, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == path.read_bytes()


def test_every_diagnostic_is_drawn_from_its_own_numbers(trained: Run, told: Diagnostics) -> None:
    curves = report_of(trained).curves
    drawings: dict[str, Callable[[Diagnostics], str | None]] = {
        "courses": lambda told: diagrams.courses(told, curves),
        "own": lambda told: diagrams.clouds(told, "own"),
        "common": lambda told: diagrams.clouds(told, "common"),
        "dots": diagrams.dots,
        "layers": diagrams.layers,
    }
    points = {"forget": [[0.0, 1.0]], "retained": [[2.0, 3.0]]}
    tendencies = {layer: [0.5, -0.5] for layer in told.rows("rollback")["not"]["layers"]}
    altered: list[tuple[str, str, dict[str, Any]]] = [
        ("courses", "rollback", {"rounds": [0.5, -0.5]}),
        ("courses", "connectivity", {"losses_recalibrated": {"forget": [1.0, 2.0, 3.0]}}),
        ("courses", "relearning", {"courses": {"rounds": [1.0, 99.0], "steps": [1.0]}}),
        ("courses", "relearning", {"courses": {"rounds": [1.0], "steps": [1.0, 99.0]}}),
        ("own", "features", {"points_own": points}),
        ("common", "features", {"points_common": points}),
        ("dots", "features", {"fd_relative": 0.123}),
        ("dots", "membership", {"auc": 0.123}),
        ("dots", "membership", {"tpr_at_1": 12.3, "tpr_at_1_low": 1.0, "tpr_at_1_high": 99.0}),
        ("dots", "probe", {"accuracy": 12.3}),
        ("layers", "rollback", {"layers": tendencies}),
    ]
    before = {name: draw(told) for name, draw in drawings.items()}
    for drawing, section, fields in altered:
        other = changed(told, section, "not", **fields)
        differing = {name for name, draw in drawings.items() if draw(other) != before[name]}
        assert differing == {drawing}, (section, fields)


def test_the_barrier_with_fresh_batch_norm_has_a_column_where_there_is_one(told: Diagnostics) -> None:
    assert "fresh BatchNorm" not in [name for grid in grids(told) for name in grid.columns]
    ends = {"barrier_recalibrated_low": 0.0, "barrier_recalibrated_high": 1.0, "barrier_recalibrated_reason": None}
    assert cell(changed(told, "connectivity", "not", barrier_recalibrated=0.25, **ends), "not", "fresh BatchNorm") == (
        "0.250",
        "[0.000, 1.000]",
    )


def test_a_page_stands_any_set_of_sections_and_rows_without_numbers(trained: Run, told: Diagnostics) -> None:
    report = report_of(trained)
    for name in told.found["sections"]:
        some = replace(told, found={**told.found, "sections": {name: told.found["sections"][name]}})
        assert "<h2>Diagnostics</h2>" in html(report, some)
    broken = copy.deepcopy(dict(told.found))
    for section in broken["sections"].values():
        for label in section["rows"]:
            section["rows"][label] = {"undefined": "collapsed: <b>gone</b>"}
    page = html(report, replace(told, found=broken))
    assert "&lt;b&gt;gone&lt;/b&gt;" in page
    assert "<b>gone</b>" not in page


def test_the_limits_name_the_attacks_that_were_run_and_those_that_were_not(told: Diagnostics) -> None:
    assert [item.startswith("No membership inference") for item in DOES_NOT_SHOW].count(True) == 1
    sections = told.found["sections"]

    def said(*names: str) -> str:
        some = replace(told, found={**told.found, "sections": {name: sections[name] for name in names}})
        (own,) = [item for item in limits(some) if item not in DOES_NOT_SHOW] or [""]
        return own

    assert said("rollback", "features") == ""
    assert said("membership").startswith("Of attacks, membership inference was run")
    assert "Not run: relearning, a linear probe and reconstruction." in said("membership")
    everything = said("membership", "relearning", "probe")
    assert "membership inference, relearning and a linear probe were run" in everything
    assert "Not run: reconstruction." in everything
