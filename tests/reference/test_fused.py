"""FUSED: where adapters go, how they are trained, averaged and merged, against slow loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from of_three import Small
from torch import Tensor
from torch.nn import functional as F

from letheon import tree
from letheon.client import KINDS, Client
from letheon.errors import ConfigError, MethodError
from letheon.methods.fused import BASE, DISTANCE, DOWN, FUSED, UP, adapters, matrices, merged
from letheon.models.lenet import LeNet5
from letheon.phase import State, drive, seed_of
from letheon.tasks.base import params_of
from letheon.training import Local, batches
from letheon.tree import Params
from letheon.work import Reply, Work

LOCAL = Local(lr=0.05, momentum=0.9, weight_decay=0.01, batch_size=4)
SCALE = 4.0 / 3
METHOD = FUSED(layers=1, rank=3, alpha=4.0, rounds=1, local=LOCAL)
HEAD, FIRST = "head.weight", "fc1.weight"


def watched(small: Small, method: FUSED) -> list[State]:
    """The state after each round."""
    states = list[State]()
    phases = method.phases(small.start, small.task)
    drive(phases, small.tap, small.start, seed=9, observers=[lambda *seen: states.append(seen[2])])
    return states


def test_adapters_start_as_nothing_and_are_cut_to_the_smaller_side() -> None:
    params = params_of(LeNet5())
    names = matrices(params)
    assert names == [f"{layer}.weight" for layer in ("conv1", "conv2", "fc1", "fc2", "head")]
    factors = adapters(params, names, rank=16)
    for name, rank, m, n in zip(names, (6, 16, 16, 16, 10), (6, 16, 120, 84, 10), (25, 150, 256, 120, 84), strict=True):
        down, up = factors[DOWN + name], factors[UP + name]
        assert (down.shape, up.shape) == ((rank, n), (m, rank))
        assert float(down.abs().max()) <= n**-0.5
        assert float(down.std()) == pytest.approx(n**-0.5 / 3**0.5, rel=0.15)  # uniform
        assert not up.any()
    start = merged(params, factors, 2.0)
    assert tree.digest(start) == tree.digest({name: params[name] for name in names})
    assert tree.digest(factors) == tree.digest(adapters(params, names, rank=16))
    assert tree.digest(factors) != tree.digest(adapters(tree.scale(params, 2.0), names, rank=16))


def test_a_merged_convolution_is_the_sum_over_the_rank() -> None:
    generator = torch.Generator().manual_seed(3)
    params = {"conv.weight": torch.randn(3, 2, 2, 3, generator=generator, dtype=torch.float64)}
    down = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    up = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    found = merged(params, {f"{DOWN}conv.weight": down, f"{UP}conv.weight": up}, 0.5)["conv.weight"]
    for out, channel, row, column in product(range(3), range(2), range(2), range(3)):
        flat = channel * 6 + row * 3 + column
        change = sum(float(up[out, k]) * float(down[k, flat]) for k in range(2))
        wanted = float(params["conv.weight"][out, channel, row, column]) + 0.5 * change
        assert float(found[out, channel, row, column]) == pytest.approx(wanted, rel=1e-12)


def trained(small: Small, client: str, seed: int) -> Params:
    """A round of ordinary training by torch.optim."""
    module, data = small.task.model(), small.clients[client]
    module.load_state_dict({**small.start.params, **small.start.buffers})
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed_of(f"{seed}|{client}"))
    for index in batches(len(data), LOCAL, generator, smallest=2):
        optimizer.zero_grad()
        F.cross_entropy(module(data.inputs[index]), data.targets[index]).backward()
        optimizer.step()
    return tree.clone(dict(module.named_parameters()))


def test_clients_report_how_far_each_matrix_moved_and_nothing_else(small: Small) -> None:
    watched(small, METHOD)
    (works, replies) = small.tap.calls[0]
    assert [reply.client for reply in replies] == ["a", "c"]
    for reply in replies:
        after = trained(small, reply.client, works[0].seed)
        assert reply.tensors.keys() == {DISTANCE + HEAD, DISTANCE + FIRST}
        assert reply.buffers == {}
        for name in (HEAD, FIRST):
            pairs = zip(after[name].flatten().tolist(), small.start.params[name].flatten().tolist(), strict=True)
            assert float(reply.tensors[DISTANCE + name]) == pytest.approx(sum(abs(a - b) for a, b in pairs), rel=1e-4)


class Movers:
    """Two clients of 1 and 9 samples that moved different layers, and one that did nothing."""

    def run(self, *works: Work) -> Iterator[Reply]:
        for client, weight, first, head in (("a", 1.0, 5.0, 0.0), ("b", 0.0, 0.0, 1e6), ("c", 9.0, 0.0, 4.0)):
            moved = {FIRST: torch.tensor(first).double(), HEAD: torch.tensor(head).double()}
            yield Reply(0, client, {DISTANCE + name: distance for name, distance in moved.items()}, weight=weight)


def test_the_layer_that_moves_most_in_the_mean_over_clients_gets_the_adapter(small: Small) -> None:
    state = METHOD.locate(Movers(), small.start, 0)
    assert state.scratch.keys() == {part + FIRST for part in (BASE, DOWN, UP)}  # over samples it would be the head
    every = replace(METHOD, layers=9).locate(Movers(), small.start, 0)
    assert every.scratch.keys() == {part + name for part in (BASE, DOWN, UP) for name in (FIRST, HEAD)}


def forward(small: Small, factors: dict[str, Tensor], inputs: Tensor) -> Tensor:
    """The perceptron in evaluation mode with an adapter beside each layer, not merged: x → Wx + s·B(Ax) + bias."""
    p, b = small.start.params, small.start.buffers

    def layer(name: str, x: Tensor) -> Tensor:
        out = x @ p[f"{name}.weight"].T + p[f"{name}.bias"]
        key = f"{name}.weight"
        return out + SCALE * (x @ factors[DOWN + key].T @ factors[UP + key].T) if DOWN + key in factors else out

    hidden = layer("fc1", inputs)
    if b:
        hidden = (hidden - b["norm.running_mean"]) / torch.sqrt(b["norm.running_var"] + 1e-5)
        hidden = hidden * p["norm.weight"] + p["norm.bias"]
    return layer("head", F.relu(hidden))


def slow_adapter(small: Small, client: str, start: Params, seed: int) -> Params:
    """One client's adapter by torch.optim."""
    data = small.clients[client]
    factors = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    optimizer = torch.optim.SGD(factors.values(), lr=0.05, momentum=0.9, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed_of(f"{seed}|{client}"))
    for index in batches(len(data), LOCAL, generator):
        optimizer.zero_grad()
        F.cross_entropy(forward(small, factors, data.inputs[index]), data.targets[index]).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in factors.items()}


