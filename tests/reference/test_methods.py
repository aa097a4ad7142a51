"""The update rule of each method against a slow loop written from its equation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from of_three import Small
from torch.nn import functional as F

from letheon import tree
from letheon.errors import MethodError
from letheon.methods.base import fedavg
from letheon.methods.lethe import ALIGNMENT, Lethe
from letheon.methods.negate import NoT, negated
from letheon.methods.noise import Noise, gaussian_like
from letheon.methods.puf import PUF
from letheon.methods.rectify import COLUMNS, Gamma, rectify
from letheon.methods.retrain import Retrain
from letheon.phase import LOG, Phase, State, drive, seed_of
from letheon.tasks.base import buffers_of
from letheon.training import Local, batches
from letheon.tree import Params
from letheon.work import Reply

LOCAL = Local(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=4)


def locally(small: Small, client: str, state: State, local: Local, seed: int) -> tuple[Params, Params]:
    """One client's training by torch.optim: weights and buffers afterwards."""
    module, data = small.task.model(), small.clients[client]
    module.load_state_dict({**state.params, **state.buffers})
    optimizer = torch.optim.SGD(
        module.parameters(), lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay
    )
    generator = torch.Generator().manual_seed(seed_of(f"{seed}|{client}"))
    for index in batches(len(data), local, generator, smallest=2):
        optimizer.zero_grad()
        F.cross_entropy(module(data.inputs[index]), data.targets[index]).backward()
        optimizer.step()
    return tree.clone(dict(module.named_parameters())), buffers_of(module)


def update(small: Small, client: str, seed: int) -> Params:
    """w_k − w from the start."""
    return tree.sub(locally(small, client, small.start, LOCAL, seed)[0], small.start.params)


def weighted(small: Small, clients: Sequence[str], seed: int) -> Params:
    """Σ n_k Δ_k / Σ n_k in float64, tensor by tensor."""
    total = sum(len(small.clients[client]) for client in clients)
    mean = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in small.start.params.items()}
    for client in clients:
        for name, delta in update(small, client, seed).items():
            mean[name] = mean[name] + len(small.clients[client]) / total * delta.double()
    return mean


def assert_close(found: Params, wanted: Params) -> None:
    """Within float32's rounding, which BatchNorm over batches of four magnifies; steps are about 1e-2 long."""
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name].to(tensor.dtype), rtol=1e-4, atol=2e-5)


def after(small: Small, phases: Sequence[Phase], rounds: int = 1) -> tuple[State, int]:
    """The state after the first phases, one round each, and the seed of the first work."""
    once = [replace(phase, rounds=1) for phase in phases[:rounds]]
    end = drive(once, small.tap, small.start, seed=9)
    return end, small.tap.calls[0][0][0].seed if small.tap.calls else 0


def test_a_round_of_fedavg_is_the_mean_of_models_weighted_by_their_samples(small: Small) -> None:
    end, seed = after(small, [Phase("restore", fedavg(LOCAL))])
    wanted = {}
    models = {client: locally(small, client, small.start, LOCAL, seed)[0] for client in ("a", "c")}
    for name in small.start.params:
        wanted[name] = (10 * models["a"][name].double() + 20 * models["c"][name].double()) / 30
    assert_close(end.params, wanted)
    assert not torch.equal(end.params["head.weight"], small.start.params["head.weight"])


def test_its_buffers_are_pooled_over_the_participants(small: Small) -> None:
    end, seed = after(small, [Phase("restore", fedavg(LOCAL))])
    buffers = {client: locally(small, client, small.start, LOCAL, seed)[1] for client in ("a", "c")}
    assert end.buffers.keys() == small.start.buffers.keys()
    for name in end.buffers:
        if name.endswith("tracked"):
            assert int(end.buffers[name]) == 5  # of the client with most batches: 20 samples by fours
        if name.endswith("running_mean"):
            mean = (10 * buffers["a"][name] + 20 * buffers["c"][name]) / 30
            torch.testing.assert_close(end.buffers[name], mean, rtol=1e-4, atol=1e-6)
        if name.endswith("running_var"):
            means = {client: buffers[client]["norm.running_mean"] for client in buffers}
            spread = 10 / 30 * 20 / 30 * (means["a"] - means["c"]) ** 2  # of two groups
            plain = (10 * buffers["a"][name] + 20 * buffers["c"][name]) / 30
            torch.testing.assert_close(end.buffers[name], plain + spread, rtol=1e-4, atol=1e-6)


