"""The report: one file that needs nothing else, says what was measured, and claims no more."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from markupsafe import escape
from safetensors.torch import load_file

from letheon import config
from letheon.curve import Point, bits_of
from letheon.experiment import Experiment
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.lethe import Lethe
from letheon.methods.negate import NoT
from letheon.methods.rectify import COLUMNS
from letheon.phase import State
from letheon.pipeline import Run, run
from letheon.report import heat
from letheon.report.html import curves_csv, html, write_artefacts, write_report
from letheon.report.model import Report, report_of
from letheon.report.words import DOES_NOT_SHOW
from letheon.results import Results
from letheon.stage import Outcome
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.training import Local

FORBIDDEN = ("proves", "erased", "guaranteed", "certified")
HOSTILE = """<script>alert("1")</script>'&</pre>{{ 7 * 7 }} $x$ \\ \x7f"""
EXPERIMENT = Experiment(
    task=Digits(),
    method=Lethe(rounds=2, restore_rounds=2),
    compare=(FineTuning(rounds=3), NoT(rounds=2)),
    clients=5,
    request=Target(min_forget=50, trigger=Trigger(size=2, margin=0)),
    local=Local(lr=0.05),
    train_rounds=4,
    continue_rounds=3,
    title="a small run",
)
LEARNT = {"origin": 1.0, "retrain": 0.0, "lethe": 0.0, "fine-tuning": 0.9, "not": 0.0, "detach": 1.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(EXPERIMENT, tmp_path_factory.mktemp("trained"), workers=1)


@pytest.fixture(scope="module")
def ranked(trained: Run) -> Run:
    """The run, as if Lethe had passed and fine-tuning had kept the knowledge."""
    return known(trained, LEARNT)


@pytest.fixture(scope="module")
def void(trained: Run) -> Run:
    """The run, as if Origin had never learnt the data."""
    return known(trained, LEARNT | {"origin": 0.5})


@pytest.fixture(scope="module")
def odd(ranked: Run) -> Run:
    """The run with a hostile title, a client that was quarantined, history kept, Eq. (14) broken, and a divergence."""
    events = [{"phase": "restore", "round": t, "client": "c002", "reason": "<NaN>"} for t in (1, 2, 4)]
    rounds = [[list(row) for row in rows] for rows in ranked.unlearned["lethe"].logs["alignment"]]
    rounds[1][0][COLUMNS.index("holds")] = 0.0
    state = ranked.unlearned["not"].state
    kept = State(state.params, state.buffers, {"history/c001": torch.zeros(500)})
    of = changed(ranked, "lethe", events=events, logs={"alignment": rounds})
    of = changed(of, "not", state=kept, diverged="no finite reply")
    stopped = replace(of.continued["not"], points=of.continued["not"].points[:1])
    titled = replace(of.experiment, title=HOSTILE)
    return replace(of, experiment=titled, continued={**of.continued, "not": stopped})


@pytest.fixture(scope="module")
def odd_report(odd: Run) -> Report:
    return report_of(odd)


@pytest.fixture(scope="module")
def ranked_page(ranked: Run) -> str:
    return page(ranked)


@pytest.fixture(scope="module")
def void_page(void: Run) -> str:
    return page(void)


@pytest.fixture(scope="module")
def odd_page(odd_report: Report) -> str:
    return html(odd_report)


def known(of: Run, retained: dict[str, float]) -> Run:
    """``of`` with outcomes that are known: shares of the data to forget, and 90 % of every class of the test set."""
    return replace(
        of,
        origin=retaining(of, of.origin, retained["origin"]),
        unlearned={label: retaining(of, outcome, retained[label]) for label, outcome in of.unlearned.items()},
        continued={label: retaining(of, outcome, retained[label]) for label, outcome in of.continued.items()},
    )


def retaining(of: Run, outcome: Outcome, share: float) -> Outcome:
    n = of.population.forget_size
    bits = np.arange(n) < round(share * n)
    counts = torch.bincount(of.population.test.targets, minlength=10)
    right = tuple(int(0.9 * int(count)) for count in counts)
    known = {"kr": 100.0 * float(bits.mean()), "forget_bits": np.packbits(bits).tobytes().hex(), "test_correct": right}
    held_out = of.population.triggered_test
    points = [replace(point, **known, attack=len(held_out) if held_out else None) for point in outcome.points]
    return replace(outcome, points=points)


def changed(of: Run, label: str, **unlearned: Any) -> Run:
    """``of`` with fields of one method's unlearned outcome changed."""
    return replace(of, unlearned={**of.unlearned, label: replace(of.unlearned[label], **unlearned)})


def page(of: Run) -> str:
    return html(report_of(of))


class References(HTMLParser):
    """Collects what a page would fetch, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        names = ("src", "href", "xlink:href", "action", "data", "srcset", "poster")
        self.found += [value or "" for name, value in attrs if name in names]


def test_the_page_fetches_nothing_and_runs_nothing(ranked_page: str) -> None:
    references = References(ranked_page)
    assert references.found, "the figures refer to their own markers"
    assert all(reference.startswith("#") for reference in references.found)
    assert references.tags.isdisjoint({"script", "link", "iframe", "img", "object", "embed", "form"})
    assert "@import" not in ranked_page
    assert all(target.startswith("#") for target in re.findall(r"url\((.*?)\)", ranked_page))


def test_every_reference_within_a_figure_has_its_target(ranked_page: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', ranked_page)
    wanted = {reference[1:] for reference in References(ranked_page).found}
    assert len(ids) == len(set(ids))
    assert wanted | set(re.findall(r"url\(#(.*?)\)", ranked_page)) <= set(ids)


def test_the_page_names_every_method_and_every_phase(ranked_page: str) -> None:
    methods = ("retrain", "lethe", "fine-tuning", "not", "detach")
    for word in (*methods, "amplify", "rectify", "restore", "negate", "continue"):
        assert f">{word}<" in ranked_page


def test_a_run_that_ranks_says_who_passed_and_who_did_not(ranked_page: str) -> None:
    assert "lethe: within the thresholds" in ranked_page
    assert "fine-tuning is outside the thresholds: unsuccessful forgetting" in ranked_page
    assert "detach is outside the thresholds: unsuccessful forgetting" in ranked_page
    assert ranked_page.count('<tr class="out">') == 2  # Lethe and NoT; Retrain is the reference
    assert "ranks no method" not in ranked_page


def test_a_void_run_says_so_and_ranks_nothing(void_page: str) -> None:
    assert "Void: this run ranks no method" in void_page
    assert re.search(r"<li>Origin retains (49|50)\.\d % of the data to forget; 80 % are needed\.</li>", void_page)
    for ranking in ('class="out"', "within the thresholds", "outside the thresholds", ">pass<", ">fail<"):
        assert ranking not in void_page


def test_the_page_claims_no_more_than_a_measurement(ranked_page: str, void_page: str) -> None:
    for text in (ranked_page, void_page):
        assert "does not show" in text
        assert all(escape(limit) in text for limit in DOES_NOT_SHOW)
        assert [word for word in FORBIDDEN if word in text.lower()] == []


def test_what_comes_from_the_experiment_is_escaped(odd_page: str) -> None:
    assert "script" not in References(odd_page).tags
    assert odd_page.count(str(escape(HOSTILE))) == 2  # title and heading; TOML has escapes of its own
    assert "&lt;NaN&gt;" in odd_page


def test_a_report_is_a_function_of_the_run(ranked: Run, ranked_page: str, tmp_path: Path) -> None:
    with matplotlib.rc_context({"lines.linewidth": 9.0, "font.size": 20.0, "axes.grid": True}):
        write_report(ranked, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == ranked_page


def test_the_band_is_wilsons_interval_of_retrain(ranked: Run) -> None:
    band = report_of(ranked).curves.band
    n = ranked.population.forget_size
    z2 = 1.959963984540054**2
    assert band.x == (9, 10, 11, 12)
    assert band.low == (0.0,) * 4
    assert band.high == pytest.approx([100.0 * z2 / (n + z2)] * 4)


def test_a_broken_inequality_is_marked(odd_report: Report, odd_page: str, ranked_page: str) -> None:
    (log,) = odd_report.alignments
    assert [(cell.round, cell.layer) for cell in log.broken] == [(2, 0)]
    assert "✗" in heat.alignment(log, 0)
    assert f"did not hold in 1 of {len(log.cells)} cases" in " ".join(odd_page.split())
    assert "✗" not in ranked_page


def test_quarantined_replies_are_grouped_by_client_and_reason(
    odd_report: Report, odd_page: str, ranked_page: str
) -> None:
    (found,) = odd_report.quarantined
    assert (found.stage, found.client, found.rounds, found.count) == ("lethe.unlearn", "c002", "1–2, 4", 3)
    assert "every reply could be used" in ranked_page
    assert "every reply could be used" not in odd_page


def test_what_the_server_keeps_is_listed(odd_report: Report, odd_page: str) -> None:
    kept = {(item.where, item.what): item.bytes for item in odd_report.kept}
    assert kept["not.unlearn", "history"] == 2000
    assert any(where == "origin" for where, _ in kept)
    assert "history" in odd_page


def test_a_method_that_diverged_is_shown_as_such(odd_page: str) -> None:
    assert "not.unlearn stopped early: no finite reply" in odd_page
    assert "not is outside the thresholds: collapsed: no finite reply" in odd_page


def test_artefacts_are_complete_and_the_models_are_plain(ranked: Run, ranked_page: str, tmp_path: Path) -> None:
    of = replace(ranked, folder=tmp_path)
    assert write_artefacts(of) == tmp_path / "report.html"
    assert (tmp_path / "report.html").read_text() == ranked_page
    assert config.build(Experiment, config.read(tmp_path / "experiment.toml"), "") == of.experiment
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["method"] for row in rows] == ["retrain", "lethe", "fine-tuning", "not", "detach"]
    assert len(list(csv.DictReader(StringIO((tmp_path / "table.csv").read_text())))) == 5
    assert len(list((tmp_path / "models").glob("*.safetensors"))) == 11
    state = of.unlearned["lethe"].state
    found = load_file(tmp_path / "models" / "lethe.unlearned.safetensors")
    assert found.keys() == (state.params | state.buffers).keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in (state.params | state.buffers).items())
    stages = json.loads((tmp_path / "curves.json").read_text())
    assert len(stages["lethe.continue"]) == 4


def test_the_curves_as_csv_hold_every_point_and_no_single_sample(trained: Run, ranked: Run, ranked_page: str) -> None:
    text = curves_csv(trained)
    rows = list(csv.DictReader(StringIO(text)))
    assert len(rows) == sum(len(points) for points in points_by_stage(trained).values())
    for stage, points in points_by_stage(trained).items():
        assert [float(row["kr"]) for row in rows if row["stage"] == stage] == [point.kr for point in points]
    assert "forget_bits" not in rows[0]
    assert trained.origin.points[-1].forget_bits not in text
    assert ranked.continued["fine-tuning"].points[-1].forget_bits not in ranked_page


def points_by_stage(of: Run) -> dict[str, list[Point]]:
    found = {"origin": of.origin.points}
    for label in of.unlearned:
        found |= {f"{label}.unlearn": of.unlearned[label].points, f"{label}.continue": of.continued[label].points}
    return found


def test_the_known_outcomes_of_these_tests_are_what_they_say(ranked: Run) -> None:
    n = ranked.population.forget_size
    assert bits_of(ranked.continued["fine-tuning"].points, n).mean() == pytest.approx(0.9, abs=1 / n)
    assert Results(ranked).void == []
