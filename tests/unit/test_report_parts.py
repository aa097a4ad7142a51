"""Parts of the report on their own: axis, alignment log, other scopes, the way back to TOML, numbers in words."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from letheon import config
from letheon.experiment import Experiment
from letheon.methods.lethe import Lethe
from letheon.methods.negate import NoT
from letheon.methods.rectify import COLUMNS
from letheon.pipeline import Run, run
from letheon.report import plot
from letheon.report.model import Report, report_of
from letheon.report.toml import as_toml
from letheon.report.words import amount, shortened, size, stretches
from letheon.results import Results
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.training import Local

HOSTILE = """<b>"1"</b>\'&{{ 7 * 7 }} # [x] = \\ \n \x7f \u2028 \U0001f600"""
SMALL = Experiment(
    task=Digits(),
    method=Lethe(rounds=2, restore_rounds=2),
    clients=3,
    local=Local(lr=0.05),
    train_rounds=1,
    continue_rounds=1,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(replace(SMALL, compare=(NoT(rounds=2),)), tmp_path_factory.mktemp("trained"), workers=1)


@pytest.fixture(scope="module")
def trained_report(trained: Run) -> Report:
    return report_of(trained)


def test_a_run_in_which_everything_diverged_at_once_has_its_figures(tmp_path: Path) -> None:
    done = run(replace(SMALL, method=NoT(rounds=1), local=Local(lr=1e30, momentum=0.9)), tmp_path, workers=1)
    report = report_of(done)
    assert report.curves.request == 0
    assert plot.life(report, "kr").startswith("<svg")  # and warns of nothing


def test_the_round_axis_lays_training_unlearning_and_continuation_end_to_end(trained_report: Report) -> None:
    curves = trained_report.curves
    lines = {line.label: line for line in curves.lines}
    assert (curves.request, curves.resumed, curves.end) == (1, 6, 7)
    assert [dot.x for dot in lines["Origin"].training] == [0, 1]
    assert [dot.x for dot in lines["retrain"].training] == [1]
    assert [dot.x for dot in lines["lethe"].unlearning] == [1, 2, 3, 4, 5, 6]
    assert [dot.x for dot in lines["not"].unlearning] == [1, 2, 3, 4]
    assert [dot.x for dot in lines["not"].continued] == [6, 7]
    assert lines["lethe"].unlearning[0].kr == lines["Origin"].training[-1].kr
    stretches = [(stretch.phase, stretch.start, stretch.end) for stretch in curves.stretches]
    assert stretches == [("amplify", 1, 2), ("rectify", 2, 4), ("restore", 4, 6)]


def test_the_alignment_data_are_the_log(trained: Run, trained_report: Report) -> None:
    (log,) = trained_report.alignments
    rounds = trained.unlearned["lethe"].logs["alignment"]
    assert (log.label, log.ascent) == ("lethe", tuple(trained.unlearned["lethe"].logs["amplified"][0]))
    assert log.layers == tuple(trained.origin.state.params)
    assert len(log.cells) == len(rounds) * len(log.layers) == 2 * len(log.layers)
    for cell in log.cells:
        s, retain, forget, lower, upper, gamma, *_ = rounds[cell.round - 1][cell.layer]
        assert (cell.s, cell.lower, cell.gamma, cell.upper) == (s, lower, gamma, upper)
        assert cell.cosine * retain * forget == pytest.approx(s)
        assert (cell.branch == "negate") == (s <= 0)
        assert log.scales[cell.round - 1] == rounds[cell.round - 1][cell.layer][COLUMNS.index("scale")]


def test_figures_leave_the_settings_of_matplotlib_alone(trained_report: Report) -> None:
    before = dict(matplotlib.rcParams)
    plot.continued(trained_report)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("scope", "said"), [("class", "class level, class 0"), ("samples", "samples level, 72 samples")]
)
def test_the_other_scopes_have_reports_too(tmp_path: Path, scope: Any, said: str) -> None:
    target = Target(scope=scope, fraction=0.05, trigger=Trigger(size=2, margin=0))
    done = run(replace(SMALL, request=target), tmp_path, workers=1)
    report = report_of(done)
    assert said in next(fact.value for fact in report.population if fact.name == "Request")
    last, point = report.curves.lines[0].training[-1], done.origin.points[-1]
    assert last.mu == Results(done).mu(point).value
    assert (abs(last.mu - point.mu) < 1e-9) == (scope == "samples")  # class level: over the retained classes
    assert "<svg" in plot.life(report, "mu")


def test_any_experiment_can_be_written_as_toml_and_read_again() -> None:
    compare = (Lethe(adapter=None, search=None), NoT(tensors=("a b", "head.weight")))
    hostile = replace(SMALL, title=HOSTILE, compare=compare)
    for experiment in (SMALL, hostile):
        assert config.build(Experiment, tomllib.loads(as_toml(config.plain(experiment))), "report") == experiment


def test_numbers_are_written_with_sensible_digits() -> None:
    assert [amount(x) for x in (0, 8, 0.0123, 0.456, 2.5, 26.68, 504.6, 44426)] == [
        "0", "8", "0.012", "0.46", "2.50", "26.7", "505", "44\u202f426"
    ]  # fmt: skip
    assert [size(x) for x in (12, 9640, 26_722_000, 3_100_000_000)] == ["12 B", "9.64 kB", "26.7 MB", "3.10 GB"]
    assert stretches([7, 1, 2, 3, 3, 9]) == "1–3, 7, 9"
    assert shortened(["a" * 40, "a" * 50, "b"], most=5) == ["aaaa… (1)", "aaaa… (2)", "b"]
