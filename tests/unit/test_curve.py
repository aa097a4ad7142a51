"""Evaluation of a model, and the curve of its points."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from letheon.curve import CHUNK, Curve, Evaluator, Point, bits_of, flattened, points_of
from letheon.data import Data
from letheon.phase import State
from letheon.request import Request
from letheon.tasks.partition import Partition
from letheon.tasks.population import Population, populate
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits

TASK = Digits()
TARGET = Target("samples", fraction=0.05, placement="spread", trigger=Trigger(size=2, margin=0))


@pytest.fixture(scope="module")
def population() -> Population:
    return populate(TASK, Partition("iid", min_size=1), TARGET, clients=4, seed=0)


def by_hand(state: State, data: Data) -> torch.Tensor:
    module = TASK.model()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(state.params[name])
        outputs: torch.Tensor = module.eval()(data.inputs)
    return outputs


def test_a_point_says_what_the_model_knows(population: Population) -> None:
    state = TASK.init(3)
    evaluate = Evaluator(TASK, population, workers=2)
    point = evaluate("restore", 4, state)
    evaluate.close()
    request = population.request
    forget = [request.select(name, data, "forget") for name, data in sorted(population.clients.items())]
    outputs = torch.cat([by_hand(state, data) for data in forget])
    targets = torch.cat([data.targets for data in forget])
    right = outputs.argmax(1) == targets
    clean = by_hand(state, population.test).argmax(1) == population.test.targets
    assert (point.phase, point.round) == ("restore", 4)
    assert point.kr == pytest.approx(100 * right.double().mean().item())
    assert point.mu == pytest.approx(100 * clean.double().mean().item())
    assert point.forget_loss == pytest.approx(torch.nn.functional.cross_entropy(outputs, targets).item(), rel=1e-4)
    assert bits_of([point], population.forget_size)[0].tolist() == right.tolist()
    assert list(point.test_correct) == torch.bincount(population.test.targets[clean], minlength=10).tolist()
    triggered = population.triggered_test
    assert triggered is not None
    assert point.attack == int((by_hand(state, triggered).argmax(1) == triggered.targets).sum())


def test_a_broken_model_knows_nothing_and_its_point_can_be_written(population: Population) -> None:
    state = TASK.init(0)
    broken = replace(state, params=state.params | {"head.bias": torch.full((10,), float("nan"))})
    evaluate = Evaluator(TASK, population)
    point = evaluate("x", 1, broken)
    evaluate.close()
    assert (point.kr, point.mu, point.attack, point.forget_loss) == (0.0, 0.0, 0, 1e30)


def test_without_a_trigger_there_is_no_attack() -> None:
    population = populate(TASK, Partition("iid", min_size=1), replace(TARGET, trigger=None), clients=3, seed=0)
    evaluate = Evaluator(TASK, population)
    assert evaluate("x", 1, TASK.init(0)).attack is None
    evaluate.close()


def test_test_sets_larger_than_a_chunk_keep_their_order() -> None:
    n = 2 * CHUNK + 500
    generator = torch.Generator().manual_seed(0)
    test = Data(torch.rand(n, 64, generator=generator), torch.arange(n) % 10, torch.arange(n))
    forget = Data(test.inputs[:30], test.targets[:30], torch.arange(n, n + 30))
    population = Population({"a": forget, "b": test}, Request("client", client="a"), test, None, 30, ())
    evaluate = Evaluator(TASK, population, workers=2)
    state = TASK.init(1)
    point = evaluate("x", 1, state)
    evaluate.close()
    right = by_hand(state, test).argmax(1) == test.targets
    assert list(point.test_correct) == torch.bincount(test.targets[right], minlength=10).tolist()


def point(phase: str = "train", round: int = 1, bits: str = "a0") -> Point:
    return Point(phase, round, 12.5, 0.1 + 0.2, 1e30, bits, (1, 2, 3), None)


def test_points_survive_the_way_to_disk() -> None:
    import json

    points = [point(), point("restore", 2)]
    assert points_of(json.loads(json.dumps([asdict(p) for p in points]))) == points


@pytest.mark.parametrize("n", [1, 7, 8, 9, 317])
def test_outcomes_are_unpacked_as_they_were_packed(n: int) -> None:
    bits = np.random.default_rng(n).random((3, n)) < 0.5
    points = [point(bits=np.packbits(row).tobytes().hex()) for row in bits]
    assert (bits_of(points, n) == bits).all()
    assert bits_of(points, n).shape == (3, n)


def test_a_curve_evaluates_every_state_and_tells_who_listens() -> None:
    heard: list[Point] = []
    curve = Curve(lambda phase, done, state: point(phase, done), heard.append)
    curve.observe("train", 1, TASK.init(0))
    curve.observe("train", 2, TASK.init(0))
    assert curve.points == heard == [point("train", 1), point("train", 2)]


def test_a_curve_that_is_loaded_forgets_what_it_had() -> None:
    curve = Curve(lambda phase, done, state: point(phase, done))
    curve.observe("train", 1, TASK.init(0))
    saved = curve.dump()
    curve.observe("train", 2, TASK.init(0))
    curve.load(saved)
    assert [p.round for p in curve.points] == [1]


def test_rows_for_a_table_hold_no_bits() -> None:
    (row,) = flattened(iter([("origin", point())]))
    assert row == {
        "stage": "origin",
        "phase": "train",
        "round": 1,
        "kr": 12.5,
        "mu": 0.1 + 0.2,
        "forget_loss": 1e30,
        "attack": None,
    }
