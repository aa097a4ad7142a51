"""PGA: the reference model, the ball, and the ascent against a slow loop."""

from __future__ import annotations

import pytest
import torch
from of_three import Small
from torch import nn
from torch.nn import functional as F

from letheon import tree
from letheon.client import Client
from letheon.data import Data
from letheon.errors import ConfigError
from letheon.methods.pga import PGA, Ascent, climb, radius, reference
from letheon.phase import State, drive, seed_of
from letheon.tasks.base import params_of
from letheon.tasks.vision import Digits
from letheon.training import Local, batches, train
from letheon.tree import Params
from letheon.work import Work

LOCAL = Local(lr=0.1, momentum=0.9, batch_size=4)
TASK = Digits()
DATA = TASK.train().take(torch.arange(50))
EVERYTHING = Ascent(lr=0.05, batch_size=16, epochs=2, floor=0.0)


def module_of(state: State) -> nn.Module:
    module = TASK.model()
    module.load_state_dict({**state.params, **state.buffers})
    return module


def distance(a: Params, b: Params) -> float:
    return tree.norm(tree.sub({n: t.double() for n, t in a.items()}, {n: t.double() for n, t in b.items()}))


def slow_climb(module: nn.Module, data: Data, ascent: Ascent, limit: float, seed: int) -> Params:
    """torch.optim on −CE, the gradient's norm cut, and after each step a projection; no early stop."""
    center = params_of(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=ascent.lr, momentum=ascent.momentum)
    local = Local(batch_size=ascent.batch_size, epochs=ascent.epochs)
    for index in batches(len(data), local, torch.Generator().manual_seed(seed)):
        optimizer.zero_grad()
        (-F.cross_entropy(module.eval()(data.inputs[index]), data.targets[index])).backward()
        nn.utils.clip_grad_norm_(module.parameters(), ascent.clip)
        optimizer.step()
        share = min(1.0, limit / distance(params_of(module), center))
        module.load_state_dict({n: center[n] + share * (p - center[n]) for n, p in params_of(module).items()})
    return params_of(module)


@pytest.mark.parametrize("limit", [0.05, 0.3, 1e6])
@pytest.mark.parametrize("clip", [0.2, 5.0])
def test_the_ascent_is_sgd_on_minus_the_loss_projected_after_each_step(limit: float, clip: float) -> None:
    ascent = Ascent(lr=0.05, batch_size=16, epochs=2, clip=clip, floor=0.0)
    fast, slow = module_of(TASK.init(1)), module_of(TASK.init(1))
    steps, _ = climb(TASK, fast, DATA, ascent, limit=limit, seed=4)
    assert steps == 8
    wanted = slow_climb(slow, DATA, ascent, limit, seed=4)
    for name, tensor in params_of(fast).items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-4, atol=1e-6)


def test_the_ascent_stays_in_the_ball_and_reaches_its_surface() -> None:
    for limit in (0.01, 0.1, 1.0):
        module, center = module_of(TASK.init(1)), TASK.init(1).params
        climb(TASK, module, DATA, Ascent(lr=1.0, batch_size=8, epochs=3, floor=0.0), limit=limit, seed=4)
        assert distance(params_of(module), center) == pytest.approx(limit, rel=1e-5)


def test_the_ascent_stops_as_soon_as_accuracy_is_below_the_floor() -> None:
    module = module_of(TASK.init(1))
    train(module, F.cross_entropy, DATA, Local(lr=0.1, batch_size=8, epochs=20), seed=0)
    start = State(params_of(module))

    def steps_until(floor: float) -> tuple[int, float]:
        ascent = Ascent(lr=0.2, batch_size=8, epochs=6, floor=floor)
        return climb(TASK, module_of(start), DATA, ascent, limit=1e6, seed=4)

    assert steps_until(0.0)[0] == 42
    steps, accuracy = steps_until(0.7)
    assert 0 < steps < 42
    assert accuracy < 0.7
    assert steps_until(accuracy + 1e-9)[0] == steps  # no step before was below
    untrained, _ = climb(TASK, module_of(TASK.init(1)), DATA, Ascent(floor=1.0), limit=1.0, seed=4)
    assert untrained == 0


