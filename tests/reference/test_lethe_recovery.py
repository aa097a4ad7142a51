"""How Lethe weighs replies, when phase 3 ends, and where running statistics come from: settings of its rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from of_three import Small

from letheon import tree
from letheon.client import Client
from letheon.errors import ConfigError
from letheon.methods.lethe import BASELINE, LONGEST, RECOVERED, SHARE, SLACK, Lethe, is_restored
from letheon.methods.rectify import rectify
from letheon.methods.search import Search
from letheon.phase import LOG, State, drive
from letheon.tasks.base import buffers_of
from letheon.training import Local, has_batch_norm
from letheon.work import BufferMean, Reply, Work

LOCAL = Local(lr=0.05, batch_size=4)
SIZES = {"a": 10.0, "b": 14.0, "c": 20.0}


def driven(small: Small, **settings: Any) -> list[tuple[str, State]]:
    """The phase and the state after each round of a Lethe without adapter and search."""
    method = Lethe(**{"adapter": None, "rounds": 1, "restore_rounds": 1, "search": None, "local": LOCAL, **settings})
    states: list[tuple[str, State]] = []
    observers = [lambda phase, done, state: states.append((phase, state))]
    drive(method.phases(small.start, small.task), small.tap, small.start, seed=1, observers=observers)
    return states


def mean(replies: list[Reply], shares: dict[str, float]) -> dict[str, torch.Tensor]:
    """Σ p_k Δ_k, written out."""
    names = replies[0].tensors
    return {name: sum(shares[r.client] * r.tensors[name].double() for r in replies).float() for name in names}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("weights", "forget", "retain"),
    [
        (None, {"b": 1.0}, {"a": 10 / 30, "c": 20 / 30}),
        ("uniform", {"b": 1.0}, {"a": 0.5, "c": 0.5}),
        ("literal", {"b": 1.0}, {"a": 10 / 44, "c": 20 / 44}),
    ],
)
def test_both_streams_and_phase_3_weigh_replies_as_asked(
    weights: str | None, forget: dict[str, float], retain: dict[str, float], small: Small
) -> None:
    (_, rectified), (_, restored) = driven(small, weights=weights)
    (works, streams), (_, recovery) = small.tap.calls
    parts = {
        part: [reply for reply in streams if works[reply.work].part == part] for part in ("forget", "retain")
    }
    assert {reply.client: reply.weight for reply in streams} == SIZES
    layers = {name: (name,) for name in small.start.params}
    update, _ = rectify(mean(parts["retain"], retain), mean(parts["forget"], forget), layers, Lethe().gamma)
    for name, tensor in small.start.params.items():
        torch.testing.assert_close(rectified.params[name], tensor + update[name], rtol=1e-4, atol=1e-6)
        step = mean(recovery, retain)[name]
        torch.testing.assert_close(restored.params[name], rectified.params[name] + step, rtol=1e-4, atol=1e-6)


def test_a_literal_share_lasts_through_phase_3_and_uniform_weights_need_single_replies(small: Small) -> None:
    *_, (_, last) = driven(small, weights="literal", restore_rounds=2)
    assert float(last.scratch[SHARE]) == pytest.approx(30 / 44)
    assert "per-client" in Lethe(weights="uniform").needed
    assert "per-client" not in Lethe(weights="literal").needed


def test_a_trial_round_is_weighed_as_phase_3_will_be(small: Small) -> None:
    method = Lethe(adapter=None, search=None, weights="literal", local=LOCAL)
    start = replace(small.start, scratch={SHARE: torch.tensor(0.25, dtype=torch.float64)})
    next_round = method.retained(small.tap, start, 0)
    method.probed(small.tap, start, 0)
    (trial,) = (works[0] for works, _ in small.tap.calls[-1:])
    assert tree.digest(trial.params) == tree.digest(next_round.params)


def test_until_utility_is_back_phase_3_goes_on(small: Small) -> None:
    states = driven(small, restore_rounds="until", rounds=2, local=Local(lr=0.3, batch_size=4))
    looks = [r for w, replies in small.tap.calls if w[0].kind == "evaluate" for r in replies if r.client != "b"]
    limits = [work.options["limit"] for works, _ in small.tap.calls for work in works if work.kind == "evaluate"]
    assert set(limits) == {Search().samples}
    restored = [state.scratch[LOG + RECOVERED].tolist() for phase, state in states if phase == "restore"]
    assert 1 <= len(restored) <= LONGEST
    origin = sum(r.weight * r.metrics["accuracy"] for r in looks[:2]) / 30
    assert [row[1] for row in restored] == [pytest.approx(origin)] * len(restored)
    enough = [found >= origin - SLACK for found, _ in restored]
    assert not any(enough[:-1])
    assert enough[-1] or len(restored) == LONGEST
    last = sum(r.weight * r.metrics["accuracy"] for r in looks[-2:]) / 30
    assert restored[-1][0] == pytest.approx(last)


def test_until_asks_for_origin_s_accuracy_but_a_point_and_for_no_more_than_twenty_rounds(small: Small) -> None:
    method = Lethe(adapter=None, search=None, rounds=1, restore_rounds="until", local=LOCAL)
    phases = method.phases(small.start, small.task)
    assert [(phase.name, phase.rounds) for phase in phases] == [("rectify", 1), ("restore", LONGEST)]

    def after(baseline: float) -> State:
        kept = {BASELINE: torch.tensor(baseline, dtype=torch.float64)}
        return method.restore(small.tap, replace(small.start, scratch=kept), 0)

    found = float(after(0.0).scratch[LOG + RECOVERED][0])
    assert 0.0 < found < 1.0
    assert is_restored(after(found + 0.9 * SLACK))
    assert not is_restored(after(found + 1.1 * SLACK))


def test_fresh_statistics_are_those_of_a_pass_over_the_retained_data(small: Small) -> None:
    states = driven(small, buffers="fresh")
    names = [phase for phase, _ in states]
    if not small.start.buffers:
        assert names == ["rectify", "restore"]
        return
    assert names == ["rectify", "refresh", "restore", "refresh-restored"]
    by_name = dict(states)
    for before, after in (("rectify", "refresh"), ("restore", "refresh-restored")):
        assert tree.digest(by_name[after].params) == tree.digest(by_name[before].params)
        wanted = pooled(small, by_name[before])
        for name, tensor in by_name[after].buffers.items():
            torch.testing.assert_close(tensor, wanted[name])
            assert name.endswith("tracked") or not torch.equal(tensor, by_name[before].buffers[name])
    assert [phase for phase, _ in driven(small, buffers="fresh", restore_rounds=0)] == ["rectify", "refresh"]


def test_statistics_of_one_sample_are_refused_by_name(small: Small) -> None:
    one = Client("d", small.clients["a"].take(torch.arange(1)), small.task)
    reply = one.execute(Work("refresh", small.start.params, small.start.buffers, "retain"), small.task.model())
    assert bool(small.start.buffers) == ("1 sample(s) cannot train a model with BatchNorm" in reply.error)


def pooled(small: Small, state: State) -> dict[str, torch.Tensor]:
    """Mean and variance of what enters the norm over each retained client's data, aggregated."""
    found = BufferMean()
    for name in ("a", "c"):
        module = small.task.model()
        module.load_state_dict({**state.params, **state.buffers})
        assert has_batch_norm(module)
        with torch.no_grad():
            entering = module.fc1(small.clients[name].inputs)
        buffers = buffers_of(module)
        own = {"norm.running_mean": entering.mean(0), "norm.running_var": entering.var(0)}
        own["norm.num_batches_tracked"] = buffers["norm.num_batches_tracked"] + 1
        assert own.keys() == buffers.keys()
        found.push(own, float(len(small.clients[name])))
    return found.mean()


def test_restore_rounds_are_counted_or_until() -> None:
    with pytest.raises(ConfigError, match="restore_rounds"):
        Lethe(restore_rounds=-1)
