"""Named losses against their formulas, and the work option that chooses one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from of_three import Small
from torch.nn import functional as F

from letheon.errors import LetheonError, RoundError
from letheon.methods.base import train_work
from letheon.objectives import OBJECTIVES, objective
from letheon.training import Local
from letheon.work import Reply, average

LOCAL = Local(lr=0.1, momentum=0.0, batch_size=64)


def logits(n: int = 6, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(n, classes, generator=generator, dtype=torch.float64) * 3
    return outputs, torch.randint(classes, (n,), generator=generator)


def asked(small: Small, name: str) -> list[Reply]:
    work = train_work(small.start, "forget", LOCAL, 0)
    return list(small.tap.run(replace(work, options={**work.options, "objective": name}, seed=3)))


def test_uce_is_minus_log_of_one_minus_half_the_probability_of_the_label() -> None:
    outputs, targets = logits()
    wanted = 0.0
    for row, label in zip(outputs.tolist(), targets.tolist(), strict=True):
        probability = math.exp(row[label]) / sum(math.exp(z) for z in row)
        wanted += -math.log(1 - probability / 2) / len(targets)
    assert float(OBJECTIVES["uce"](outputs, targets, F.cross_entropy)) == pytest.approx(wanted, rel=1e-12)


def test_uce_lies_between_0_and_ln_2_and_has_a_finite_gradient_at_both_ends() -> None:
    for margin, value in ((200.0, math.log(2)), (-200.0, 0.0)):
        outputs = torch.tensor([[margin, 0.0, 0.0]], requires_grad=True)
        loss = OBJECTIVES["uce"](outputs, torch.tensor([0]), F.cross_entropy)
        assert float(loss.detach()) == pytest.approx(value, abs=1e-7)
        (gradient,) = torch.autograd.grad(loss, outputs)
        assert bool(gradient.isfinite().all())


def test_uce_tells_small_probabilities_apart() -> None:
    outputs = torch.tensor([[-20.0, 0.0]])  # p = 2e-9, which 1 − p/2 in float32 does not see
    found = float(OBJECTIVES["uce"](outputs, torch.tensor([0]), F.cross_entropy))
    assert found == pytest.approx(math.exp(-20.0) / 2, rel=1e-4)


def test_descending_uce_makes_the_label_less_likely() -> None:
    outputs, targets = logits()
    outputs.requires_grad_()
    (gradient,) = torch.autograd.grad(OBJECTIVES["uce"](outputs, targets, F.cross_entropy), outputs)
    assert bool((gradient.gather(1, targets[:, None]) > 0).all())


def test_ascent_is_minus_the_tasks_own_loss_and_task_is_that_loss() -> None:
    outputs, targets = logits()
    own = F.cross_entropy(outputs, targets)
    assert torch.equal(objective("task", F.cross_entropy)(outputs, targets), own)
    assert torch.equal(objective("ascent", F.cross_entropy)(outputs, targets), -own)


def test_an_unknown_objective_is_refused_with_the_one_that_was_meant(small: Small) -> None:
    with pytest.raises(LetheonError, match="unknown objective 'uec'; did you mean 'uce'\\? Known objectives: task"):
        objective("uec", F.cross_entropy)
    with pytest.raises(RoundError, match="did you mean 'ascent'"):
        asked(small, "ascnet")


def test_training_minimises_the_objective_that_the_work_names(small: Small) -> None:
    """One full batch of plain SGD: w_b − w is −lr times the gradient of the named loss."""
    data = small.clients["b"]
    for name in OBJECTIVES:
        module = small.task.model()
        module.load_state_dict({**small.start.params, **small.start.buffers})
        outputs = module.train()(data.inputs)
        loss = {
            "task": F.cross_entropy(outputs, data.targets),
            "ascent": -F.cross_entropy(outputs, data.targets),
            "uce": -(1 - F.softmax(outputs, 1)[torch.arange(len(data)), data.targets] / 2).log().mean(),
        }[name]
        gradients = dict(
            zip(small.start.params, torch.autograd.grad(loss, list(module.parameters())), strict=True)
        )
        (reply,) = asked(small, name)
        assert reply.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
        for tensor, gradient in gradients.items():
            torch.testing.assert_close(reply.tensors[tensor], -0.1 * gradient, rtol=1e-4, atol=1e-6)


def test_without_an_option_the_tasks_loss_is_minimised(small: Small) -> None:
    plain = average(small.tap.run(replace(train_work(small.start, "forget", LOCAL, 0), seed=3)))
    named = average(asked(small, "task"))
    assert all(torch.equal(plain.tensors[name], named.tensors[name]) for name in plain.tensors)
