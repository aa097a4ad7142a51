"""The comparison table: what is averaged, what is said about it, and how it is written down."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from letheon.experiment import Experiment
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.lethe import Lethe
from letheon.pipeline import run
from letheon.report.model import settings
from letheon.report.table import as_csv, as_markdown, as_text, compare_rows, sheet, summary
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.training import Local

Row = dict[str, Any]
MEASURED = ("mu", "mu_retrain", "kr_origin", "kr_retrain", "u_kr", "ct_kr_max", "ct_kr_mean", "ct_kr_last", "rr")
PROMISED = {
    "method", "seed", "scope", "n_forget", "rr_status", "rr_reason",
    "rounds", "bytes_up", "bytes_down", "flops", "seconds",
    *MEASURED, *(f"{name}_low" for name in MEASURED), *(f"{name}_high" for name in MEASURED),
}  # fmt: skip


EXPERIMENT = Experiment(
    task=Digits(),
    method=Lethe(rounds=1, restore_rounds=1),
    compare=(FineTuning(rounds=2),),
    clients=5,
    request=Target(min_forget=50, trigger=Trigger(size=2, margin=0)),
    local=Local(lr=0.05),
    train_rounds=2,
    continue_rounds=2,
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Of a real run, given twice."""
    done = run(EXPERIMENT, tmp_path_factory.mktemp("trained"), workers=1)
    return compare_rows([done, done])


def row(method: str = "lethe", *, seed: int = 0, **known: Any) -> Row:
    """A row whose numbers are known; RR is defined unless ``rr_status`` says otherwise."""
    base: Row = {"method": method, "seed": seed, "run": f"run{seed}", "setting": f"{method}-setting", "scope": "client"}
    base |= {"n_forget": 400, "n_test": 800, "rr_status": None, "rr_reason": None}
    base |= {"verdict": "pass", "verdict_reasons": [], "control": "fine-tuning"}
    for name in MEASURED:
        base |= {name: 1.0, f"{name}_low": 0.5, f"{name}_high": 2.0}
    base |= {"rounds": 9, "bytes_up": 1_000_000, "bytes_down": 500_000, "flops": 2e9, "seconds": 3.0}
    base |= known
    if base["rr_status"]:
        base |= {"rr": None, "rr_low": None, "rr_high": None}
    return base


def void(seed: int) -> Row:
    reason = "Origin retains 50.0 % of the data to forget"
    return row(seed=seed, rr_status="void", rr_reason=reason, verdict="void", verdict_reasons=[reason])


