"""FedU's influence, its balance and its round against slow loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from of_three import Small
from torch.nn import functional as F

from letheon import tree
from letheon.client import Client
from letheon.errors import ConfigError, RoundError
from letheon.methods.fedu import FedU, influence, min_norm, shares
from letheon.phase import State, drive
from letheon.request import Request
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.vision import Digits
from letheon.testing.scene import Tap
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Reply, Work

LOCAL = Local(lr=0.1, batch_size=4)
NUMBERS = st.floats(-1e3, 1e3, width=32)


def slow_influence(small: Small, client: str, chosen: list[int], damping: float) -> Params:
    """(1/n) Σ_i g_i / (mean_i g_i² + λ), sample by sample."""
    module, data = small.task.model(), small.clients[client]
    module.load_state_dict({**small.start.params, **small.start.buffers})
    module.eval()
    gradients: list[Params] = []
    for i in chosen:
        module.zero_grad()
        F.cross_entropy(module(data.inputs[i : i + 1]), data.targets[i : i + 1]).backward()
        gradients.append({n: p.grad.double().clone() for n, p in module.named_parameters() if p.grad is not None})
    found = {}
    for name in small.start.params:
        fisher = sum(g[name] ** 2 for g in gradients) / len(gradients)
        found[name] = sum(g[name] for g in gradients) / (fisher + damping) / len(data)
    return found


def replies_to(small: Small, method: FedU) -> tuple[State, list[Reply]]:
    """The state after the first round, and what the clients answered in it."""
    seen: list[State] = []
    phases = method.phases(small.start, small.task)
    drive(phases, small.tap, small.start, seed=9, observers=[lambda phase, done, state: seen.append(state)])
    return seen[0], list(small.tap.calls[0][1])


def assert_close(found: Params, wanted: Params) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name].to(tensor.dtype), rtol=1e-4, atol=1e-5)


def test_the_holder_answers_with_the_influence_of_its_samples(small: Small) -> None:
    _, replies = replies_to(small, FedU(damping=0.05, balance_rounds=1, rounds=1, local=LOCAL))
    (holder,) = [reply for reply in replies if reply.work == 0]
    assert holder.client == "b"
    assert_close(dict(holder.tensors), slow_influence(small, "b", list(range(14)), 0.05))
    assert holder.metrics["samples"] == 14
    assert holder.metrics["flops"] == 3 * small.task.flops * 14


def test_a_holder_that_keeps_nothing_contributes_its_influence_alone(small: Small) -> None:
    after, replies = replies_to(small, FedU(damping=0.05, balance_rounds=1, rounds=1, local=LOCAL))
    each = {(reply.work, reply.client): reply for reply in replies}
    assert set(each) == {(0, "b"), (1, "a"), (1, "c")}
    assert_close(
        after.params,
        {
            name: p.double()
            + sum(n / 44 * each[key].tensors[name].double() for key, n in zip(sorted(each), (14, 10, 20), strict=True))
            for name, p in small.start.params.items()
        },
    )


def test_one_that_keeps_some_contributes_the_shortest_step_between_influence_and_training(small: Small) -> None:
    chosen = small.clients["b"].ids[:5]
    request = Request("samples", samples=tuple(chosen.tolist()))
    members = [Client(name, data, small.task) for name, data in small.clients.items()]
    for member in members:
        member.admit(request)
    with InProcess(members, workers=1) as runtime:
        tap = Tap(_Named(runtime, request.id))
        method = FedU(damping=0.05, balance_rounds=1, rounds=1, local=LOCAL)
        after = method.balance(tap, small.start, 0)
    each = {(reply.work, reply.client): reply for reply in tap.calls[0][1]}
    assert {key: reply.weight for key, reply in each.items()} == {(0, "b"): 5, (1, "a"): 10, (1, "b"): 9, (1, "c"): 20}
    step = slow_influence(small, "b", list(range(5)), 0.05)
    assert_close(dict(each[0, "b"].tensors), step)
    update = {name: tensor.double() for name, tensor in each[1, "b"].tensors.items()}
    best = min((tree.norm(between(step, update, i / 1000)), i / 1000) for i in range(1001))[1]
    mixed = between(step, update, best)
    contributions = [(10, each[1, "a"].tensors), (9, mixed), (20, each[1, "c"].tensors)]
    for name, p in small.start.params.items():
        wanted = p.double() + sum(n / 39 * tensors[name].double() for n, tensors in contributions)
        torch.testing.assert_close(after.params[name].double(), wanted, rtol=1e-3, atol=1e-4)
    if small.start.buffers:
        counts = [int(reply.buffers["norm.num_batches_tracked"]) for (work, _), reply in each.items() if work == 1]
        assert int(after.buffers["norm.num_batches_tracked"]) == max(counts)


class _Named:
    """Names the request in every work."""

    def __init__(self, inner: InProcess, request: str) -> None:
        self._inner = inner
        self._request = request

    def run(self, *works: Work):  # type: ignore[no-untyped-def]
        return self._inner.run(*(replace(work, request=self._request) for work in works))


def between(a: Params, b: Params, share: float) -> Params:
    return {name: share * a[name].double() + (1 - share) * b[name].double() for name in a}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Params, Params]:
    size = draw(st.integers(1, 4))
    vector = st.lists(NUMBERS, min_size=size, max_size=size)
    a, b = ({"w": torch.tensor(draw(vector), dtype=torch.float64)} for _ in range(2))
    return a, b


@settings(max_examples=300)
@given(pairs())
def test_the_balanced_step_loses_to_first_order_on_neither_side(pair: tuple[Params, Params]) -> None:
    a, b = pair
    v = min_norm(a, b)
    square, scale = tree.dot(v, v), (tree.norm(a) + tree.norm(b)) ** 2
    assert tree.dot(v, a) >= square - 1e-9 * scale
    assert tree.dot(v, b) >= square - 1e-9 * scale
    assert tree.norm(v) <= min(tree.norm(a), tree.norm(b)) + 1e-9 * scale**0.5
    swapped = min_norm(b, a)
    torch.testing.assert_close(v["w"], swapped["w"], rtol=1e-6, atol=1e-6 * max(scale**0.5, 1e-9))


def test_a_heavier_damping_shortens_the_influence_and_the_order_of_samples_does_not_matter() -> None:
    gradients = [[torch.tensor([1.0, -2.0]), torch.tensor([3.0])], [torch.tensor([0.5, 1.0]), torch.tensor([-1.0])]]
    short, long = (influence(gradients, damping, 4) for damping in (10.0, 0.1))
    assert all(bool((a.abs() < b.abs()).all()) for a, b in zip(short, long, strict=True))
    for found, again in zip(long, influence(gradients[::-1], 0.1, 4), strict=True):
        torch.testing.assert_close(found, again)
    assert float(long[0][0]) == pytest.approx(1.5 / ((1.0 + 0.25) / 2 + 0.1) / 4)


def test_a_client_whose_other_reply_is_missing_counts_with_the_one_that_came() -> None:
    one = {"w": torch.ones(2)}
    forget = {"a": Reply(0, "a", one, weight=3.0)}
    retain = {"b": Reply(1, "b", {"w": torch.zeros(2)}, weight=5.0)}
    found = [(reply.client, reply.weight, reply.work) for reply in shares(forget, retain)]
    assert found == [("a", 3.0, 0), ("b", 5.0, 0)]


def test_a_round_without_the_one_or_the_other_stream_is_refused() -> None:
    task = Digits()
    start = task.init(0)
    only = {part: Reply(index, "a", start.params, weight=2.0) for index, part in enumerate(("forget", "retain"))}
    for part, reply in only.items():
        with pytest.raises(RoundError, match=r"no usable reply to work " + ("1" if part == "forget" else "0")):
            FedU(local=LOCAL).balance(_Canned([reply]), start, 0)
    broken = Reply(0, "a", {}, error="out of order")
    with pytest.raises(RoundError, match="client a: out of order"):
        FedU(local=LOCAL).balance(_Canned([broken, *only.values()]), start, 0)


class _Canned:
    """Answers whatever it was given."""

    def __init__(self, replies: list[Reply]) -> None:
        self._replies = replies

    def run(self, *works: Work):  # type: ignore[no-untyped-def]
        return iter(self._replies)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"fedu\.damping"):
        FedU(damping=0.0)
    with pytest.raises(ConfigError, match=r"fedu\.balance_rounds"):
        FedU(balance_rounds=0)
