"""Local training against torch.optim and against slow loops written from the update rules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from letheon.data import Data
from letheon.errors import DataError
from letheon.training import Local, batches, clipped, train

SEED = 11


def problem(n: int = 22) -> tuple[nn.Module, Data]:
    generator = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    inputs = torch.randn(n, 5, generator=generator)
    targets = torch.randint(3, (n,), generator=generator)
    return module, Data(inputs, targets, torch.arange(n))


def order(n: int, local: Local) -> list[Tensor]:
    """The index batches of the round."""
    return list(batches(n, local, torch.Generator().manual_seed(SEED)))


def values(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def by_torch(local: Local, module: nn.Module, data: Data) -> list[Tensor]:
    optimizer = torch.optim.SGD(
        module.parameters(), lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay
    )
    for index in order(len(data), local):
        optimizer.zero_grad()
        F.cross_entropy(module(data.inputs[index]), data.targets[index]).backward()
        optimizer.step()
    return values(module)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_sgd_does_what_torch_does(momentum: float, weight_decay: float) -> None:
    module, data = problem()
    local = Local(lr=0.1, momentum=momentum, weight_decay=weight_decay, batch_size=5, epochs=4)
    expected = by_torch(local, copy.deepcopy(module), data)
    train(module, F.cross_entropy, data, local, seed=SEED)
    for got, want in zip(values(module), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)
        assert not torch.equal(got, torch.zeros_like(got))


def slow_sgd(local: Local, module: nn.Module, data: Data) -> list[Tensor]:
    """v ← μ v + g + λ w; w ← w − η v, in float64; the first v is the first gradient."""
    module = module.double()
    velocity: list[Tensor] | None = None
    for index in order(len(data), local):
        loss = F.cross_entropy(module(data.inputs[index].double()), data.targets[index])
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        decayed = [g + local.weight_decay * p.detach() for g, p in zip(gradients, module.parameters(), strict=True)]
        if velocity is None:
            velocity = decayed
        else:
            velocity = [local.momentum * v + g for v, g in zip(velocity, decayed, strict=True)]
        with torch.no_grad():
            for parameter, v in zip(module.parameters(), velocity, strict=True):
                parameter.copy_(parameter - local.lr * v)
    return values(module)


def slow_adam(local: Local, module: nn.Module, data: Data) -> list[Tensor]:
    """Kingma & Ba, Algorithm 1; AdamW decays the weights apart from the gradient (Loshchilov & Hutter, Algorithm 2)."""
    module, (beta1, beta2), epsilon = module.double(), (0.9, 0.999), 1e-8
    first = [torch.zeros_like(p) for p in module.parameters()]
    second = [torch.zeros_like(p) for p in module.parameters()]
    for t, index in enumerate(order(len(data), local), start=1):
        loss = F.cross_entropy(module(data.inputs[index].double()), data.targets[index])
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        for i, (parameter, gradient) in enumerate(zip(module.parameters(), gradients, strict=True)):
            weight = parameter.detach().clone()
            g = gradient + local.weight_decay * weight if local.optimizer == "adam" else gradient
            first[i] = beta1 * first[i] + (1 - beta1) * g
            second[i] = beta2 * second[i] + (1 - beta2) * g * g
            step = (first[i] / (1 - beta1**t)) / ((second[i] / (1 - beta2**t)).sqrt() + epsilon)
            shrink = local.lr * local.weight_decay if local.optimizer == "adamw" else 0.0
            with torch.no_grad():
                parameter.copy_(weight - shrink * weight - local.lr * step)
    return values(module)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_optimizer_follows_its_equations(optimizer: str, weight_decay: float) -> None:
    module, data = problem()
    local = Local(optimizer=optimizer, lr=0.02, weight_decay=weight_decay, batch_size=5, epochs=3)  # type: ignore[arg-type]
    slow = slow_sgd if optimizer == "sgd" else slow_adam
    expected = slow(local, copy.deepcopy(module), data)
    train(module, F.cross_entropy, data, local, seed=SEED)
    for got, want in zip(values(module), expected, strict=True):
        torch.testing.assert_close(got, want.float(), rtol=2e-5, atol=2e-6)


def test_the_optimizer_starts_anew_every_round() -> None:
    module, data = problem()
    local = Local(lr=0.1, momentum=0.9, batch_size=5)
    expected = by_torch(local, copy.deepcopy(module), data)
    other, _ = problem()
    train(other, F.cross_entropy, data, local, seed=5)
    train(module, F.cross_entropy, data, local, seed=SEED)
    for got, want in zip(values(module), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)


def test_a_clipped_gradient_keeps_its_direction_and_has_the_limit_as_norm() -> None:
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[0.0], [4.0]])]
    cut = clipped(gradients, 1.0)
    assert [t.flatten().tolist() for t in cut] == [pytest.approx([0.6, 0.0]), pytest.approx([0.0, 0.8])]
    assert all(torch.equal(a, b) for a, b in zip(clipped(gradients, 10.0), gradients, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(clipped(gradients, None), gradients, strict=True))


def test_clipping_acts_in_every_step() -> None:
    module, data = problem()
    before = values(module)
    local = Local(lr=1.0, momentum=0.0, batch_size=22, clip=0.01, steps=3)
    train(module, F.cross_entropy, data, local, seed=SEED)
    moved = torch.cat([(a - b).flatten() for a, b in zip(values(module), before, strict=True)])
    assert float(moved.norm()) <= 3 * 0.01 * (1 + 1e-4)


def test_the_returned_loss_is_the_mean_over_the_samples_seen() -> None:
    module, data = problem()
    local = Local(lr=1e-12, momentum=0.0, batch_size=5)  # the weights stand still
    expected = F.cross_entropy(module(data.inputs), data.targets).item()
    assert train(module, F.cross_entropy, data, local, seed=SEED) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("n", "size", "smallest", "sizes"),
    [
        (22, 5, 1, [5, 5, 5, 5, 2]),
        (21, 5, 1, [5, 5, 5, 5, 1]),
        (21, 5, 2, [5, 5, 5, 6]),
        (1, 5, 2, [1]),
        (20, 5, 2, [5, 5, 5, 5]),
    ],
)
def test_the_last_batch_is_kept_and_joins_its_neighbour_where_it_is_too_small(
    n: int, size: int, smallest: int, sizes: list[int]
) -> None:
    found = list(batches(n, Local(batch_size=size), torch.Generator().manual_seed(0), smallest=smallest))
    assert [len(index) for index in found] == sizes
    assert torch.cat(found).sort().values.tolist() == list(range(n))


@pytest.mark.parametrize(("steps", "expected"), [(2, 10), (5, 22), (7, 32), (10, 44)])
def test_steps_count_batches_and_start_new_passes(steps: int, expected: int) -> None:
    local = Local(batch_size=5, steps=steps)
    found = order(22, local)
    assert len(found) == steps
    assert sum(len(index) for index in found) == expected == local.samples(22)


def test_every_pass_has_an_order_of_its_own() -> None:
    first, second = torch.cat(order(22, Local(batch_size=22, epochs=2))).split(22)
    assert first.sort().values.tolist() == second.sort().values.tolist()
    assert not torch.equal(first, second)


def test_the_schedule_counts_rounds_and_goes_on_where_training_stopped() -> None:
    local = Local(lr=0.8, decay=0.5, first_round=2)
    assert [Local.from_options(local.options(t)).lr for t in range(3)] == pytest.approx([0.2, 0.1, 0.05])
    assert Local.from_options(local.options(1)).options(7)["lr"] == pytest.approx(0.1)  # once resolved, it stays


def test_one_sample_cannot_train_batchnorm() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    _, data = problem(1)
    with pytest.raises(DataError, match="needs at least 2"):
        train(module, F.cross_entropy, data, Local(), seed=0)


def test_a_frozen_parameter_stays_as_it_is() -> None:
    module, data = problem()
    frozen = next(module.parameters())
    frozen.requires_grad_(False)
    before = frozen.clone()
    train(module, F.cross_entropy, data, Local(lr=0.1, weight_decay=0.1), seed=SEED)
    assert torch.equal(frozen, before)
