"""The local training loop against PyTorch's own parts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from letheon.data import Data
from letheon.errors import ConfigError, DataError
from letheon.models.mlp import MLP
from letheon.training import Local, batches, clipped, train


def data(n: int, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(n, 64, generator=generator)
    return Data(inputs, torch.randint(0, 10, (n,), generator=generator), torch.arange(n))


def model(*, norm: bool = False) -> MLP:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MLP(norm=norm)


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def by_hand(module: nn.Module, samples: Data, local: Local, make: Any, *, seed: int) -> float:
    """The same training with torch.optim and autograd's own gradients."""
    optimizer, seen, total = make(module.parameters()), 0, 0.0
    for index in batches(len(samples), local, torch.Generator().manual_seed(seed)):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(samples.inputs[index]), samples.targets[index])
        loss.backward()  # type: ignore[no-untyped-call]
        if local.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), local.clip)
        optimizer.step()
        total, seen = total + loss.item() * len(index), seen + len(index)
    return total / seen


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
RECIPES = [
    (Local(lr=0.1, momentum=0.0), lambda p: SGD(p, lr=0.1)),
    (Local(lr=0.1, momentum=0.9, epochs=3), lambda p: SGD(p, lr=0.1, momentum=0.9)),
    (Local(lr=0.1, weight_decay=0.01, epochs=2), lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
    (Local(lr=0.1, clip=0.05, epochs=2), lambda p: SGD(p, lr=0.1, momentum=0.9)),
    (Local("adam", lr=0.01, weight_decay=0.01, steps=5), lambda p: ADAM(p, lr=0.01, weight_decay=0.01)),
    (Local("adamw", lr=0.01, weight_decay=0.1, steps=5), lambda p: ADAMW(p, lr=0.01, weight_decay=0.1)),
]


@pytest.mark.parametrize(("local", "make"), RECIPES)
def test_training_is_what_torch_optim_does(local: Local, make: Any) -> None:
    ours, theirs, samples = model(), model(), data(50)
    loss = train(ours, F.cross_entropy, samples, local, seed=4)
    assert loss == pytest.approx(by_hand(theirs, samples, local, make, seed=4), rel=1e-5)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-5, atol=1e-6)
    assert not torch.equal(weights(ours), weights(model()))


@pytest.mark.parametrize(("n", "batch_size", "epochs"), [(10, 3, 1), (10, 5, 2), (2, 32, 3), (1, 1, 1)])
def test_every_epoch_sees_every_sample_once_and_keeps_the_last_partial_batch(
    n: int, batch_size: int, epochs: int
) -> None:
    local = Local(batch_size=batch_size, epochs=epochs)
    seen = list(batches(n, local, torch.Generator().manual_seed(0)))
    assert sorted(torch.cat(seen).tolist()) == sorted(list(range(n)) * epochs)
    assert all(len(index) <= batch_size for index in seen)
    assert len(seen) == epochs * math.ceil(n / batch_size)


@pytest.mark.parametrize("steps", [1, 4, 5, 13])
def test_steps_are_counted_exactly_and_over_as_many_passes_as_needed(steps: int) -> None:
    local = Local(batch_size=3, steps=steps, epochs=7)
    seen = list(batches(10, local, torch.Generator().manual_seed(0)))
    assert len(seen) == steps
    assert sum(map(len, seen)) == local.samples(10)


def test_batches_are_a_function_of_the_seed() -> None:
    def drawn(seed: int) -> list[int]:
        return torch.cat(list(batches(40, Local(), torch.Generator().manual_seed(seed)))).tolist()

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(("n", "sizes"), [(33, [33]), (65, [32, 33]), (66, [32, 32, 2])])
def test_a_last_batch_of_one_joins_the_one_before_it_if_the_model_has_batch_norm(n: int, sizes: list[int]) -> None:
    assert [len(i) for i in batches(n, Local(), torch.Generator().manual_seed(0), smallest=2)] == sizes
    module = model(norm=True)
    train(module, F.cross_entropy, data(n), Local(), seed=0)
    assert torch.isfinite(weights(module)).all()


def test_without_batch_norm_a_last_batch_of_one_stays() -> None:
    assert [len(i) for i in batches(65, Local(), torch.Generator().manual_seed(0))] == [32, 32, 1]


def test_one_sample_cannot_train_batch_norm_and_the_error_says_what_to_do() -> None:
    module = model(norm=True)
    before = weights(module)
    with pytest.raises(DataError, match=r"1 sample\(s\).*BatchNorm.*raise partition.min_size"):
        train(module, F.cross_entropy, data(1), Local(), seed=0)
    with pytest.raises(DataError, match=r"batch_size: 1 cannot train a model with BatchNorm"):
        train(module, F.cross_entropy, data(8), Local(batch_size=1), seed=0)
    assert torch.equal(weights(module), before)


def test_one_sample_and_batches_of_one_train_other_models() -> None:
    module = model()
    assert train(module, F.cross_entropy, data(1), Local(batch_size=1), seed=0) > 0.0


def test_a_layer_that_the_loss_does_not_reach_stays_as_it_is() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(64, 10), nn.Linear(3, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.used(inputs)
            return logits

    module = Unused()
    before = module.unused.weight.detach().clone()
    train(module, F.cross_entropy, data(40), Local(lr=0.1), seed=0)
    assert torch.equal(module.unused.weight, before)


def test_frozen_parameters_stay_frozen() -> None:
    module = model()
    module.fc1.weight.requires_grad_(False)
    before = module.fc1.weight.clone()
    train(module, F.cross_entropy, data(40), Local(lr=0.1, weight_decay=0.1), seed=0)
    assert torch.equal(module.fc1.weight, before)


def test_gradients_are_cut_to_the_limit_together_and_small_ones_are_left_alone() -> None:
    gradients = [torch.tensor([3.0]), torch.tensor([[4.0]])]
    assert torch.cat([g.flatten() for g in clipped(gradients, 1.0)]).tolist() == pytest.approx([0.6, 0.8])
    assert [g.item() for g in clipped(gradients, 6.0)] == [3.0, 4.0]
    assert [g.item() for g in clipped(gradients, None)] == [3.0, 4.0]
    assert clipped([torch.zeros(2)], 1.0)[0].tolist() == [0.0, 0.0]


def test_the_learning_rate_counts_rounds_and_goes_on_from_those_behind_the_model() -> None:
    local = Local(lr=1.0, decay=0.5, first_round=2)
    assert local.options(1)["lr"] == 0.125
    assert Local.from_options(local.options(1)) == Local(lr=0.125)


def test_options_survive_the_way_to_a_client() -> None:
    local = Local("adam", lr=0.3, momentum=0.1, weight_decay=0.2, batch_size=7, steps=9, clip=2.0)
    assert Local.from_options(dict(local.options(5)) | {"of another kind": True}) == local
    assert None not in Local().options(0).values()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("lr", 0.0), ("batch_size", 0), ("epochs", -1), ("steps", 0), ("clip", 0.0), ("momentum", 1.0)),
        *(("decay", 0.0), ("weight_decay", -0.1), ("first_round", -1), ("optimizer", "sdg")),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"local.*{field}"):
        Local(**{field: value})
