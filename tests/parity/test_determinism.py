"""One experiment, one result: whatever the order of clients, the number of workers, and who looks on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from letheon import pipeline, tree
from letheon.client import Client
from letheon.curve import Evaluator
from letheon.experiment import Experiment
from letheon.life import training_phases
from letheon.methods.base import Method
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.lethe import Lethe
from letheon.methods.negate import NoT
from letheon.methods.noise import Noise
from letheon.middleware import DryRun, Excluding, Metered
from letheon.phase import Observer, State, drive
from letheon.pipeline import Run
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.population import Population, populate
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.training import Local
from letheon.work import Work

EXPERIMENT = Experiment(
    Digits(norm=True),
    Lethe(rounds=2, restore_rounds=1),
    compare=(NoT(rounds=1), Noise(rounds=1)),
    clients=4,
    request=Target(min_forget=20, trigger=Trigger(size=2, margin=0)),
    local=Local(lr=0.05),
    train_rounds=2,
    continue_rounds=1,
)
PARTS = ("all", "forget", "retain")
DROPOUT = replace(EXPERIMENT, task=Digits(dropout=0.3), method=FineTuning(rounds=1), compare=(), clients=3)


def outcome(run: Run) -> dict[str, object]:
    """Digest and curve of every stage."""
    stages = {"origin": run.origin, **{f"{k}.u": v for k, v in run.unlearned.items()}}
    stages |= {f"{k}.c": v for k, v in run.continued.items()}
    return {
        name: (tree.digest(o.state.params), tree.digest(o.state.buffers), [asdict(p) for p in o.points], o.logs)
        for name, o in stages.items()
    }


def population_of(experiment: Experiment) -> Population:
    return populate(
        experiment.task, experiment.partition, experiment.request, clients=experiment.clients, seed=experiment.seed
    )


def clients_of(experiment: Experiment) -> list[Client]:
    population = population_of(experiment)
    clients = [Client(name, data, experiment.task) for name, data in population.clients.items()]
    for client in clients:
        client.admit(population.request)
    return clients


def digest_of(
    experiment: Experiment, clients: Sequence[Client], *, workers: int, observers: Sequence[Observer] = ()
) -> str:
    """Trains, and unlearns with the experiment's method."""
    request = next(iter(clients[0].requests))
    method = experiment.methods[experiment.method.name]
    with InProcess(clients, workers=workers) as runtime:
        origin = drive(
            training_phases(experiment), runtime, experiment.task.init(0), seed=experiment.seed, observers=observers
        )
        phases = method.phases(origin, experiment.task)
        state = drive(phases, Excluding(runtime, request=request), origin, seed=1, observers=observers)
    return tree.digest(state.params | state.buffers)


def test_a_run_is_the_same_twice_and_with_any_number_of_workers(tmp_path: Path) -> None:
    first = outcome(pipeline.run(EXPERIMENT, tmp_path / "first", workers=1))
    for name, workers in (("again", 1), ("two", 2)):
        assert outcome(pipeline.run(EXPERIMENT, tmp_path / name, workers=workers)) == first


def test_a_run_read_from_its_folder_is_the_run_that_was_returned(tmp_path: Path) -> None:
    run = pipeline.run(EXPERIMENT, tmp_path / "run")
    loaded = pipeline.load(tmp_path / "run")
    assert outcome(loaded) == outcome(run)
    assert list(loaded.origin.state.params) == list(run.origin.state.params)


def test_a_model_that_draws_is_trained_the_same_by_one_process_and_by_two(tmp_path: Path) -> None:
    one = outcome(pipeline.run(DROPOUT, tmp_path / "one", workers=1))
    assert outcome(pipeline.run(DROPOUT, tmp_path / "two", workers=2)) == one


def test_dropout_does_change_the_training() -> None:
    without = replace(DROPOUT, task=Digits())
    assert digest_of(DROPOUT, clients_of(DROPOUT), workers=1) != digest_of(without, clients_of(without), workers=1)


@pytest.mark.parametrize("experiment", [EXPERIMENT, DROPOUT], ids=["threads", "processes"])
def test_the_order_of_clients_does_not_matter(experiment: Experiment) -> None:
    clients = clients_of(experiment)
    assert digest_of(experiment, clients, workers=2) == digest_of(experiment, clients[::-1], workers=1)


def test_another_seed_is_another_run() -> None:
    other = replace(EXPERIMENT, seed=1)
    assert digest_of(EXPERIMENT, clients_of(EXPERIMENT), workers=2) != digest_of(other, clients_of(other), workers=2)


def test_what_a_client_computes_does_not_depend_on_who_else_is_there() -> None:
    clients = clients_of(EXPERIMENT)
    state = EXPERIMENT.task.init(0)
    work = Work("train", state.params, state.buffers, options=EXPERIMENT.local.options(0), seed=7)
    with InProcess(clients) as all_of_them, InProcess(clients[2:3]) as alone:
        (expected,) = [reply for reply in all_of_them.run(work) if reply.client == clients[2].name]
        (reply,) = alone.run(work)
    assert tree.digest(reply.tensors | reply.buffers) == tree.digest(expected.tensors | expected.buffers)


def test_evaluation_changes_nothing() -> None:
    clients = clients_of(EXPERIMENT)
    unseen = digest_of(EXPERIMENT, clients, workers=2)
    evaluate = Evaluator(EXPERIMENT.task, population_of(EXPERIMENT))

    def look(phase: str, done: int, state: State) -> None:
        before = tree.digest(state.params | state.buffers)
        assert evaluate(phase, done, state) == evaluate(phase, done, state)
        assert tree.digest(state.params | state.buffers) == before

    assert digest_of(EXPERIMENT, clients, workers=2, observers=[look]) == unseen
    evaluate.close()


def threads_of_another() -> int:
    """The number of intra-op threads that a new thread has."""
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen[0]


@pytest.mark.parametrize("method", [Lethe(restore_rounds=0), NoT(rounds=1)])
def test_a_caller_finds_its_random_state_and_its_threads_as_they_were(method: Method) -> None:
    # A task of its own: it has counted and listed nothing yet.
    experiment = replace(EXPERIMENT, task=Digits(), method=method, compare=())
    clients = clients_of(experiment)
    torch.manual_seed(123)
    state, threads = torch.get_rng_state(), (torch.get_num_threads(), threads_of_another())
    digest_of(experiment, clients, workers=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_num_threads(), threads_of_another()) == threads
    assert float(torch.tensor([1e-40]) * 1.0) > 0.0  # denormals are not flushed here


def test_a_plan_costs_what_the_run_costs() -> None:
    clients, state = clients_of(EXPERIMENT), EXPERIMENT.task.init(0)
    request = next(iter(clients[0].requests))
    sizes = {
        client.name: {part: len(client.part(Work("train", {}, part=part, request=request))) for part in PARTS}
        for client in clients
    }
    costs = []
    with InProcess(clients) as runtime:
        for federation in (runtime, DryRun(sizes, EXPERIMENT.task)):
            meter = Metered(federation)
            # A search is planned at its longest, see tests of the plan.
            phases = Lethe(local=EXPERIMENT.local, search=None).phases(state, EXPERIMENT.task)
            drive(phases, Excluding(meter, request=request), state, seed=0, observers=[meter.observe])
            costs.append([asdict(cost) | {"seconds": None} for cost in meter.phases])
    (real, planned), spent = costs, costs[0][0].pop("flops")
    assert 0 < spent <= planned[0].pop("flops")  # the ascent may stop early
    assert real == planned
    assert real[0]["bytes_down"] > 0
