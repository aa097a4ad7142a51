"""Rapid Retraining and its optimizer against slow loops written from the update rule."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from of_three import Small
from torch import Tensor
from torch.nn import functional as F

from letheon import tree
from letheon.errors import ConfigError
from letheon.methods.rapid import RapidRetraining
from letheon.phase import drive, seed_of
from letheon.training import Local, batches, block_means, stepper
from letheon.tree import Params

LOCAL = Local(lr=0.5, batch_size=4, weight_decay=0.01, first_round=60, decay=0.5)


def slow_block_means(values: list[float]) -> list[float]:
    means = []
    for i in range(len(values)):
        block = values[i // 3 * 3 : i // 3 * 3 + 3]
        means.append(sum(block) / len(block))
    return means


class SlowFisher:
    """w ← w − η·m̂/(√v̂ + ε), scalar by scalar; v is fed with block means of g²."""

    def __init__(self, size: int, lr: float, decay: float) -> None:
        self.m, self.v, self.taken = [0.0] * size, [0.0] * size, 0
        self.lr, self.decay = lr, decay

    def step(self, weights: list[float], gradients: list[float]) -> list[float]:
        self.taken += 1
        gradients = [g + self.decay * w for g, w in zip(gradients, weights, strict=True)]
        moved = []
        for i, mean in enumerate(slow_block_means([g * g for g in gradients])):
            self.m[i] = 0.9 * self.m[i] + 0.1 * gradients[i]
            self.v[i] = 0.999 * self.v[i] + 0.001 * mean
            first = self.m[i] / (1 - 0.9**self.taken)
            second = self.v[i] / (1 - 0.999**self.taken)
            moved.append(weights[i] - self.lr * first / (math.sqrt(second) + 1e-8))
        return moved


@pytest.mark.parametrize("shape", [(), (1,), (2,), (3,), (7,), (9,), (4, 5), (2, 3, 2, 2)])
def test_block_means_are_those_of_three_consecutive_entries(shape: tuple[int, ...]) -> None:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    means = block_means(values)
    assert means.shape == values.shape
    assert means.flatten().tolist() == pytest.approx(slow_block_means(values.flatten().tolist()), rel=1e-12)


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_fisher_steps_follow_the_rule(weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(2)
    params = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 2), (5,))]
    slow = [SlowFisher(p.numel(), 0.1, weight_decay) for p in params]
    wanted = [p.flatten().tolist() for p in params]
    step = stepper(params, Local("fisher", lr=0.1, weight_decay=weight_decay))
    for _ in range(4):
        gradients = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in params]
        step([g.clone() for g in gradients])
        wanted = [s.step(w, g.flatten().tolist()) for s, w, g in zip(slow, wanted, gradients, strict=True)]
    for got, want in zip(params, wanted, strict=True):
        assert got.flatten().tolist() == pytest.approx(want, rel=1e-10, abs=1e-12)


def slow_retraining(small: Small, client: str, start: Params, lr: float, seed: int) -> dict[str, Tensor]:
    """One client's round from ``start``."""
    module, data = small.task.model(), small.clients[client]
    module.load_state_dict({**small.task.init(5).buffers, **start})
    rules = {n: SlowFisher(p.numel(), lr, LOCAL.weight_decay) for n, p in module.named_parameters()}
    generator = torch.Generator().manual_seed(seed_of(f"{seed}|{client}"))
    for index in batches(len(data), LOCAL, generator, smallest=2):
        module.zero_grad()
        F.cross_entropy(module(data.inputs[index]), data.targets[index]).backward()
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            moved = rules[name].step(parameter.detach().flatten().tolist(), parameter.grad.flatten().tolist())
            parameter.data = torch.tensor(moved).view_as(parameter)
    return tree.clone(dict(module.named_parameters()))


def test_a_round_is_the_mean_of_newton_steps_from_fresh_weights(small: Small) -> None:
    method = RapidRetraining(lr=0.01, rounds=1, init_seed=5, local=LOCAL)
    end = drive(method.phases(small.start, small.task), small.tap, small.start, seed=9)
    seed, fresh = small.tap.calls[0][0][0].seed, small.task.init(5).params
    models = {client: slow_retraining(small, client, fresh, 0.01, seed) for client in ("a", "c")}
    for name, tensor in end.params.items():
        wanted = (10 * models["a"][name].double() + 20 * models["c"][name].double()) / 30
        # Newton steps have one length whatever the gradient: where it is all rounding, so is the step.
        torch.testing.assert_close(tensor, wanted.to(tensor.dtype), rtol=1e-3, atol=1e-4)


def test_every_round_is_on_retained_data_with_its_own_optimizer_and_schedule(small: Small) -> None:
    method = RapidRetraining(local=replace(LOCAL, first_round=0)).configured(Local(), train_rounds=3, seed=5)
    drive(method.phases(small.start, small.task), small.tap, small.start, seed=9)
    works = [work for works, _ in small.tap.calls for work in works]
    assert [work.options["lr"] for work in works] == pytest.approx([1e-3, 5e-4, 2.5e-4])
    assert {(work.kind, work.part, work.options["optimizer"]) for work in works} == {("train", "retain", "fisher")}


def test_what_origin_learnt_has_no_influence(small: Small) -> None:
    method = RapidRetraining(rounds=2, init_seed=5, local=LOCAL)
    other = replace(small.start, params=tree.scale(small.start.params, -3.0))
    ends = [drive(method.phases(s, small.task), small.tap, s, seed=9) for s in (small.start, other)]
    assert tree.digest(ends[0].params | ends[0].buffers) == tree.digest(ends[1].params | ends[1].buffers)


@pytest.mark.parametrize(("field", "value"), [("lr", 0.0), ("lr", -1.0), ("rounds", 0)])
def test_settings_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"rapid-retraining.{field}"):
        RapidRetraining(**{field: value})  # type: ignore[arg-type]
