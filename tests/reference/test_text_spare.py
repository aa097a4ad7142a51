"""A descent that watches retained texts: where it stops, what it goes back to, and what it must not look at."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from letheon.client import Client
from letheon.data import Data
from letheon.errors import ConfigError, DataError, MethodError
from letheon.methods.ascent import GA, GradDiff
from letheon.methods.descent import Cop, Descent, Lora
from letheon.methods.preference import NPO
from letheon.methods.watch import split
from letheon.middleware import Excluding, Quorum
from letheon.phase import State, drive
from letheon.request import Request
from letheon.runtimes.alone import Alone, threads
from letheon.runtimes.inprocess import InProcess
from letheon.stage import Logs
from letheon.stream.experiment import Stream
from letheon.stream.life import run
from letheon.tasks.text import Questions
from letheon.text.descent import Held, Recipe, descend, mean_loss
from letheon.text.goal import Goal
from letheon.training import Local
from text_toys import Toys, pair

TUNING = Recipe(lr=3e-3, epochs=4, batch_size=2, spare=1e6)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@dataclass(frozen=True)
class Blind(Toys):
    """Toys of which only the first five people are asked about."""

    def questions(self) -> Mapping[str, Questions]:
        return {"retain": Questions({str(i): pair(i) for i in range(5)})}


TASK = Blind()


def texts() -> dict[str, Data]:
    data = TASK.train()
    return {
        name: data.take(torch.tensor(rows))
        for name, rows in (("forget", [8, 9]), ("retain", [0, 1, 2, 3, 4]), ("watched", [5, 6]))
    }


def fresh() -> nn.Module:
    module = TASK.prototype()
    start = TASK.init(0)
    for name, parameter in module.named_parameters():
        parameter.data.copy_(start.params[name])
    return module


def tensors(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


GOALS = [Goal("ascent"), Goal("ascent", "nll"), Goal("npo", options={"beta": 0.1})]


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.forget} {goal.retain}")
def test_watching_alone_changes_no_bit(goal: Goal) -> None:
    plain, watched = fresh(), fresh()
    without = descend(plain, goal, texts(), replace(TUNING, spare=None), seed=0)
    found = descend(watched, goal, texts(), TUNING, seed=0)
    assert same(tensors(plain), tensors(watched))
    assert (without.epochs, without.looked, without.kept) == ((), 0, 4)
    assert (found.steps, found.loss, found.kept) == (without.steps, without.loss, 4)
    assert len(found.epochs) == 5
    assert found.looked == 5 * (2 + 2)
    assert found.epochs[-1].forget == mean_loss(watched, texts()["forget"])
    assert found.epochs[-1].retained == mean_loss(watched, texts()["watched"])


def test_it_goes_back_to_the_last_epoch_that_spared_what_is_watched_and_stops() -> None:
    course = descend(fresh(), Goal("ascent"), texts(), TUNING, seed=0).epochs
    rises = [look.retained - course[0].retained for look in course]
    assert rises[1] < rises[2] < rises[3], "the toy must lose more with every epoch"
    module, after = fresh(), list[list[Tensor]]()
    held = Held(restore=lambda: after.append(tensors(module)))
    recipe = replace(TUNING, spare=(rises[2] + rises[3]) / 2)
    found = descend(module, Goal("ascent"), texts(), recipe, held=held, seed=0)
    assert found.kept == 2
    assert found.epochs == course[:4]
    assert found.steps == len(after) == 3
    assert same(tensors(module), after[1])
    assert not same(after[1], after[2])
    exactly = descend(fresh(), Goal("ascent"), texts(), replace(TUNING, spare=rises[2]), seed=0)
    assert exactly.kept == 2


def test_a_loss_that_is_no_number_spares_nothing() -> None:
    module = fresh()
    broken, steps = next(iter(module.parameters())), list[int]()

    def breaks() -> None:
        steps.append(1)
        if len(steps) == 2:
            broken.data.fill_(float("nan"))

    found = descend(module, Goal("ascent"), texts(), TUNING, held=Held(restore=breaks), seed=0)
    assert found.kept == 1
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_a_first_epoch_that_costs_too_much_leaves_the_model_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    module, before = fresh(), tensors(fresh())
    with caplog.at_level(logging.WARNING):
        found = descend(module, Goal("ascent"), texts(), replace(TUNING, spare=0.0), seed=0)
    assert (found.kept, found.loss) == (0, 0.0)
    assert same(tensors(module), before)
    assert "nothing is forgotten" in caplog.text


def test_a_ceiling_still_ends_what_is_watched() -> None:
    start = mean_loss(fresh(), texts()["forget"])
    found = descend(fresh(), Goal("ascent"), texts(), replace(TUNING, ceiling=start + 1e-6), seed=0)
    assert (found.kept, found.steps) == (1, 1)


def test_dropout_is_off_while_it_looks() -> None:
    module = nn.Sequential(fresh(), nn.Dropout(0.5)).train()
    assert mean_loss(module, texts()["forget"]) == mean_loss(module, texts()["forget"])
    assert module.training


def served(method: Descent, client: Client, logs: Logs | None = None, count: int = 1) -> list[State]:
    state, states, module = TASK.init(0), [], TASK.prototype()
    for k, ids in enumerate(TASK.requests()[:count]):
        request = Request("samples", samples=tuple(ids))
        client.admit(request)
        federation = Excluding(Quorum(Alone(client, module)), request=request.id)
        observers = [logs.observe] if logs else []
        state = drive(method.phases(state, TASK), federation, state, seed=k, observers=observers)
        states.append(state)
    return states


def holder() -> Client:
    return Client("holder", TASK.train(), TASK)


def test_what_is_watched_is_neither_drawn_nor_reported_and_stays_the_same() -> None:
    data = TASK.train()
    one, two = (split(TASK, data.take(torch.arange(count)))["watched"].ids.tolist() for count in (10, 8))
    assert one == two
    assert set(one) <= {5, 6, 7}
    parts = split(TASK, data.take(torch.arange(8)))
    assert sorted([*parts["retain"].ids.tolist(), *two]) == list(range(8))


def test_what_is_watched_is_not_trained_on() -> None:
    watched = split(TASK, TASK.train().take(torch.arange(8)))["watched"].ids
    ends = []
    for spoilt in (torch.tensor([-1]), watched, torch.arange(5)):
        client = holder()
        client.data.targets[torch.isin(client.data.ids, spoilt), 3:] = 7
        logs = Logs()
        end = served(GradDiff(tuning=replace(TUNING, epochs=12)), client, logs)[0]
        ends.append((list(end.params.values()), logs.entries["epochs"]))
    assert same(ends[0][0], ends[1][0])
    assert ends[0][1] != ends[1][1], "it is watched"
    assert not same(ends[0][0], ends[2][0]), "the others are trained on"


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["weights", "lora"])
def test_going_back_keeps_what_cop_promises_and_each_request_is_logged_once(lora: Lora | None) -> None:
    whole = Cop(energy=1.0, rank=10**6, rank_total=10**6)
    method, logs = GA(tuning=TUNING, cop=whole, lora=lora), Logs()
    served(method, holder(), logs, 2)
    assert len(logs.entries["epochs"]) == len(logs.entries["kept"]) == 2
    rises = [row[1] - logs.entries["epochs"][1][0][1] for row in logs.entries["epochs"][1]]
    over = next(epoch for epoch in range(2, 5) if rises[epoch] > max(rises[:epoch]))
    bound = max(rises[:over])
    strict, told = replace(method, tuning=replace(TUNING, spare=bound)), Logs()
    first = served(replace(method, tuning=TUNING), holder(), None, 1)[0]
    client = holder()
    served(method, client, None, 1)
    second = Request("samples", samples=tuple(TASK.requests()[1]))
    client.admit(second)
    module = TASK.prototype()
    federation = Excluding(Quorum(Alone(client, module)), request=second.id)
    state = drive(strict.phases(first, TASK), federation, first, seed=1, observers=[told.observe])
    assert told.entries["kept"] == [over - 1]
    inputs = TASK.train().take(torch.tensor(TASK.requests()[0])).inputs
    said = []
    for each in (first, state):
        for name, parameter in module.named_parameters():
            parameter.data.copy_(each.params[name])
        said.append(module(inputs).detach())
    assert torch.allclose(*said, atol=1e-4)
    assert not same(list(first.params.values()), list(state.params.values()))


@pytest.mark.parametrize("method", [GA(tuning=TUNING), NPO(tuning=TUNING), GA(tuning=replace(TUNING, spare=None))])
def test_every_text_that_passes_is_counted(method: Descent) -> None:
    client, module, passed = holder(), TASK.prototype(), list[int]()
    request = Request("samples", samples=tuple(TASK.requests()[0]))
    client.admit(request)
    start = TASK.init(0)
    module.register_forward_hook(lambda _, inputs, __: passed.append(len(inputs[0])))
    work = method._work("descend", start)
    reply = client.execute(replace(work, request=request.id), module)
    assert reply.error == ""
    assert reply.metrics["samples"] == sum(passed) - 1  # one text shows which layers share an input


def test_too_little_to_watch_is_refused(tmp_path: Path) -> None:
    data = Toys().train()
    with pytest.raises(MethodError, match="10 texts are retained, of which 0 are not among the questions"):
        split(Toys(), data.take(torch.arange(10)))
    with pytest.raises(MethodError, match="8 texts are retained, of which 0"):
        run(Stream(Toys(), GA(tuning=TUNING)), tmp_path / "run")
    assert not (tmp_path / "run").exists(), "it is refused before anything is trained"
    with pytest.raises(MethodError, match="1 texts are retained"):
        split(TASK, data.take(torch.tensor([6])))
    with pytest.raises(DataError, match="needs retained texts to watch"):
        descend(fresh(), Goal("ascent"), {"forget": texts()["forget"]}, TUNING, seed=0)
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="spare: must not be negative"):
            Recipe(spare=wrong)


def test_two_holders_of_one_request_are_refused() -> None:
    data, ids = TASK.train(), torch.tensor(TASK.requests()[0])
    halves = [data.take(data.ids % 2 == side) for side in (0, 1)]
    clients = [Client(f"c{i}", half, TASK) for i, half in enumerate(halves)]
    request, start = Request("samples", samples=tuple(ids.tolist())), TASK.init(0)
    with InProcess(clients, workers=1) as runtime:
        for client in clients:
            client.admit(request)
        with pytest.raises(MethodError, match="2 clients hold data of the request"):
            drive(GA(tuning=TUNING).phases(start, TASK), Excluding(Quorum(runtime), request=request.id), start, seed=0)


def test_a_streams_stage_has_the_course_of_its_request(tmp_path: Path) -> None:
    stream = Stream(TASK, GA(tuning=TUNING, cop=Cop(rank=4)), local=Local(lr=1e-3, optimizer="adamw"), tokens=2)
    done = run(stream, tmp_path)
    for outcome in done.served["ga+cop"].outcomes:
        assert outcome.logs["kept"] == [4]
        assert [len(rows) for rows in outcome.logs["epochs"]] == [5]
    results = [json.loads(path.read_text()) for path in tmp_path.rglob("result.json")]
    assert sum("epochs" in found["logs"] for found in results) == 2
    quiet = run(replace(stream, method=GA(tuning=replace(TUNING, spare=None))), tmp_path / "quiet")
    assert all(outcome.logs == {} for outcome in quiet.served["ga"].outcomes)