def test_the_reference_is_the_mean_of_the_other_models() -> None:
    models = [TASK.init(seed).params for seed in range(4)]
    weights = [10, 14, 20, 7]
    mean = {n: sum(k * m[n].double() for k, m in zip(weights, models, strict=True)) / 51 for n in models[0]}
    others = {
        n: sum(k * m[n].double() for k, m in zip(weights[1:], models[1:], strict=True)) / 41 for n in models[0]
    }
    own = {n: models[0][n].double() - mean[n] for n in mean}
    found = reference(mean, own, 10 / 51)  # type: ignore[arg-type]
    for name, tensor in others.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-12)
    uniform = reference({"w": torch.tensor([5.0])}, {"w": torch.tensor([8.0 - 5.0])}, 1 / 4)
    assert float(uniform["w"]) == pytest.approx((4 * 5.0 - 8.0) / (4 - 1))


def test_the_radius_is_a_third_of_the_mean_square_distance_to_random_models() -> None:
    center = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.0])}
    strangers = [
        {"w": torch.tensor([1.0, 5.0]), "b": torch.tensor([4.0])},
        {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([1.0])},
    ]
    assert radius(center, strangers) ** 2 == pytest.approx((25.0 + 1.0) / 2 / 3)


def test_a_run_goes_through_reference_and_ball(small: Small) -> None:
    method = PGA(ascent=Ascent(lr=0.5, batch_size=4, epochs=20, floor=0.0), strangers=3, restore_rounds=0, local=LOCAL)
    seen: list[State] = []
    drive(
        method.phases(small.start, small.task),
        small.tap,
        small.start,
        seed=9,
        observers=[lambda phase, done, state: seen.append(state)],
    )
    (_, first), (works, second) = small.tap.calls
    own = next(reply for reply in first if reply.work == 0)
    assert sum(reply.weight for reply in first if reply.work == 1) == 30  # all samples, although one was looked at
    for name, tensor in small.start.params.items():
        wanted = tensor.double() - 14 / 30 * own.tensors[name].double()  # q = 14/44
        torch.testing.assert_close(seen[0].params[name].double(), wanted, rtol=1e-5, atol=1e-7)
    strangers = [small.task.init(seed_of(f"pga|{i}")).params for i in range(3)]
    squares = [distance(seen[0].params, stranger) ** 2 for stranger in strangers]
    limit = (sum(squares) / 3 / 3) ** 0.5
    assert works[0].options["radius"] == pytest.approx(limit, rel=1e-6)
    assert distance(seen[1].params, seen[0].params) == pytest.approx(limit, rel=1e-4)  # lr is large: on the surface
    assert [reply.client for reply in second] == ["b"]
    for state in seen:
        assert tree.digest(state.buffers) == tree.digest(small.start.buffers)


def test_the_price_counts_steps_and_looks_at_accuracy() -> None:
    client = Client("u", DATA, TASK)
    start = TASK.init(1)
    options = {**EVERYTHING.options(), "radius": 1.0}
    reply = client.execute(Work("climb", start.params, start.buffers, options=options, seed=4), TASK.model())
    assert reply.metrics["steps"] == 8
    assert reply.metrics["samples"] == 2 * 50 + 9 * 50
    assert reply.metrics["flops"] == TASK.flops * (3 * 2 * 50 + 9 * 50)
    stopping = {**options, "floor": 1.0}
    reply = client.execute(Work("climb", start.params, start.buffers, options=stopping, seed=4), TASK.model())
    assert (reply.metrics["steps"], reply.metrics["samples"]) == (0, 50)
    assert tree.norm(reply.tensors) == 0.0


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"lr": 0.0}, {"clip": -1.0}, {"momentum": 1.0}, {"floor": 1.5}, {"batch_size": 0}, {"epochs": 0}):
        with pytest.raises(ConfigError, match="ascent"):
            Ascent(**wrong)  # type: ignore[arg-type]
    for strangers, restore_rounds in ((0, 1), (1, -1)):
        with pytest.raises(ConfigError, match="pga"):
            PGA(strangers=strangers, restore_rounds=restore_rounds)
