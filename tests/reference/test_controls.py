"""Detaching, the two baselines that only move away, and the recovery that may not go back: against slow loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from of_three import Small
from torch import Tensor
from torch.nn import functional as F

from letheon import tree
from letheon.errors import ConfigError
from letheon.methods.base import Method
from letheon.methods.detach import Detach
from letheon.methods.distance import WeightDistance, rms
from letheon.methods.distortion import WeightDistortion, distorted
from letheon.methods.suppressed import SuppressedRecovery, ascent, suppressed
from letheon.phase import State, drive, seed_of
from letheon.training import Local, batches
from letheon.tree import Params

LOCAL = Local(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=4)
NUMBERS = st.floats(-1e3, 1e3, width=32)


def states_of(small: Small, method: Method) -> list[State]:
    """The state after every round."""
    seen: list[State] = []
    phases = method.phases(small.start, small.task)
    drive(phases, small.tap, small.start, seed=9, observers=[lambda phase, done, state: seen.append(state)])
    return seen


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def mean_update(small: Small, call: int, part: str) -> Params:
    """Σ n_k Δ_k / Σ n_k over the replies of a call that were about ``part``."""
    works, replies = small.tap.calls[call]
    mine = [reply for reply in replies if works[reply.work].part == part]
    total = sum(reply.weight for reply in mine)
    return {
        name: sum(reply.weight / total * reply.tensors[name].double() for reply in mine)  # type: ignore[misc]
        for name in small.start.params
    }


def test_detaching_asks_nobody_and_changes_nothing(small: Small) -> None:
    (end,) = states_of(small, Detach())
    assert end == small.start
    assert small.tap.calls == []


def test_distortion_adds_sigma_times_standard_noise_to_every_scalar(small: Small) -> None:
    state = states_of(small, WeightDistortion(sigma=0.05, rounds=1, local=LOCAL))[0]
    moved = flat(tree.sub(state.params, small.start.params)) / 0.05
    assert abs(float(moved.mean())) < 0.1
    assert float(moved.std()) == pytest.approx(1.0, abs=0.05)
    assert tree.digest(state.buffers) == tree.digest(small.start.buffers)
    assert len(small.tap.calls) == 1  # the round that restores


def test_the_noise_is_a_function_of_its_seed_and_in_proportion_to_sigma() -> None:
    params = {"w": torch.zeros(40, 5), "b": torch.zeros(7)}
    once = distorted(params, 0.02, seed=1)
    twice = distorted(params, 0.04, seed=1)
    assert torch.equal(once["w"], distorted(params, 0.02, seed=1)["w"])
    assert not torch.equal(once["w"], distorted(params, 0.02, seed=2)["w"])
    torch.testing.assert_close(twice["w"], 2 * once["w"])
    assert not torch.equal(once["w"].flatten()[:7], once["b"])


def slow_away(small: Small, client: str, state: State, *, seed: int, weight: float) -> Params:
    """One client's training on CE − weight·RMS(w − w_ori), by torch.optim and a sum over scalars."""
    module, data, origin = small.task.model(), small.clients[client], small.start.params
    module.load_state_dict({**state.params, **state.buffers})
    optimizer = torch.optim.SGD(module.parameters(), lr=LOCAL.lr, momentum=0.9, weight_decay=LOCAL.weight_decay)
    generator = torch.Generator().manual_seed(seed_of(f"{seed}|{client}"))
    for index in batches(len(data), LOCAL, generator, smallest=2):
        optimizer.zero_grad()
        F.cross_entropy(module(data.inputs[index]), data.targets[index]).backward()
        named = dict(module.named_parameters())
        square = sum(float(((p.detach() - origin[n]).double() ** 2).sum()) for n, p in named.items())
        count = sum(p.numel() for p in named.values())
        for name, p in named.items():
            assert p.grad is not None
            if square:  # d RMS/dw = (w − w_ori) / √(d·Σ(w − w_ori)²)
                p.grad -= weight * (p.detach() - origin[name]) / (count * square) ** 0.5
        optimizer.step()
    return tree.clone(dict(module.named_parameters()))


@pytest.mark.parametrize("round", [0, 1])
def test_every_retained_client_is_paid_for_the_distance_to_the_model_at_the_request(small: Small, round: int) -> None:
    weight = 30.0  # large, so that it shows
    seen = states_of(small, WeightDistance(weight=weight, rounds=2, local=LOCAL))
    before = [small.start, *seen][round]
    seed = small.tap.calls[round][0][0].seed
    models = {c: slow_away(small, c, before, seed=seed, weight=weight) for c in ("a", "c")}
    for name, tensor in seen[round].params.items():
        wanted = (10 * models["a"][name].double() + 20 * models["c"][name].double()) / 30
        torch.testing.assert_close(tensor, wanted.float(), rtol=1e-3, atol=1e-4)


