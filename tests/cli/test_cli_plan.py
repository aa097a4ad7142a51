from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from letheon import pipeline
from letheon.experiment import Experiment
from letheon.pipeline import Run
from letheon.plan import COUNTED, Plan, plan, stages_of

Command = Callable[..., tuple[int, str, str]]
VARIED = """
clients = 5
train_rounds = 2
continue_rounds = 1
task = {name = "digits", norm = true}
request = {scope = "samples", fraction = 0.05, placement = "spread", trigger = {size = 2, margin = 0}}
local = {steps = 7, batch_size = 16}
method = {name = "puf", form = "regular", rounds = 2}
"""


def check(found: Plan, run: Run) -> None:
    outcomes = {"origin": run.origin}
    outcomes |= {f"{label}.unlearn": outcome for label, outcome in run.unlearned.items()}
    outcomes |= {f"{label}.continue": outcome for label, outcome in run.continued.items()}
    assert {stage.stage for stage in found.stages} == outcomes.keys()
    for stage in found.stages:
        measured = outcomes[stage.stage]
        assert [phase.phase for phase in stage.phases] == [cost.phase for cost in measured.costs]
        assert sum(phase.steps for phase in stage.phases) + 1 == len(measured.points)
        for planned, cost in zip(stage.phases, measured.costs, strict=True):
            counts = [(getattr(planned, name), getattr(cost, name)) for name in COUNTED]
            assert planned.is_exact or planned.phase == "rectify"
            if planned.is_exact and planned.phase != "amplify":
                assert all(said == seen for said, seen in counts), (stage.stage, counts)
            else:  # a search or an ascent that may end early
                assert all(said >= seen > 0 for said, seen in counts), (stage.stage, counts)
            if planned.phase == "amplify":
                assert counts[0][0] == counts[0][1]
                assert counts[3:] == [(cost.bytes_down, cost.bytes_down), (cost.bytes_up, cost.bytes_up)]


def test_the_plan_of_every_method_is_what_a_run_measures(place: Path, run_folder: Path) -> None:
    check(plan(Experiment.load(place / "tiny.toml", ["seed=3"])), pipeline.load(run_folder))


def test_the_plan_holds_for_spread_samples_steps_and_buffers(tmp_path: Path) -> None:
    path = tmp_path / "varied.toml"
    path.write_text(VARIED)
    experiment = Experiment.load(path)
    check(plan(experiment), pipeline.run(experiment, tmp_path / "run"))


def test_without_a_search_every_count_of_lethe_is_exact(tmp_path: Path, place: Path) -> None:
    settings = ["method.search=false", "method.rounds=3", "compare=[]", 'compare=[{name = "retrain", rounds = 1}]']
    experiment = Experiment.load(place / "tiny.toml", settings)
    found = plan(experiment)
    assert found.total.is_exact
    check(found, pipeline.run(experiment, tmp_path / "run"))


def test_the_disk_of_the_plan_is_that_of_the_run_folder(
    place: Path, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("letheon.calibration.timed", lambda act, budget: 0.001)
    found = plan(Experiment.load(place / "tiny.toml", ["seed=3"]))
    size = sum(path.stat().st_size for path in run_folder.rglob("*") if path.is_file())
    assert size / 1.3 < found.disk_bytes < size * 1.3
    assert found.disk_peak_bytes >= found.disk_bytes


def test_more_workers_shorten_the_estimate_and_leave_the_price(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("letheon.calibration.timed", lambda act, budget: 1.0)
    experiment = Experiment.load(place / "tiny.toml")
    one, two = (plan(experiment, workers=workers) for workers in (1, 2))
    assert (one.workers, two.workers) == (1, 2)
    assert (one.total.flops, one.total.bytes_up) == (two.total.flops, two.total.bytes_up)
    assert one.total.seconds > two.total.seconds


def test_stages_are_listed_in_the_order_in_which_they_run(place: Path) -> None:
    experiment = Experiment.load(place / "tiny.toml")
    assert [name for name, _ in stages_of(experiment)] == list(pipeline.owners(experiment))


def test_plan_as_json_and_as_a_table_tell_the_same_total(place: Path, command: Command) -> None:
    words = ("plan", place / "tiny.toml", "--set", "method.rounds=5", "--workers", "1")
    code, out, err = command(*words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    (rectify,) = [phase for stage in found["stages"] for phase in stage["phases"] if phase["phase"] == "rectify"]
    assert rectify["steps"] == 5
    code, out, _ = command(*words)
    assert code == 0
    (total,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["total"]]
    assert total[1:3] == ["≤" + str(found["total"]["rounds"]), f"{found['total']['samples']:,.0f}"]
    assert "1 worker:" in out
    assert "an estimate" in out


@pytest.mark.parametrize("method", ["retrain", "fine-tuning", "lethe", "not", "puf", "noise", "detach"])
@pytest.mark.parametrize("scope", ["client", "class", "samples"])
def test_every_method_can_be_priced_in_every_scope(
    method: str, scope: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("letheon.calibration.timed", lambda act, budget: 0.001)
    found = plan(Experiment.load(place / "tiny.toml", [f"method={method}", f"request.scope={scope}", "compare=[]"]))
    assert found.total.rounds > 0
    labels = dict.fromkeys(["retrain", method, "detach"])
    ends = [stage.stage for stage in found.stages if stage.stage.endswith(".continue")]
    assert ends == [f"{label}.continue" for label in labels]


def test_the_plan_says_how_likely_fats_is_to_run_rounds_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("letheon.calibration.timed", lambda act, budget: 0.001)
    method = "method={name='fats',rounds=1,cohort=1,steps=1,batch_size=1}"
    experiment = Experiment.load(place / "tiny.toml", [method, "compare=[]", "request.scope=client"])
    likely = f"{100 / experiment.clients:.3g} %"
    assert plan(experiment).notes[-1] == f"fats: rounds are run again with probability {likely} at most"


def test_a_stream_is_priced_without_being_run(command: Command) -> None:
    demo = Path(__file__).parents[2] / "experiments" / "llm_demo.toml"
    small = "task.language.model={vocabulary=320,width=16,layers=1,heads=1}"
    code, out, _ = command("plan", demo, "--set", small)
    assert code == 0
    for said in ("origin", "npo+cop", "protect", "examine", "5 requests for 8 of them", "Disk"):
        assert said in out
    code, out, _ = command("plan", demo, "--json", "--set", small)
    assert {stage["stage"] for stage in json.loads(out)["stages"]} >= {"origin", "npo+cop.unlearn", "npo+cop.continue"}