def test_the_schedule_follows_the_round(small: Small) -> None:
    decaying = replace(LOCAL, decay=0.5)
    drive([Phase("restore", fedavg(decaying), 3)], small.tap, small.start, seed=9)
    rates = [works[0].options["lr"] for works, _ in small.tap.calls]
    assert rates == pytest.approx([0.1, 0.05, 0.025])


def test_puf_in_its_special_form_subtracts_lambda_times_the_forget_update(small: Small) -> None:
    method = PUF(form="special", rate=2.5, local=LOCAL)
    end, seed = after(small, method.phases(small.start, small.task))
    forget = update(small, "b", seed)
    assert_close(end.params, {n: p.double() - 2.5 * forget[n].double() for n, p in small.start.params.items()})
    assert tree.digest(end.buffers) == tree.digest(small.start.buffers)


def test_puf_in_its_regular_form_weights_both_streams_over_all_samples(small: Small) -> None:
    method = PUF(form="regular", rate=20.0, local=LOCAL)
    end, seed = after(small, method.phases(small.start, small.task))
    each = {client: update(small, client, seed) for client in "abc"}
    share = {"a": 10 / 44, "b": -20.0 * 14 / 44, "c": 20 / 44}
    wanted = {
        name: p.double() + sum(share[client] * each[client][name].double() for client in "abc")
        for name, p in small.start.params.items()
    }
    assert_close(end.params, wanted)


def test_not_negates_the_first_weight_and_nothing_else(small: Small) -> None:
    end, _ = after(small, NoT(local=LOCAL).phases(small.start, small.task))
    for name, parameter in small.start.params.items():
        assert torch.equal(end.params[name], -parameter if name == "fc1.weight" else parameter)
    assert tree.digest(end.buffers) == tree.digest(small.start.buffers)
    assert small.tap.calls == []


def test_negation_is_an_involution_and_refuses_unknown_names(small: Small) -> None:
    names = ("fc1.weight", "head.bias")
    twice = negated(negated(small.start.params, names), names)
    assert tree.digest(twice) == tree.digest(small.start.params)
    with pytest.raises(MethodError, match="no parameter named 'conv1'"):
        negated(small.start.params, ("conv1",))


def test_noise_moves_every_tensor_by_the_length_of_pufs_step_in_another_direction(small: Small) -> None:
    method = Noise(scale=2.5, local=LOCAL)
    end, seed = after(small, method.phases(small.start, small.task))
    forget = update(small, "b", seed)
    moved = tree.sub(end.params, small.start.params)
    for name, delta in forget.items():
        assert float(moved[name].norm()) == pytest.approx(2.5 * float(delta.norm()), rel=1e-3)
    cosine = tree.dot(moved, forget) / (tree.norm(moved) * tree.norm(forget))
    assert abs(cosine) < 0.2


def test_noise_like_a_zero_update_is_zero_and_a_seed_fixes_it() -> None:
    like = {"w": torch.ones(50), "b": torch.zeros(3)}
    noise = gaussian_like(like, 2.0, seed=1)
    assert noise["b"].tolist() == [0.0, 0.0, 0.0]
    assert float(noise["w"].norm()) == pytest.approx(2.0 * 50**0.5, rel=1e-6)
    assert torch.equal(noise["w"], gaussian_like(like, 2.0, seed=1)["w"])
    assert not torch.equal(noise["w"], gaussian_like(like, 2.0, seed=2)["w"])


def test_retrain_starts_from_the_initial_weights_and_forgets_the_model_it_was_given(small: Small) -> None:
    method = Retrain(rounds=1, init_seed=4, local=replace(LOCAL, first_round=60, decay=0.5))
    end, seed = after(small, method.phases(small.start, small.task))
    fresh = small.task.init(4)
    models = {client: locally(small, client, fresh, LOCAL, seed)[0] for client in ("a", "c")}
    wanted = {n: (10 * models["a"][n].double() + 20 * models["c"][n].double()) / 30 for n in fresh.params}
    assert_close(end.params, wanted)
    assert all(work.options["lr"] == 0.1 for works, _ in small.tap.calls for work in works)  # its own round 0


