"""Requests served one after another: none undoes an earlier one, and what each leaves is measured."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from letheon import pipeline
from letheon.client import Client
from letheon.curve import Evaluator
from letheon.errors import ConfigError, DataError, MethodError, RequestError
from letheon.experiment import Experiment
from letheon.folder import label_counts
from letheon.methods.fedau import FedAUInTraining
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.negate import NoT
from letheon.pipeline import Run
from letheon.plan import plan
from letheon.report.model import stages
from letheon.report.requests import as_text, known
from letheon.results import Results, total
from letheon.tasks.target import Target
from letheon.tasks.trigger import Corner, Trigger
from letheon.tasks.vision import Digits
from letheon.training import Local
from letheon.work import Work

FIRST = Target(min_forget=20, trigger=Trigger(size=2, margin=0))
ELSEWHERE = Trigger(size=2, margin=0, corner="top-left", target=1)
SECOND = Target("samples", fraction=0.05, placement="spread", trigger=ELSEWHERE)
THIRD = Target("class", label=7)
EXPERIMENT = Experiment(
    Digits(),
    NoT(rounds=2),
    compare=(FineTuning(rounds=1),),
    clients=4,
    request=FIRST,
    then=(SECOND, THIRD),
    local=Local(lr=0.05),
    train_rounds=4,
    continue_rounds=2,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pipeline.run(EXPERIMENT, tmp_path_factory.mktemp("successive"), workers=1)


def test_the_requests_cover_different_samples_and_each_has_its_size() -> None:
    population = EXPERIMENT.populate()
    covered = []
    for each in (population, *population.later):
        ids = {int(i) for name, data in each.clients.items() for i in data.ids[each.request.mask(name, data)]}
        assert len(ids) == each.forget_size
        covered.append(ids)
    assert [r.scope for r in population.requests] == ["client", "samples", "class"]
    assert not covered[0] & covered[1]
    assert population.later[1].triggered_test is None
    assert population.later[0].triggered_test is not None


def test_the_first_request_is_constructed_as_if_it_were_the_only_one() -> None:
    alone, among = replace(EXPERIMENT, then=()).populate(), EXPERIMENT.populate()
    assert (alone.request.id, alone.forget_size) == (among.request.id, among.forget_size)


@pytest.mark.parametrize("label", ["retrain", "not", "fine-tuning"])
def test_the_matrix_is_what_the_models_know(run: Run, label: str) -> None:
    population = run.population
    outcomes = (run.unlearned[label], *run.later[label], run.continued[label])
    assert len(run.known[label]) == len(outcomes) == 4
    for at, each in enumerate((population, *population.later)):
        evaluate = Evaluator(EXPERIMENT.task, each, workers=1)
        assert [row[at] for row in run.known[label]] == [evaluate("x", 0, o.state).kr for o in outcomes]
        evaluate.close()


def test_later_stages_leave_out_what_earlier_requests_covered(run: Run) -> None:
    population = run.population
    held = {name: len(data) for name, data in population.clients.items()}
    gone = 0
    for served, outcome in enumerate((run.unlearned["not"], *run.later["not"]), 1):
        admitted = population.requests[:served]
        masks = [sum(r.mask(name, data) for r in admitted) > 0 for name, data in population.clients.items()]
        gone = sum(int(mask.sum()) for mask in masks)
        assert total(outcome.costs).samples == 2 * (sum(held.values()) - gone)
    assert total(run.continued["not"].costs).samples == 2 * (sum(held.values()) - gone)


def test_retraining_after_each_request_knows_nothing_of_it_that_it_did_not_know_before(run: Run) -> None:
    rows = run.known["retrain"]
    assert rows[2][2] == 0.0  # no sample of the class is left to learn from
    assert rows[1][2] > 50.0  # it was, before it was asked for


def test_a_finished_run_is_loaded_and_resumed_with_its_matrix(run: Run) -> None:
    assert pipeline.load(run.folder).known == run.known
    assert pipeline.run(EXPERIMENT, run.folder, resume=True, workers=1).known == run.known


def test_the_report_shows_the_matrix_with_intervals(run: Run) -> None:
    rows = known(run)
    assert [row.after for row in rows[:5]] == ["training", "request 1", "request 2", "request 3", "continued training"]
    assert all("[" in cell for row in rows for cell in row.retention.values())
    assert [list(row.retention) for row in rows] == [["1", "2", "3"]] * len(rows)
    assert as_text(rows).row_count == len(rows) == 17
    assert list(stages(run))[1:5] == ["retrain.unlearn", "retrain.unlearn2", "retrain.unlearn3", "retrain.continue"]


def test_the_plan_prices_what_the_run_took(run: Run) -> None:
    planned = {stage.stage: sum(phase.samples for phase in stage.phases) for stage in plan(EXPERIMENT).stages}
    assert planned == {name: total(outcome.costs).samples for name, outcome in stages(run).items()}


def test_two_triggers_in_one_corner_are_refused_whatever_their_labels() -> None:
    beside = replace(SECOND, trigger=Trigger(size=3, margin=0, target=1))
    with pytest.raises(ConfigError, match=r"in the same corner.*trigger\.corner"):
        replace(EXPERIMENT, then=(beside,))


def test_a_method_that_can_do_it_once_only_is_refused_before_any_work() -> None:
    with pytest.raises(MethodError, match="fedau-in-training serves one request only"):
        Experiment(Digits(), FedAUInTraining(), request=FIRST, then=(replace(FIRST, trigger=ELSEWHERE),))


OVERLAPPING = replace(EXPERIMENT, request=FIRST, then=(Target("class", label=0),))
"""The client's triggered samples carry label 0, and so are of the class that goes next."""


