"""Diagnostics of whole runs: what is trained again is what was run, and known cases come out as they must."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from letheon import tree
from letheon.diagnostics import VERSIONS
from letheon.diagnostics.drives import drives
from letheon.diagnostics.material import Sight, Subject, material, subjects, thinned
from letheon.diagnostics.measures import Measures, Suite
from letheon.diagnostics.suite import FILE, about, diagnose, keep, kept, sections
from letheon.errors import ConfigError, Diverged, JournalError
from letheon.experiment import Experiment
from letheon.files import read_sealed, write_sealed
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.noise import Noise
from letheon.pipeline import Run, run
from letheon.request import Request
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.training import Local

SMALL = Suite(recovery_rounds=3, relearn_rounds=3, points=5, samples=120)
EXPERIMENT = Experiment(
    task=Digits(),
    method=FineTuning(rounds=2),
    compare=(Noise(rounds=2),),
    clients=4,
    request=Target(min_forget=50, trigger=Trigger(size=3, margin=0)),
    local=Local(lr=0.05),
    train_rounds=15,
    continue_rounds=4,
    seed=3,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(EXPERIMENT, tmp_path_factory.mktemp("run"), workers=1)


@pytest.fixture(scope="module")
def found(trained: Run) -> dict[str, Any]:
    return diagnose(trained, suite=SMALL, workers=1)


def rows(found: dict[str, Any], section: str) -> dict[str, Any]:
    of: dict[str, Any] = found["sections"][section]["rows"]
    return of


def everything(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


NOISE = "noise as far as fine-tuning"


def test_every_model_has_a_row_in_every_section(found: dict[str, Any]) -> None:
    labels = ["origin", "retrain", "fine-tuning", "noise", "detach", NOISE]
    assert found["subjects"] == labels
    assert list(found["sections"]) == list(VERSIONS)
    for name, section in found["sections"].items():
        assert list(section["rows"]) == (labels if name != "probe" else [*labels, "untrained"])
        assert all(row["undefined"] == "" for row in section["rows"].values())


# What is trained again


def test_rounds_that_are_run_again_end_in_the_very_model_of_the_run(trained: Run) -> None:
    with drives(trained, workers=2) as driven:
        states = driven.continued(trained.unlearned["noise"].state, EXPERIMENT.continue_rounds)
    end = trained.continued["noise"].state
    assert tree.digest(states[-1].params | states[-1].buffers) == tree.digest(end.params | end.buffers)


def test_rows_say_that_their_rounds_came_out_as_in_the_run(found: dict[str, Any]) -> None:
    redriven = {label: row["redriven"] for label, row in rows(found, "rollback").items()}
    assert redriven == {
        "origin": None, "retrain": True, "fine-tuning": True, "noise": True, "detach": True, NOISE: None,
    }  # fmt: skip


def test_a_round_that_comes_out_otherwise_is_named(trained: Run) -> None:
    outcome = trained.continued["noise"]
    points = [*outcome.points]
    points[2] = replace(points[2], forget_loss=points[2].forget_loss * (1 + 1e-15) + 1e-15)
    bent = replace(trained, continued={**trained.continued, "noise": replace(outcome, points=points)})
    (row,) = [rows(diagnose(bent, ["rollback"], suite=SMALL, workers=1), "rollback")["noise"]]
    assert (row["redriven"], row["differs_in_round"]) == (False, 2)
    assert row["rt"] is not None


def test_neither_workers_nor_other_sections_change_a_number(trained: Run, found: dict[str, Any]) -> None:
    some = diagnose(trained, ["rollback", "relearning"], suite=SMALL, workers=2)
    assert some["sections"] == {name: found["sections"][name] for name in ("rollback", "relearning")}


def test_the_folder_of_a_run_is_left_alone_but_for_one_file(trained: Run) -> None:
    before = everything(trained.folder)
    path = keep(trained, diagnose(trained, ["relearning"], suite=SMALL, workers=1))
    after = everything(trained.folder)
    assert after.pop(str(path)) is not None
    before.pop(str(path), None)
    assert after == before


def test_recovery_uses_all_data_and_relearning_only_what_was_to_be_forgotten(trained: Run) -> None:
    start, local = trained.unlearned["retrain"].state, Local(lr=0.05)
    with drives(trained, workers=1) as driven:
        seen: list[Any] = []
        driven._runtime.run, inner = (lambda *works: (seen.extend(works), inner(*works))[1]), driven._runtime.run
        driven.until(start, "all", local, limit=1, knows=lambda _: 0, enough=1)
        driven.until(start, "forget", local, limit=1, knows=lambda _: 0, enough=1)
        course = driven.until(start, "forget", local, limit=9, knows=lambda _: 1, enough=1)
    assert [(work.part, work.request) for work in seen] == [("all", ""), ("forget", trained.population.request.id)]
    assert course.correct == (1,)
    assert course.state is start


# Known cases


def test_detach_which_does_nothing_looks_like_origin_everywhere(found: dict[str, Any]) -> None:
    for name in VERSIONS:
        idle, origin = rows(found, name)["detach"], rows(found, name)["origin"]
        assert {**idle, "redriven": None} == {**origin, "redriven": None}
    assert "no way back" in rows(found, "rollback")["detach"]["rt_reason"]
    assert rows(found, "connectivity")["detach"]["recovery_rounds"] == 0.0
    assert rows(found, "relearning")["detach"]["relearn_rounds"] == 0.0


def test_rollback_tendency_is_near_zero_for_a_random_step_that_forgets_nothing(
    trained: Run, found: dict[str, Any]
) -> None:
    row = rows(found, "rollback")[NOISE]
    assert abs(row["rt"]) < 0.15
    assert abs(row["rt"]) < abs(rows(found, "rollback")["retrain"]["rt"])
    (noise,) = [subject for subject in subjects(trained) if subject.kind == "noise"]
    forget = material(trained.population, samples=10).forget
    assert Sight(EXPERIMENT.task).correct(noise.state, forget) > 0.9 * len(forget)


def test_relearning_tells_retrain_from_models_that_still_know(found: dict[str, Any]) -> None:
    steps = {label: row["relearn_steps"] for label, row in rows(found, "relearning").items()}
    assert steps["retrain"] >= 1.0
    assert steps["origin"] == steps["fine-tuning"] == steps["detach"] == steps[NOISE] == 0.0


def test_a_probe_reads_the_trigger_off_all_digits_models_even_an_untrained_one(found: dict[str, Any]) -> None:
    accuracies = {label: row["accuracy"] for label, row in rows(found, "probe").items()}
    assert min(accuracies.values()) > 90.0


def test_noise_is_as_long_as_the_step_of_the_method_of_interest_tensor_by_tensor(trained: Run) -> None:
    by_label = {subject.label: subject for subject in subjects(trained)}
    noise, main = by_label[NOISE], by_label["fine-tuning"]
    for name, start in trained.origin.state.params.items():
        lengths = [float((subject.state.params[name] - start).norm()) for subject in (noise, main)]
        assert lengths[0] == pytest.approx(lengths[1], rel=1e-4)


# Sections


def test_numbers_come_with_intervals_and_counts(trained: Run, found: dict[str, Any]) -> None:
    n = trained.population.forget_size
    for section, fields in {
        "features": ("fd", "fd_relative", "explained_own_forget", "explained_common_forget"),
        "membership": ("auc", "tpr_at_1"),
    }.items():
        for row in rows(found, section).values():
            for field in fields:
                assert row[f"{field}_low"] <= row[field] <= row[f"{field}_high"]
                assert (row[f"{field}_n"], row[f"{field}_reason"]) == (n, None)
    row = rows(found, "membership")["retrain"]
    assert row["tpr_at_0.1"] is None
    assert "1000 non-members" in row["tpr_at_0.1_reason"]
    connectivity = rows(found, "connectivity")["retrain"]
    assert len(connectivity["path"]) == len(connectivity["losses"]["forget"]) == 5
    assert connectivity["distance"] > 0.0
    assert connectivity["barrier_recalibrated_reason"] == "the model has no BatchNorm"


def test_points_of_the_picture_are_few_sorted_and_in_both_bases(found: dict[str, Any]) -> None:
    for row in rows(found, "features").values():
        for name in ("own", "common"):
            for points in row[f"points_{name}"].values():
                assert points == sorted(points)
                assert len(points) == 150
    origin = rows(found, "features")["origin"]
    assert origin["points_own"] == origin["points_common"]


def test_with_batch_norm_the_barrier_is_also_told_with_fresh_statistics(tmp_path: Path) -> None:
    settings = replace(EXPERIMENT, task=Digits(norm=True), compare=(), train_rounds=2, continue_rounds=1)
    done = run(settings, tmp_path, workers=1)
    row = rows(diagnose(done, ["connectivity"], suite=replace(SMALL, recovery_rounds=1), workers=1), "connectivity")
    found = row["retrain"]
    assert found["barrier_recalibrated_low"] <= found["barrier_recalibrated"] <= found["barrier_recalibrated_high"]
    assert found["losses_recalibrated"]["forget"] != found["losses"]["forget"]


def test_at_class_level_the_class_is_no_test_image_and_there_is_no_trigger_to_probe(trained: Run) -> None:
    of_class = replace(trained.population, request=Request("class", label=4), triggered_test=None)
    seen = material(of_class, samples=60)
    assert set(seen.forget.targets.tolist()) == {4}
    assert 4 not in set(seen.test.targets.tolist()) | set(seen.retained.targets.tolist())
    assert set(seen.strangers.targets.tolist()) == {4}
    assert set(seen.strangers.ids.tolist()) <= set(of_class.test.ids.tolist())
    assert len(seen.test) == 60
    with drives(trained, workers=1) as driven:
        measures = Measures(trained, SMALL, seen, Sight(EXPERIMENT.task), driven)
        row = measures.probe(subjects(trained)[0])
    assert row["accuracy_reason"] == "the data to forget carry no trigger"


def test_with_several_requests_it_is_the_model_after_the_last_and_the_data_of_the_first(tmp_path: Path) -> None:
    then = (Target(scope="samples", fraction=0.02, trigger=None),)
    done = run(replace(EXPERIMENT, then=then, compare=(), train_rounds=2, continue_rounds=2), tmp_path, workers=1)
    by_label = {subject.label: subject for subject in subjects(done)}
    assert by_label["fine-tuning"].state is done.later["fine-tuning"][-1].state
    seen = material(done.population, samples=10_000)
    held = sum(map(len, done.population.clients.values()))
    assert len(seen.forget) == done.population.forget_size
    assert len(seen.retained) == held - len(seen.forget) - done.population.later[0].forget_size
    found = rows(diagnose(done, ["rollback", "relearning"], suite=replace(SMALL, rollback_rounds=2)), "rollback")
    assert [found[label]["redriven"] for label in done.unlearned] == [True, True, True]


def test_held_out_images_come_in_pairs_that_differ_in_the_trigger_alone(trained: Run) -> None:
    seen = material(trained.population, samples=50)
    assert seen.clean is not None
    assert seen.triggered is not None
    assert seen.clean.shape == seen.triggered.shape == (50, 64)
    trigger = EXPERIMENT.request.trigger
    assert trigger is not None
    assert torch.equal(trigger.paint(seen.clean, EXPERIMENT.task.bright), seen.triggered)
    assert len(seen.beside) == len(seen.forget) == trained.population.forget_size
    assert thinned(seen.test, 7).ids.tolist() == [seen.test.ids[i * 50 // 7].item() for i in range(7)]


def test_losses_are_those_of_single_samples_and_always_finite(trained: Run) -> None:
    sight, data = Sight(EXPERIMENT.task), material(trained.population, samples=40).test
    state = trained.origin.state
    losses = sight.losses(state, data)
    assert losses.mean() == pytest.approx(EXPERIMENT.task.loss(sight.outputs(state, data.inputs), data.targets).item())
    broken = replace(state, params={name: t * torch.nan for name, t in state.params.items()})
    assert set(sight.losses(broken, data)) == {1e30}


# What cannot be measured


def test_a_method_that_diverged_has_rows_that_say_so(trained: Run) -> None:
    broken = replace(trained.unlearned["noise"], diverged="left the numbers")
    of = replace(trained, unlearned={**trained.unlearned, "noise": broken})
    found = diagnose(of, ["features", "rollback"], suite=SMALL, workers=1)
    for name in ("features", "rollback"):
        assert rows(found, name)["noise"] == {"undefined": "collapsed: left the numbers"}
        assert rows(found, name)["retrain"]["undefined"] == ""


def test_training_on_top_that_diverges_is_a_row_too(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(self: Measures, subject: Subject) -> dict[str, Any]:
        raise Diverged("no finite reply")

    monkeypatch.setattr(Measures, "relearning", diverge)
    found = diagnose(trained, ["relearning"], suite=SMALL, workers=1)
    assert rows(found, "relearning")["retrain"]["undefined"].endswith("no finite reply")


def test_an_unknown_section_is_refused_with_those_there_are() -> None:
    assert sections("") == list(VERSIONS)
    assert sections("mia, rt") == ["rollback", "membership"]
    assert sections("features") == ["features"]
    with pytest.raises(ConfigError, match=r"unknown 'rr'; use some of rt, lmc, fd, relearn, mia, probe"):
        sections("rr")


# The file


def test_later_calls_keep_the_sections_of_earlier_ones(trained: Run, found: dict[str, Any], tmp_path: Path) -> None:
    here = replace(trained, folder=tmp_path)
    only = {name: {**found, "sections": {name: found["sections"][name]}} for name in ("rollback", "probe")}
    keep(here, only["rollback"])
    keep(here, only["probe"])
    read = kept(here)
    assert read is not None
    assert read["sections"] == json.loads(json.dumps({n: found["sections"][n] for n in ("rollback", "probe")}))


def test_nothing_is_told_of_other_models_or_by_old_definitions(
    trained: Run, found: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = replace(trained, folder=tmp_path)
    assert kept(here) is None
    old = {"definition": 0, "settings": {}, "rows": {}}
    keep(here, {**found, "sections": {"probe": found["sections"]["probe"], "rollback": old}})
    read = kept(here)
    assert read is not None
    assert list(read["sections"]) == ["probe"]
    others = {**here.unlearned, "noise": here.unlearned["retrain"]}
    assert kept(replace(here, unlearned=others)) is None
    assert "belongs to other models" in caplog.text


def test_sections_measured_by_other_code_do_not_stay(trained: Run, found: dict[str, Any], tmp_path: Path) -> None:
    here = replace(trained, folder=tmp_path)
    keep(here, {**found, "versions": {**found["versions"], "code": "other"}})
    path = keep(here, {**found, "sections": {}})
    assert read_sealed(path)["sections"] == {}


@pytest.mark.parametrize("content", ["", '{"a": 1}', "[]"])
def test_a_damaged_file_is_an_error_that_says_what_to_do(trained: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(JournalError, match="run `letheon diagnose` again, or remove it"):
        kept(replace(trained, folder=tmp_path))
    write_sealed(tmp_path / FILE, {"run": about(trained)["run"]})
    with pytest.raises(JournalError, match="damaged"):
        kept(replace(trained, folder=tmp_path))
    keep(replace(trained, folder=tmp_path), about(trained) | {"sections": {}})
    assert kept(replace(trained, folder=tmp_path)) is not None