def printed(rows: list[Row], width: int) -> str:
    console = Console(width=width, file=StringIO(), force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(as_text(rows))
    return capture.get()


def plain(rows: list[Row], width: int) -> str:
    console = Console(width=width, file=StringIO())
    with console.capture() as capture:
        console.print(as_text(rows))
    return capture.get()


def test_there_is_one_object_for_each_run_and_method_with_the_promised_names(rows: list[Row]) -> None:
    assert [found["method"] for found in rows] == ["retrain", "lethe", "fine-tuning", "detach"] * 2
    assert all(found.keys() >= PROMISED | {"setting"} for found in rows)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_the_setting_is_the_same_for_every_seed_and_another_for_every_method() -> None:
    here = settings(EXPERIMENT)
    assert list(here) == ["retrain", "lethe", "fine-tuning", "detach"]
    assert len(set(here.values())) == 4
    assert settings(replace(EXPERIMENT, seed=7, title="other")) == here
    assert settings(replace(EXPERIMENT, compare=(), minimum=1))["lethe"] == here["lethe"]
    assert set(settings(replace(EXPERIMENT, train_rounds=3)).values()).isdisjoint(here.values())


def test_seeds_are_summarised_by_mean_minimum_maximum_and_count() -> None:
    rows = [row(seed=seed, mu=mu, rr=rr) for seed, mu, rr in ((0, 90.0, 1.0), (1, 96.0, 2.0), (2, 93.0, 6.0))]
    (found,) = summary(rows)
    assert found.ranges["mu"] == (93.0, 90.0, 96.0, 3)
    assert found.ranges["rr"] == (3.0, 1.0, 6.0, 3)
    (line,) = sheet(rows).lines
    assert line.cells[0] == "lethe (3 runs)"
    assert line.cells[1] == "93.0 [90.0, 96.0]"
    assert line.cells[4] == "3.0 [1.0, 6.0]"


def test_runs_without_a_resurfacing_rate_are_counted_and_not_averaged() -> None:
    rows = [row(seed=0, rr=2.0), row(seed=1, rr_status="uf", verdict="fail"), row(seed=2, rr=4.0)]
    (found,) = summary(rows)
    assert found.ranges["rr"] == (3.0, 2.0, 4.0, 2)
    assert found.rr_statuses == {"uf": 1}
    (line,) = sheet(rows).lines
    assert line.cells[4] == "3.0 [2.0, 4.0] (2 of 3 runs; UF 1)"
    assert line.cells[-1] == "fail 1/3; pass 2/3"
    assert not line.stands_out


def test_a_rate_that_no_run_has_shows_why() -> None:
    (line,) = sheet([row(seed=0, rr_status="uf"), row(seed=1, rr_status="collapsed")]).lines
    assert line.cells[4] == "collapsed 1; UF 1"


def test_the_same_run_given_twice_counts_once() -> None:
    (found,) = summary([row(seed=0, mu=90.0), row(seed=0, mu=90.0), row(seed=1, mu=92.0)])
    assert found.ranges["mu"] == (91.0, 90.0, 92.0, 2)


def test_rows_of_different_settings_are_never_averaged() -> None:
    lines = sheet([row(setting="aaaaaaaa", mu=90.0), row(seed=1, setting="bbbbbbbb", mu=80.0)]).lines
    assert [line.cells[:2] for line in lines] == [
        ("lethe · aaaaaa", "90.0 [0.5, 2.0]"),
        ("lethe · bbbbbb", "80.0 [0.5, 2.0]"),
    ]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_the_terminal_table_keeps_every_number_at_any_width(width: int) -> None:
    rows = [
        row("retrain", seconds=42.8),
        row(mu=96.625, mu_low=95.13, mu_high=97.67),
        row("not", rr_status="collapsed"),
    ]
    text = plain(rows, width)
    assert all(len(line) <= width for line in text.splitlines())
    for part in ("96.6", "[95.1,", "97.7]", "collapsed", "reference", "42.8", "pass", "GFLOP", "n = 400"):
        assert part in text


def test_the_table_of_a_run_that_ranks_makes_passing_methods_stand_out() -> None:
    rows = [row("retrain"), row("lethe"), row("puf", verdict="fail", verdict_reasons=["RR 5.14 % exceeds 5 %"])]
    assert [line.stands_out for line in sheet(rows).lines] == [False, True, False]
    assert "\x1b[1m" in printed(rows, 160).split("lethe")[0].splitlines()[-1]
    assert "puf: RR 5.14 % exceeds 5 %." in plain(rows, 160)


def test_a_void_run_prints_its_reasons_and_nothing_stands_out() -> None:
    rows = [void(0), row("not", seed=1)]
    assert [line.stands_out for line in sheet(rows).lines] == [False, False]
    text = plain(rows, 160)
    assert "Run run0 (seed 0) ranks no method: Origin retains 50.0 % of the data to forget." in text
    body = printed(rows, 160).split("lethe")[1]
    assert "\x1b[1m" not in body
    assert "**" not in as_markdown(rows)


def test_labels_are_text_and_not_markup() -> None:
    rows = [row("lethe([red]a[/red]=1, b=x|y, c=*z*)")]
    assert "[red]a[/red]=1" in plain(rows, 200)
    assert r"b=x\|y, c=\*z\*" in as_markdown(rows)


def test_the_csv_holds_every_field_and_leaves_the_undefined_empty(rows: list[Row]) -> None:
    rows = [*rows, void(3)]
    found = list(csv.DictReader(StringIO(as_csv(rows))))
    assert len(found) == len(rows)
    assert found[0].keys() >= PROMISED
    for written, original in zip(found, rows, strict=True):
        assert float(written["mu"]) == original["mu"]
        assert float(written["flops"]) == original["flops"]
        assert written["method"] == original["method"]
    assert found[-1]["rr"] == ""
    assert found[-1]["rr_status"] == "void"


def test_the_markdown_table_has_as_many_cells_in_every_line() -> None:
    lines = [line for line in as_markdown([row("retrain"), row(), row(seed=1)]).splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {11}
    assert lines[3].startswith("| **lethe (2 runs)** | 1.0 [1.0, 1.0] |")


def test_more_samples_earn_more_digits() -> None:
    (line,) = sheet([row(n_test=10_000, mu=97.591)]).lines
    assert line.cells[1] == "97.59 [0.50, 2.00]"
    assert line.cells[2] == "1.0 [0.5, 2.0]"


def test_a_run_without_a_control_says_so() -> None:
    assert not any("No fine-tuning" in note for note in sheet([row()]).notes)
    assert any("No fine-tuning" in note for note in sheet([row(control=None)]).notes)
