"""Requests served together: one pass forgets the union, and each of them is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from letheon import config, pipeline
from letheon.client import Client
from letheon.curve import Evaluator
from letheon.diagnostics.material import material
from letheon.errors import ConfigError, MethodError, RequestError
from letheon.experiment import Experiment
from letheon.methods.fedau import FedAU, auxiliary_work, head_of
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.negate import NoT
from letheon.methods.pga import PGA
from letheon.pipeline import Run
from letheon.plan import plan
from letheon.report.model import report_of, stages
from letheon.report.requests import as_text, known
from letheon.request import Request, Scope, free
from letheon.results import Results, total
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.testing.scene import together
from letheon.training import Local
from letheon.work import Work

FIRST = Target(min_forget=20, trigger=Trigger(size=2, margin=0))
ELSEWHERE = Trigger(size=2, margin=0, corner="top-left", target=1)
SAMPLES = Target("samples", fraction=0.05, placement="spread", trigger=ELSEWHERE)
UNION = replace(FIRST, also=(SAMPLES, Target("class", label=7)))
EXPERIMENT = Experiment(
    Digits(),
    NoT(rounds=2),
    compare=(FineTuning(rounds=1),),
    clients=4,
    request=UNION,
    then=(Target("class", label=5),),
    local=Local(lr=0.05),
    train_rounds=4,
    continue_rounds=2,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pipeline.run(EXPERIMENT, tmp_path_factory.mktemp("together"), workers=1)


def test_the_data_to_forget_are_the_union_of_the_members() -> None:
    population = EXPERIMENT.populate()
    parts = population.parts
    assert [part.request.scope for part in parts] == ["client", "samples", "class"]
    assert population.request.members == tuple(part.request for part in parts)
    for name in population.clients:
        union = torch.stack([part.covered(name) for part in parts]).any(0)
        assert torch.equal(population.covered(name), union)
    assert max(part.forget_size for part in parts) < population.forget_size <= sum(p.forget_size for p in parts)
    assert list(population.views) == ["1", "1.1", "1.2", "1.3", "2"]


def test_the_first_member_is_constructed_as_if_it_were_alone() -> None:
    alone = replace(EXPERIMENT, request=FIRST, then=()).populate()
    assert EXPERIMENT.populate().parts[0].request == alone.request


def test_each_member_has_its_trigger_and_the_union_has_all_of_them() -> None:
    population = EXPERIMENT.populate()
    client, samples, whole_class = population.parts
    assert client.triggered_test is not None
    assert samples.triggered_test is not None
    assert population.triggered_test is not None
    assert whole_class.triggered_test is None
    assert len(population.triggered_test) == len(client.triggered_test) + len(samples.triggered_test)


def test_one_request_is_asked_for_and_its_parts_are_selected_at_once() -> None:
    population = EXPERIMENT.populate()
    request = population.request
    for name, data in population.clients.items():
        client = Client(name, data, EXPERIMENT.task)
        client.admit(request)
        covered = int(population.covered(name).sum())
        assert len(client.part(Work("train", {}, part="forget", request=request.id))) == covered
        assert len(client.part(Work("train", {}, part="retain"))) == len(data) - covered


def test_a_request_alone_keeps_its_name_and_members_change_it() -> None:
    one, other = Request("client", client="a"), Request("class", label=3)
    assert one.members == (one,)
    assert replace(one, also=(other,)).members == (one, other)
    assert replace(one, also=(other,)).id not in (one.id, other.id, replace(other, also=(one,)).id)
    assert (one.clients, one.labels, one.scopes) == ({"a"}, frozenset(), {"client"})
    both = replace(one, also=(other,))
    assert (both.clients, both.labels, both.scopes) == ({"a"}, {3}, {"client", "class"})


def test_the_matrix_has_a_column_for_the_union_and_one_for_each_member(run: Run) -> None:
    outcomes = (run.unlearned["not"], *run.later["not"], run.continued["not"])
    assert len(outcomes) == 3
    for at, each in enumerate(run.population.views.values()):
        evaluate = Evaluator(EXPERIMENT.task, each, workers=1)
        assert [row[at] for row in run.known["not"]] == [evaluate("x", 0, o.state).kr for o in outcomes]
        evaluate.close()
    rows = known(run)
    assert list(rows[0].retention) == ["1", "1.1", "1.2", "1.3", "2"]
    assert [row.after for row in rows[1:4]] == ["request 1", "request 2", "continued training"]
    assert as_text(rows).row_count == len(rows)


def test_together_alone_has_a_matrix_too(tmp_path: Path) -> None:
    experiment = replace(EXPERIMENT, then=(), compare=())
    run = pipeline.run(experiment, tmp_path, workers=1)
    assert [len(row) for row in run.known["not"]] == [4, 4]
    assert pipeline.load(tmp_path).known == run.known


def test_one_pass_serves_the_union(run: Run) -> None:
    population = run.population
    held = {name: int(free(population.requests[:1], name, data).sum()) for name, data in population.clients.items()}
    assert total(run.unlearned["not"].costs).samples == 2 * sum(held.values())
    assert run.known["retrain"][0][3] == 0.0  # of a class that is gone nothing is left to learn from


def test_the_plan_prices_what_the_run_took(run: Run) -> None:
    planned = {stage.stage: sum(phase.samples for phase in stage.phases) for stage in plan(EXPERIMENT).stages}
    assert planned == {name: total(outcome.costs).samples for name, outcome in stages(run).items()}


def test_rows_and_report_name_all_members(run: Run) -> None:
    row = Results(run).row("not")
    assert row["scope"] == "client+samples+class"
    assert row["n_forget"] == run.population.forget_size
    (fact,) = [fact.value for fact in report_of(run).population if fact.name == "Request"]
    assert fact.count("together with it") == 2
    assert "class level, class 7" in fact
    described = (run.folder / "population.json").read_text()
    assert described.count('"scope"') == 4


def test_classes_that_go_count_in_no_utility(run: Run) -> None:
    assert run.population.labels == {5, 7}


def test_a_run_is_at_class_level_if_nothing_but_classes_goes() -> None:
    several = replace(EXPERIMENT, request=Target("class", label=3, also=(Target("class", label=7),)), then=())
    assert several.populate().request.scopes == {"class"}
    assert EXPERIMENT.populate().request.scopes == {"client", "class", "samples"}


def test_clean_and_triggered_images_of_the_diagnostics_are_the_same_images() -> None:
    population = EXPERIMENT.populate()
    found = material(population, samples=10_000)
    assert found.clean is not None
    assert found.triggered is not None
    assert found.clean.shape == found.triggered.shape
    changed = (found.clean != found.triggered).sum(1)
    assert int(changed.max()) <= 4  # the four pixels of a trigger
    assert int(changed.min()) >= 1


def test_a_file_lists_what_goes_together(tmp_path: Path) -> None:
    path = tmp_path / "together.toml"
    path.write_text(
        'task = "digits"\nmethod = "not"\n[request]\nmin_forget = 20\n[[request.also]]\nscope = "class"\nlabel = 7\n'
        '[[then]]\nscope = "class"\nlabel = 5\n[[then.also]]\nscope = "class"\nlabel = 6\n'
    )
    experiment = Experiment.load(path)
    assert experiment.request.also == (Target("class", label=7),)
    assert experiment.then[0].also == (Target("class", label=6),)
    assert config.build(Experiment, config.plain(experiment), "again") == experiment
    assert Experiment.load(path, ["request.also.0.label=8"]).request.members[1].label == 8


def test_without_it_an_experiment_is_named_as_before() -> None:
    assert "also" not in config.plain(FIRST)
    assert config.digest(replace(UNION, also=None)) == config.digest(FIRST)


def test_what_goes_together_is_listed_flat() -> None:
    with pytest.raises(ConfigError, match="list all that go together beside each other"):
        replace(FIRST, also=(replace(SAMPLES, also=(Target("class"),)),))
    with pytest.raises(RequestError, match="list them all"):
        Request("class", label=1, also=(Request("class", label=2, also=(Request("class", label=3),)),))


def test_triggers_in_one_corner_are_refused_among_members_too() -> None:
    beside = replace(SAMPLES, trigger=FIRST.trigger)
    with pytest.raises(ConfigError, match=r"in the same corner.*trigger\.corner"):
        replace(EXPERIMENT, request=replace(FIRST, also=(beside,)))


def test_a_method_that_cannot_is_refused_before_any_work() -> None:
    with pytest.raises(MethodError, match="pga does not serve requests of scope 'samples'"):
        replace(EXPERIMENT, method=PGA(), then=())
    with pytest.raises(MethodError, match="fedau serves requests of one scope together, not class and client"):
        replace(EXPERIMENT, method=FedAU(), request=replace(FIRST, also=(Target("class"),)), then=())
    replace(EXPERIMENT, method=FedAU(), request=Target("class", also=(Target("class", label=1),)), then=())


@pytest.mark.parametrize(("other", "is_class"), [("class", 1.0), ("client", 0.0)])
def test_fedau_subtracts_if_classes_go_together_and_nothing_else(other: Scope, is_class: float) -> None:
    scene = together("class", other)
    state = scene.origin
    work = auxiliary_work(state, "forget", Local(steps=1), start=head_of(state.params, scene.task.head), labels=0)
    with scene.runtime() as runtime:
        replies = list(scene.guarded(runtime).run(work))
    assert {reply.metrics["whole_class"] for reply in replies} == {is_class}


def test_a_whole_client_is_listed_before_what_goes_with_it() -> None:
    samples_first = replace(SAMPLES, also=(replace(FIRST, client="c001"),))
    with pytest.raises(RequestError, match="list whole clients before what else goes together"):
        replace(EXPERIMENT, request=samples_first, then=()).populate()


def test_a_member_must_cover_something_of_its_own() -> None:
    again = replace(SAMPLES, also=(Target("class", label=7),))
    gone = replace(EXPERIMENT, request=Target("class", label=7), then=(again,))
    with pytest.raises(RequestError, match="request 2: earlier requests cover all that it covers"):
        gone.populate()