def test_what_has_been_forgotten_is_no_part_of_a_later_request() -> None:
    population = OVERLAPPING.populate()
    (later,) = population.later
    gone = population.request.client
    assert gone is not None
    assert bool(later.request.mask(gone, population.clients[gone]).all())
    assert not later.covered(gone).any()
    assert later.forget_size == sum(int((d.targets == 0).sum()) for n, d in population.clients.items() if n != gone)
    client = Client(gone, population.clients[gone], OVERLAPPING.task)
    for request in population.requests:
        client.admit(request)
    for request, size in zip(population.requests, (population.forget_size, 0), strict=True):
        assert len(client.part(Work("train", {}, part="forget", request=request.id))) == size
    assert len(client.part(Work("train", {}, part="retain"))) == 0


def test_a_request_that_earlier_ones_cover_whole_is_refused() -> None:
    with pytest.raises(RequestError, match=r"request 2: earlier requests cover all that it covers.*another label"):
        replace(EXPERIMENT, request=Target("class", label=1), then=(SECOND,)).populate()
    with pytest.raises(RequestError, match="request 2: earlier requests cover all"):
        replace(EXPERIMENT, request=Target("class", label=1), then=(Target("class", label=1),)).populate()


def test_a_class_that_a_later_request_removes_counts_in_no_utility(run: Run) -> None:
    results = Results(run)
    counts = [int((run.population.test.targets == label).sum()) for label in range(10)]
    for label in run.experiment.methods:
        row, right = results.row(label), run.continued[label].points[-1].test_correct
        assert row["mu"] == pytest.approx(100 * (sum(right) - right[7]) / (sum(counts) - counts[7]))
    assert sum(label_counts(run.population, 10)["c000"]) >= 0
    assert all(mix[7] == 0 for mix in label_counts(run.population, 10).values())


def test_a_method_that_diverges_in_a_later_request_is_collapsed(run: Run) -> None:
    first, *others = run.later["not"]
    broken = replace(run, later={**run.later, "not": (replace(first, diverged="left the numbers"), *others)})
    results = Results(broken)
    results.__dict__["void"] = []  # so small a run is void
    row = results.row("not")
    assert (row["rr"], row["rr_status"], row["verdict"]) == (None, "collapsed", "fail")
    broken = replace(run, later={**run.later, "retrain": (replace(first, diverged="left the numbers"), *others)})
    assert "the reference diverged: left the numbers" in Results(broken).void


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_text("{")])
def test_a_matrix_that_is_not_there_is_a_run_that_is_not_finished(
    run: Run, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run.folder, folder)
    harm(folder / "requests.json")
    with pytest.raises(ConfigError, match=r"requests\.json: missing or damaged; finish the run with --resume"):
        pipeline.load(folder)
    assert pipeline.run(EXPERIMENT, folder, resume=True, workers=1).known == run.known


def test_a_method_must_serve_every_request() -> None:
    class ClientsOnly(NoT):
        name = "clients-only"
        scopes = frozenset({"client"})

    with pytest.raises(MethodError, match="does not serve requests of scope 'samples'"):
        replace(EXPERIMENT, method=ClientsOnly())


def test_a_client_is_asked_to_go_once_only() -> None:
    named = replace(FIRST, client="c001")
    again = replace(EXPERIMENT, request=named, then=(replace(named, trigger=ELSEWHERE),))
    with pytest.raises(RequestError, match="holds data of an earlier request"):
        again.populate()
    corners: tuple[Corner, ...] = ("bottom-left", "top-right", "top-left")
    others = tuple(replace(FIRST, trigger=Trigger(size=2, margin=0, corner=corner)) for corner in corners)
    with pytest.raises(DataError, match="no client holds"):
        replace(EXPERIMENT, clients=3, then=others).populate()


def test_requests_must_leave_something() -> None:
    everything = tuple(Target("class", label=label) for label in range(1, 10))
    with pytest.raises(RequestError, match="nothing is left to retain"):
        replace(EXPERIMENT, request=Target("class", label=0), then=everything).populate()


def test_the_folder_of_a_run_names_all_requests(run: Run, tmp_path: Path) -> None:
    assert (run.folder / "requests.json").is_file()
    assert '"later"' in (run.folder / "population.json").read_text()