def slow_rectify(retain: Params, forget: Params, layers: dict[str, tuple[str, ...]], beta: float) -> Params:
    """Eq. 9, 10 and 13, scalar by scalar."""
    wanted = {}
    for names in layers.values():
        pairs = [
            (r, f)
            for name in names
            for r, f in zip(retain[name].flatten().tolist(), forget[name].flatten().tolist(), strict=True)
        ]
        s = sum(r * f for r, f in pairs)
        forget_square, retain_square = sum(f * f for _, f in pairs), sum(r * r for r, _ in pairs)
        for name in names:
            if s <= 0:
                wanted[name] = -1.0 * forget[name]
                continue
            lower, upper = s / forget_square, retain_square / s
            wanted[name] = retain[name] - (lower + beta * (upper - lower)) * forget[name]
    return wanted


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("grouped", [False, True])
def test_rectification_follows_equations_9_10_and_13(beta: float, grouped: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    names = [f"l{i}.{own}" for i in range(6) for own in ("weight", "bias")]
    layers = {f"l{i}": (f"l{i}.weight", f"l{i}.bias") for i in range(6)} if grouped else {n: (n,) for n in names}
    retain, forget = ({n: torch.randn(3, 4, generator=generator, dtype=torch.float64) for n in names} for _ in range(2))
    update, alignments = rectify(retain, forget, layers, Gamma(beta=beta))
    assert {a.branch for a in alignments.values()} == {"subtract", "negate"}
    wanted = slow_rectify(retain, forget, layers, beta)
    for name in names:
        torch.testing.assert_close(update[name], wanted[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layer", ["tensor", "module"])
def test_a_round_of_lethe_applies_the_rule_to_the_two_streams_and_takes_the_buffers_of_one(
    small: Small, layer: str
) -> None:
    method = Lethe(adapter=None, rounds=1, restore_rounds=0, search=None, layer=layer, local=LOCAL)  # type: ignore[arg-type]
    seen: list[State] = []
    phases = method.phases(small.start, small.task)
    end = drive(phases, small.tap, small.start, seed=9, observers=[lambda phase, done, state: seen.append(state)])
    (works, replies) = small.tap.calls[0]
    assert [work.part for work in works] == ["forget", "retain"]
    forget = {n: t.double() for n, t in update(small, "b", works[0].seed).items()}
    retain = weighted(small, ("a", "c"), works[1].seed)
    groups = dict(small.task.layers) if layer == "module" else {n: (n,) for n in small.start.params}
    rule = slow_rectify(retain, forget, groups, method.gamma.beta)
    assert_close(end.params, {n: p.double() + rule[n] for n, p in small.start.params.items()})
    assert seen[0].scratch[LOG + ALIGNMENT].shape == (len(groups), len(COLUMNS))
    if small.start.buffers:
        assert tree.digest(end.buffers) == tree.digest(pooled(replies))


@pytest.mark.parametrize("layer", ["tensor", "module"])
def test_scales_and_shifts_of_norms_may_follow_the_retain_stream(small: Small, layer: str) -> None:
    rectifying = Lethe(adapter=None, rounds=1, restore_rounds=0, search=None, layer=layer, local=LOCAL)  # type: ignore[arg-type]
    ends = [
        drive(method.phases(small.start, small.task), small.tap, small.start, seed=9)
        for method in (rectifying, replace(rectifying, norm="retain"))
    ]
    retain = weighted(small, ("a", "c"), small.tap.calls[0][0][1].seed)
    norms = small.task.norms
    assert norms == ({"norm.weight", "norm.bias"} if small.start.buffers else set())
    for name, tensor in ends[1].params.items():
        if name in norms:
            assert_close({name: tensor}, {name: small.start.params[name].double() + retain[name]})
            assert not torch.equal(tensor, ends[0].params[name])
        else:
            assert torch.equal(tensor, ends[0].params[name])


def pooled(replies: Sequence[Reply]) -> Params:
    from letheon.work import BufferMean

    mean = BufferMean()
    for reply in replies:
        if reply.work == 1:
            mean.push(reply.buffers, reply.weight)
    return mean.mean()