def test_the_larger_the_weight_the_further_the_model_goes(small: Small) -> None:
    ends = [states_of(small, WeightDistance(weight=w, rounds=2, local=LOCAL))[-1] for w in (1e-6, 50.0)]
    near, far = (float(rms(end.params, small.start.params)) for end in ends)
    assert far > 1.2 * near


def test_the_distance_is_a_root_mean_square_whose_gradient_is_zero_at_the_origin() -> None:
    origin = {"w": torch.zeros(2, 2), "b": torch.zeros(4)}
    moved = {"w": torch.full((2, 2), 3.0), "b": torch.full((4,), 3.0)}
    assert float(rms(moved, origin)) == pytest.approx(3.0)
    leaf = {name: tensor.clone().requires_grad_() for name, tensor in origin.items()}
    gradients = torch.autograd.grad(rms(leaf, origin), list(leaf.values()))
    assert all(not bool(g.any()) for g in gradients)


@st.composite
def vectors(draw: st.DrawFn, how_many: int) -> list[Params]:
    size = draw(st.integers(1, 4))
    return [
        {"w": torch.tensor(draw(st.lists(NUMBERS, min_size=size, max_size=size)), dtype=torch.float64)}
        for _ in range(how_many)
    ]


@settings(max_examples=300)
@given(vectors(2))
def test_no_recovery_step_leads_back_and_a_step_that_does_not_is_left_alone(pair: list[Params]) -> None:
    step, back = pair
    found = suppressed(step, back)
    length = tree.norm(step) * tree.norm(back)
    assert tree.dot(found, back) <= 1e-9 * length
    if tree.dot(step, back) <= 0:
        assert torch.equal(found["w"], step["w"])
    else:  # what went is along ``back`` only: the rest is the projection
        gone = tree.sub(step, found)
        assert tree.norm(gone) * tree.norm(back) == pytest.approx(abs(tree.dot(gone, back)), rel=1e-6, abs=1e-9)
        assert abs(tree.dot(found, back)) <= 1e-9 * length


@settings(max_examples=300)
@given(vectors(2), st.floats(0.1, 10))
def test_no_ascent_step_works_against_the_retained_update(pair: list[Params], rate: float) -> None:
    forget, retain = pair
    found = ascent(forget, retain, rate)
    length = rate * tree.norm(forget) * tree.norm(retain)
    assert tree.dot(found, retain) >= -1e-9 * length
    if tree.dot(forget, retain) <= 0:
        assert torch.equal(found["w"], -rate * forget["w"])
    assert tree.dot(found, forget) <= 1e-9 * rate * tree.dot(forget, forget)  # still away from what is to go


def test_a_round_of_ascent_and_one_of_recovery_follow_the_rules(small: Small) -> None:
    method = SuppressedRecovery(rate=1.5, rounds=3, local=LOCAL)
    seen = states_of(small, method)
    forget, retain = flat(mean_update(small, 0, "forget")), flat(mean_update(small, 0, "retain"))
    wanted = -1.5 * forget
    if float(wanted @ retain) < 0:
        wanted = wanted - float(wanted @ retain) / float(retain @ retain) * retain
    origin = flat(small.start.params)
    torch.testing.assert_close(flat(seen[0].params), origin + wanted, rtol=1e-5, atol=1e-6)
    suppressions = 0
    for t, (before, after) in enumerate(pairwise(seen), start=1):
        step, back = flat(mean_update(small, t, "retain")), origin - flat(before.params)
        if float(step @ back) > 0:
            step, suppressions = step - float(step @ back) / float(back @ back) * back, suppressions + 1
        torch.testing.assert_close(flat(after.params), flat(before.params) + step, rtol=1e-5, atol=1e-6)
    assert suppressions  # or this test would not see the rule


def test_its_buffers_are_those_of_the_retain_stream(small: Small) -> None:
    seen = states_of(small, SuppressedRecovery(rounds=1, local=LOCAL))
    if not small.start.buffers:
        return
    works, replies = small.tap.calls[0]
    counts = [int(r.buffers["norm.num_batches_tracked"]) for r in replies if works[r.work].part == "retain"]
    assert int(seen[0].buffers["norm.num_batches_tracked"]) == max(counts)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"weight-distortion\.sigma"):
        WeightDistortion(sigma=0.0)
    with pytest.raises(ConfigError, match=r"weight-distance\.weight"):
        WeightDistance(weight=-1.0)
    with pytest.raises(ConfigError, match=r"suppressed-recovery\.rate"):
        SuppressedRecovery(rate=0.0)
    with pytest.raises(ConfigError, match="ascent_rounds"):
        SuppressedRecovery(ascent_rounds=0)


def test_the_schedule_follows_the_round(small: Small) -> None:
    states_of(small, WeightDistance(rounds=2, local=replace(LOCAL, decay=0.5)))
    assert [works[0].options["lr"] for works, _ in small.tap.calls] == pytest.approx([0.1, 0.05])


def test_detaching_has_one_phase_of_one_round(small: Small) -> None:
    assert [(phase.name, phase.rounds) for phase in Detach().phases(small.start, small.task)] == [("detach", 1)]