@pytest.mark.parametrize("layers", [1, 2])
def test_a_round_averages_the_factors_that_clients_trained_on_the_frozen_model(small: Small, layers: int) -> None:
    located, adapted = watched(small, replace(METHOD, layers=layers))
    start = {name: tensor for name, tensor in located.scratch.items() if name.startswith((DOWN, UP))}
    assert len(start) == 2 * layers
    seed = small.tap.calls[1][0][0].seed
    each = {client: slow_adapter(small, client, start, seed) for client in ("a", "c")}
    mean = {name: ((10 * each["a"][name].double() + 20 * each["c"][name].double()) / 30).float() for name in start}
    for name, tensor in mean.items():
        torch.testing.assert_close(adapted.scratch[name], tensor, rtol=1e-4, atol=1e-5)
        assert not torch.equal(adapted.scratch[name], start[name])


def test_the_merged_model_computes_what_model_and_adapter_compute(small: Small) -> None:
    end = watched(small, replace(METHOD, layers=2, rounds=3))[-1]
    factors = {name: tensor for name, tensor in end.scratch.items() if name.startswith((DOWN, UP))}
    module = small.task.model().eval()
    module.load_state_dict({**end.params, **end.buffers})
    inputs = small.clients["c"].inputs
    torch.testing.assert_close(module(inputs), forward(small, factors, inputs), rtol=1e-4, atol=1e-5)


def test_everything_but_the_chosen_matrix_is_frozen_and_origin_lies_under_the_adapter(small: Small) -> None:
    states = watched(small, replace(METHOD, rounds=3))
    (chosen,) = [name.removeprefix(BASE) for name in states[0].scratch if name.startswith(BASE)]
    for state in states:
        assert list(state.params) == list(small.start.params)
        without = state.params | {chosen: state.scratch[BASE + chosen]}
        assert tree.digest(without | state.buffers) == tree.digest(small.start.params | small.start.buffers)
    assert not torch.equal(states[-1].params[chosen], small.start.params[chosen])
    change = (states[-1].params[chosen] - small.start.params[chosen]).double()
    assert int(torch.linalg.matrix_rank(change, rtol=1e-4)) <= METHOD.rank
    for works, _ in small.tap.calls[1:]:  # the frozen model goes out in every round, never the merged one
        assert tree.digest(works[0].params) == tree.digest(small.start.params)


def test_an_adapter_costs_its_training_and_its_products(small: Small) -> None:
    start = small.start
    factors = adapters(start.params, [HEAD], rank=3)
    options = Local(batch_size=4, epochs=2).options(0) | {"scale": SCALE}
    work = Work("train-lora", start.params, start.buffers, options=options, extras=factors)
    steps, multiplied = 2 * 3, 2 * 10 * 3 * 32  # on 10 samples; BA, and its two gradients
    assert KINDS["train-lora"].cost(small.task, work, 10) == {
        "samples": 20,
        "flops": 3.0 * small.task.flops * 20 + 3.0 * multiplied * steps,
    }


def test_one_sample_trains_an_adapter_also_under_batch_norm(small: Small) -> None:
    start, data = small.start, small.clients["a"].take(torch.tensor([3]))
    work = Work("train-lora", start.params, start.buffers, options=LOCAL.options(0) | {"scale": SCALE},
                extras=adapters(start.params, [HEAD], rank=3))
    module = small.task.model()
    reply = Client("a", data, small.task).execute(work, module)
    assert reply.error == ""
    assert reply.tensors[UP + HEAD].any()
    assert tree.digest(params_of(module)) == tree.digest(start.params)


def test_a_model_without_matrices_is_refused(small: Small) -> None:
    with pytest.raises(MethodError, match="no weight of two dimensions"):
        METHOD.phases(State({"norm.weight": torch.ones(3)}), small.task)


@pytest.mark.parametrize("field", ["layers", "rank", "alpha", "rounds"])
def test_settings_out_of_range_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"fused.{field}"):
        FUSED(**{field: 0})
