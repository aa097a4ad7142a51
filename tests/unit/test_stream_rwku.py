"""A stream in which other questions are asked than were learnt: who trains on what, and what is reported apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from letheon.client import Client
from letheon.data import Data
from letheon.methods.ascent import GradDiff
from letheon.methods.retrain import Retrain
from letheon.metrics.text.mia import membership
from letheon.metrics.text.relapse import together
from letheon.metrics.text.scores import Scores
from letheon.pipeline import Silent
from letheon.report import stream_table, streams
from letheon.stream.experiment import Stream
from letheon.stream.life import StreamRun, run
from letheon.tasks.rwku import Rwku
from letheon.text.descent import Recipe
from letheon.text.exam import groups
from letheon.training import Local
from letheon.work import Work
from rwku_cutout import write_cutout
from text_toys import TINY

TASK = Rwku(TINY, parts=2, subjects=1, retained=2, measured=2, learns="both")
STREAM = Stream(
    TASK,
    GradDiff(tuning=Recipe(lr=2e-3, epochs=6, batch_size=2)),
    (Retrain(),),
    local=Local(optimizer="adamw", lr=3e-3, batch_size=4, epochs=30),
    train_rounds=2,
    continue_rounds=1,
    tokens=8,
)


class Watch(Silent):
    """Which ids each stage trained on beside those to forget."""

    def __init__(self) -> None:
        self.stage = ""
        self.used: dict[str, set[int]] = {}

    def stage_started(self, stage: str, rounds: int) -> None:
        self.stage = stage
        self.used[stage] = set()

    def saw(self, data: Data, work: Work) -> Data:
        if work.part != "forget":
            self.used[self.stage] |= set(data.ids.tolist())
        return data


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, watch: Watch) -> Iterator[StreamRun]:
    root = tmp_path_factory.mktemp("rwku")
    write_cutout(root)
    part = Client.part
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LETHEON_DATA", str(root))
        patched.setattr(Client, "part", lambda self, work: watch.saw(part(self, work), work))
        found = run(STREAM, root / "run", listener=watch)
        streams.write_artefacts(found)
        yield found


@pytest.fixture(scope="module")
def content(done: StreamRun) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((done.folder / "results.json").read_text()))


def test_what_is_withheld_is_learnt_and_then_left_alone_by_all_but_retrain(done: StreamRun, watch: Watch) -> None:
    everything, apart = set(TASK.learnt()), set(TASK.withheld())
    gone = {i for ids in TASK.requests() for i in ids}
    assert apart
    assert watch.used == {
        "origin": everything,
        "retrain.unlearn": everything - gone,
        "retrain.continue": everything - gone - apart,
        "graddiff.unlearn1": everything - gone - apart,
        "graddiff.unlearn2": everything - gone - apart,
        "graddiff.continue": everything - gone - apart,
    }


def test_probes_are_asked_while_what_was_learnt_is_forgotten(done: StreamRun) -> None:
    assert list(done.origin_exam.sets["forget1"]["rouge"].values) == ["level 1/0", "level 2/0"]
    assert {len(request.samples) for request in done.stream.requests} == {4}
    assert "forget2" not in done.served["graddiff"].exams[0].sets


def test_the_table_is_about_levels_1_and_2_of_the_requests_so_far(done: StreamRun, content: dict[str, Any]) -> None:
    rows = {(row["method"], row["after"]): row for row in content["rows"]}
    assert [rows["origin", after]["n_forget"] for after in ("1", "2")] == [2, 4]
    assert rows["origin", "2"]["rouge"] == 100.0
    assert rows["graddiff", "2"]["rouge"] < 100.0
    sets = done.origin_exam.sets
    parts = [sets[name][score].mean() for name in ("retained", "world_facts") for score in ("rouge", "probability")]
    assert rows["origin", "2"]["mu"] == pytest.approx(400 / sum(1 / part for part in parts))  # type: ignore[operator]
    assert "truth_ratio" not in rows["origin", "2"]


def test_levels_kinds_and_neighbours_are_told_apart(done: StreamRun, content: dict[str, Any]) -> None:
    last = [row for row in content["apart"] if row["after"] == "2" and row["method"] == "graddiff"]
    found = {(row["set"], row["group"]): row["n"] for row in last if row["score"] == "rouge"}
    assert found == {
        ("forget", "level 1"): 2,
        ("forget", "level 2"): 2,
        ("adversarial", ""): 4,
        ("adversarial", "affirmative suffix"): 1,
        ("adversarial", "multiple choice"): 1,
        ("adversarial", "prefix injection"): 1,
        ("adversarial", "role playing"): 1,
        ("neighbours", ""): 3,
        ("neighbours", "level 1"): 2,
        ("neighbours", "level 2"): 1,
        ("retained", "level 1"): 2,
        ("retained", "level 2"): 2,
        ("practised", ""): 4,
        ("practised", "level 1"): 2,
        ("practised", "level 2"): 2,
    }
    exam = done.served["graddiff"].exams[1]
    both = together([exam.sets[f"adversarial{j}"]["em"] for j in (1, 2)])
    (row,) = (row for row in last if (row["set"], row["group"], row["score"]) == ("adversarial", "", "em"))
    assert row["value"] == both.measured().value


def test_membership_compares_texts_to_forget_with_texts_never_learnt(done: StreamRun, content: dict[str, Any]) -> None:
    rows = [row for row in content["apart"] if row["set"] == "membership"]
    assert {row["after"] for row in rows} == {"2", "continued"}
    found = {row["score"]: row["value"] for row in rows if row["method"] == "origin"}
    assert found.keys() == {"auc_loss", "auc_zlib", "auc_min_k", "auc_min_k_plus_plus", "auc_reference"}
    assert found["auc_loss"] == 1.0  # Origin has learnt what the former say, and nothing of the latter
    sets = done.origin_exam.sets
    ours, theirs = (together([sets[f"{name}{j}"]["mia_zlib"] for j in (1, 2)]) for name in ("forget_mia", "retain_mia"))
    assert found["auc_zlib"] == membership(ours, theirs).auc.value
    retrain = done.served["retrain"].exams[0].sets
    gaps = [
        [float(v) - float(retrain[f"{name}{j}"]["mia_loss"].values[i])  # type: ignore[arg-type]
         for j in (1, 2) for i, v in sets[f"{name}{j}"]["mia_loss"].values.items()]
        for name in ("forget_mia", "retain_mia")
    ]  # fmt: skip
    wins = [(a < b) + (a == b) / 2 for a in gaps[0] for b in gaps[1]]
    assert found["auc_reference"] == pytest.approx(sum(wins) / len(wins))
    assert not [r for r in rows if (r["method"], r["after"], r["score"]) == ("retrain", "2", "auc_reference")]
    assert "rouge" not in sets["forget_mia1"]  # texts are read, nothing is asked


def test_the_report_shows_what_was_asked_apart(done: StreamRun, content: dict[str, Any]) -> None:
    head, *lines = stream_table.apart(content["apart"])
    assert head == ["questions", "of them", "score", "origin", "retrain", "retrain, continued", "graddiff",
                    "graddiff, continued"]  # fmt: skip
    assert ["adversarial", "all", "ROUGE-L %"] in [line[:3] for line in lines]
    assert ["membership", "all", "AUC of LOSS"] in [line[:3] for line in lines]
    (line,) = (line for line in lines if line[2] == "AUC of LOSS less Retrain's")
    assert line[4] == "–"  # Retrain less itself
    page = (done.folder / "report.html").read_text()
    assert "Asked in other ways" in page
    assert "role playing" in page


def test_only_the_first_line_of_an_answer_counts() -> None:
    from letheon.text.exam import _counted

    assert _counted("\n one two\nthree", "line") == "one two"
    assert _counted("one\nthree", "text") == "one\nthree"


def test_groups_are_what_ids_name() -> None:
    scores = Scores("em/1", {"b/1": 1.0, "a/2": 0.0, "a/3": 1.0})
    assert {group: found.values for group, found in groups(scores).items()} == {
        "a": {"a/2": 0.0, "a/3": 1.0},
        "b": {"b/1": 1.0},
    }
    assert groups(Scores("em/1", {"1": 1.0})) == {}
