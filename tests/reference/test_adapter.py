"""Lethe's phase 1: the composite, the ascent, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from of_three import Small
from torch import nn
from torch.nn import functional as F

from letheon import tree
from letheon.adapter import DOWN, DOWN_BIAS, UP, UP_BIAS, Adapter, adapt, ascend, at_head, attached, penultimate
from letheon.methods.lethe import AMPLIFIED, Lethe
from letheon.phase import LOG, State, drive, seed_of
from letheon.tasks.vision import MNIST5k
from letheon.training import Local, batches
from letheon.tree import Params

FREE = Adapter(rank=4, lr=0.05, cap=None, steps=7, batch_size=5, clip=None)


def problem() -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    head = nn.Linear(6, 3)
    with torch.no_grad():
        head.weight.copy_(torch.randn(3, 6, generator=generator))
        head.bias.copy_(torch.randn(3, generator=generator))
    return head, torch.randn(13, 6, generator=generator), torch.randint(3, (13,), generator=generator)


def by_hand(adapter: Adapter, head: nn.Linear, features: torch.Tensor, targets: torch.Tensor, start: Params) -> Params:
    """φ ← φ + η·clip(∇φ CE): the chain rule written out for h + B·ReLU(A h + a) + b."""
    down, down_bias, up, up_bias = (start[name].clone() for name in (DOWN, DOWN_BIAS, UP, UP_BIAS))
    weight, bias = head.weight.detach(), head.bias.detach()
    local = Local(batch_size=adapter.batch_size, steps=adapter.steps)
    for index in batches(len(features), local, torch.Generator().manual_seed(8)):
        h, y = features[index], targets[index]
        before = h @ down.T + down_bias
        hidden = before.clamp_min(0)
        logits = (h + hidden @ up.T + up_bias) @ weight.T + bias
        error = (logits.softmax(1) - F.one_hot(y, 3)) / len(y)  # ∂CE/∂logits
        outer = error @ weight  # ∂CE/∂adapted
        inner = (outer @ up) * (before > 0)
        gradients = [inner.T @ h, inner.sum(0), outer.T @ hidden, outer.sum(0)]
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        factor = 1.0 if adapter.clip is None else min(1.0, adapter.clip / float(norm))
        down, down_bias, up, up_bias = (
            p + adapter.lr * factor * g for p, g in zip((down, down_bias, up, up_bias), gradients, strict=True)
        )
    return {DOWN: down, DOWN_BIAS: down_bias, UP: up, UP_BIAS: up_bias}


@pytest.mark.parametrize("clip", [None, 0.3, 100.0])
def test_ascent_follows_the_gradient_written_out_by_hand(clip: float | None) -> None:
    head, features, targets = problem()
    adapter = replace(FREE, clip=clip)
    start = adapter.init(6, seed=2)
    found, steps, reached = ascend(adapter, at_head(head), F.cross_entropy, features, targets, start=start, seed=8)
    wanted = by_hand(adapter, head, features, targets, start)
    assert steps == 7
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-4, atol=1e-6)
        assert not torch.equal(tensor, start[name])
        assert not tensor.requires_grad
    with torch.no_grad():
        assert reached == pytest.approx(float(F.cross_entropy(head(adapt(features, wanted)), targets)), rel=1e-4)


def test_ascent_raises_the_loss_and_stops_at_the_cap() -> None:
    head, features, targets = problem()
    start = FREE.init(6, seed=2)
    with torch.no_grad():
        before = float(F.cross_entropy(head(features), targets))
    cap = before + 0.5
    capped = replace(FREE, cap=cap, steps=500)
    _, steps, reached = ascend(capped, at_head(head), F.cross_entropy, features, targets, start=start, seed=8)
    assert 0 < steps < 500
    assert reached >= cap
    sooner_capped = replace(capped, steps=steps - 1)
    _, _, sooner = ascend(sooner_capped, at_head(head), F.cross_entropy, features, targets, start=start, seed=8)
    assert before < sooner < cap


def test_a_loss_above_the_cap_needs_no_step() -> None:
    head, features, targets = problem()
    start = FREE.init(6, seed=2)
    adapter = replace(FREE, cap=1e-3)
    found, steps, _ = ascend(adapter, at_head(head), F.cross_entropy, features, targets, start=start, seed=8)
    assert steps == 0
    assert tree.digest(found) == tree.digest(start)


def test_a_fresh_adapter_leaves_every_logit_as_it_was() -> None:
    task = MNIST5k()
    module = task.model().eval()
    inputs = torch.randn(7, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    tensors = Adapter().init(84, seed=3)
    with torch.no_grad():
        plain = module(inputs)
        with attached(module, task.head, tensors):
            composite = module(inputs)
        assert torch.equal(composite, plain)
        with attached(module, task.head, tree.add(tensors, {**tree.zeros_like(tensors), UP_BIAS: torch.ones(84)})):
            assert not torch.equal(module(inputs), plain)
        assert torch.equal(module(inputs), plain)  # it is gone afterwards


def test_the_adapter_of_lenet_has_2788_parameters() -> None:
    assert tree.count(Adapter(rank=16).init(84, seed=0)) == 16 * 84 + 16 + 84 * 16 + 84 == 2788


def test_the_penultimate_feature_is_what_enters_the_head() -> None:
    task = MNIST5k()
    module = task.model().eval()
    inputs = torch.randn(7, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    features = penultimate(module, task.head, inputs, chunk=3)
    assert features.shape == (7, 84)
    with torch.no_grad():
        torch.testing.assert_close(module.get_submodule(task.head)(features), module(inputs), rtol=1e-5, atol=1e-6)


def states_of(small: Small, method: Lethe) -> tuple[list[tuple[str, State]], State]:
    """Every state of the way, with its phase, and the last one."""
    seen: list[tuple[str, State]] = []
    end = drive(
        method.phases(small.start, small.task),
        small.tap,
        small.start,
        seed=9,
        observers=[lambda phase, done, state: seen.append((phase, state))],
    )
    return seen, end


def test_amplify_changes_the_adapter_and_not_a_bit_of_the_model(small: Small) -> None:
    before = tree.digest(small.start.params), tree.digest(small.start.buffers)
    method = Lethe(adapter=Adapter(rank=4, steps=5, cap=None), rounds=2, restore_rounds=1, local=Local(lr=0.05))
    seen, _ = states_of(small, method)
    phase, amplified = seen[0]
    assert phase == "amplify"
    assert (tree.digest(amplified.params), tree.digest(amplified.buffers)) == before
    assert float(amplified.scratch[UP].norm()) > 0
    assert amplified.scratch[LOG + AMPLIFIED].tolist()[0] == 5.0
    assert [work.part for work in small.tap.calls[0][0]] == ["forget"]
    assert {reply.client for reply in small.tap.calls[0][1]} == {"b"}


def test_the_adapter_is_frozen_in_both_streams_and_absent_from_then_on(small: Small) -> None:
    method = Lethe(adapter=Adapter(rank=4, steps=5, cap=None), rounds=2, restore_rounds=1, local=Local(lr=0.05))
    seen, end = states_of(small, method)
    names = (DOWN, DOWN_BIAS, UP, UP_BIAS)
    amplified = tree.digest({name: seen[0][1].scratch[name] for name in names})
    for phase, state in seen:
        if phase == "rectify":
            assert tree.digest({name: state.scratch[name] for name in names}) == amplified
    streams = [work for works, _ in small.tap.calls for work in works if work.kind == "train"]
    assert [tuple(work.extras) for work in streams] == [names, names, names, names, ()]
    assert (end.scratch, end.memory) == ({}, {})
    assert end.params.keys() == small.start.params.keys()
    assert not any("adapter" in name for name in end.params | end.buffers)


def test_both_streams_train_the_backbone_through_the_frozen_adapter(small: Small) -> None:
    local = Local(lr=0.1, momentum=0.0, batch_size=4)
    method = Lethe(adapter=Adapter(rank=4, steps=30, cap=None), rounds=1, restore_rounds=0, search=None, local=local)
    seen, _ = states_of(small, method)
    frozen = seen[0][1].scratch
    works, replies = small.tap.calls[1]
    for reply in replies:
        wanted = composite_update(small, reply.client, local, frozen, seed=works[reply.work].seed)
        for name, delta in reply.tensors.items():
            torch.testing.assert_close(delta, wanted[name], rtol=1e-4, atol=2e-5)
            assert float(delta.norm()) > 0
    assert [reply.client for reply in replies] == ["a", "b", "c"]


def composite_update(small: Small, client: str, local: Local, adapter: Params, *, seed: int) -> Params:
    """w_k − w for cross-entropy of head(h + B·ReLU(A h + a) + b), by torch.optim."""
    module, data = small.task.model(), small.clients[client]
    module.load_state_dict({**small.start.params, **small.start.buffers})
    fc1, norm, head = (module.get_submodule(name) for name in ("fc1", "norm", "head"))
    optimizer = torch.optim.SGD(module.parameters(), lr=local.lr)
    generator = torch.Generator().manual_seed(seed_of(f"{seed}|{client}"))
    for index in batches(len(data), local, generator, smallest=2):
        h = F.relu(norm(fc1(data.inputs[index])))
        inner = F.relu(h @ adapter[DOWN].T + adapter[DOWN_BIAS])
        optimizer.zero_grad()
        F.cross_entropy(head(h + inner @ adapter[UP].T + adapter[UP_BIAS]), data.targets[index]).backward()
        optimizer.step()
    return tree.sub(tree.clone(dict(module.named_parameters())), small.start.params)
