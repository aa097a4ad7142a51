"""TFR-Net: what a channel does to the loss, and gates on it, from request to request."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tfr_toys import COUNT, LAYERS, LOOSE, METHOD, TASK, Blind, Holder, learnt, model, texts
from torch import Tensor, nn

from letheon.client import load
from letheon.errors import MethodError
from letheon.methods.tfr import TFRNet
from letheon.phase import State
from letheon.runtimes.alone import threads
from letheon.text import channels, trajectory
from letheon.text.channels import Track
from letheon.text.descent import mean_loss


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


def slow_attribution(module: nn.Module, data: Any, place: tuple[str, int], *, at: float, column: Tensor) -> float:
    """E|∂L/∂g| at g = ``at`` by central differences, one text at a time; wide ones, since norms compute in float32."""
    layer, channel = place
    weight, step, total = module.get_parameter(f"{layer}.weight").data, 0.1, 0.0
    for row in range(len(data)):
        sides = []
        for g in (at + step, at - step):
            weight[:, channel] = g * column
            sides.append(mean_loss(module, data.take(torch.tensor([row]))))
        total += abs(sides[0] - sides[1]) / (2 * step)
    weight[:, channel] = at * column
    return total / len(data)


@pytest.mark.parametrize("at", [1.0, 0.5, 0.0])
def test_attribution_is_the_gates_slope_wherever_the_gate_is(at: float) -> None:
    """Of a closed gate, too, though its column is zero in the model: it is what reopening would do."""
    data, shut = texts([2, 7, 11]), 5
    gate = torch.ones(COUNT).index_fill(0, torch.tensor([shut]), at)
    found = channels.attributions(model(learnt()), data, {LAYERS[1]: gate})
    assert tuple(found) == LAYERS
    module = model(learnt())
    module.get_parameter(f"{LAYERS[1]}.weight").data[:, shut] *= at
    for layer, channel in [(LAYERS[0], 80), (LAYERS[0], 20), (LAYERS[1], 71), (LAYERS[1], shut)]:
        column = learnt().params[f"{layer}.weight"][:, channel]
        here = at if (layer, channel) == (LAYERS[1], shut) else 1.0
        slope = slow_attribution(module, data, (layer, channel), at=here, column=column)
        assert slope > 1e-3
        assert float(found[layer][channel]) == pytest.approx(slope, rel=0.02)


def test_attribution_is_a_times_its_gradient_summed_over_tokens() -> None:
    """E|Σ_t a_t ∂L/∂a_t|, from hooks on a text alone."""
    module, data, heard = model(learnt()), texts([4, 9]), list[Tensor]()
    found = channels.attributions(module, data, {})
    total = {layer: torch.zeros(COUNT) for layer in LAYERS}

    def hear(_: Any, inputs: Any) -> None:
        inputs[0].retain_grad()
        heard.append(inputs[0])

    for layer in LAYERS:
        module.get_submodule(layer).register_forward_pre_hook(hear)
    for row in range(2):
        heard.clear()
        one = data.take(torch.tensor([row]))
        TASK.loss(module(one.inputs), one.targets).backward()  # type: ignore[no-untyped-call]
        for layer, inputs in zip(LAYERS, heard, strict=True):
            assert inputs.grad is not None
            total[layer] += (inputs * inputs.grad).sum((0, 1)).abs().detach() / 2
    for layer in LAYERS:
        assert torch.allclose(found[layer].float(), total[layer], rtol=1e-3, atol=1e-7)


def test_texts_that_pass_together_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    data = texts(range(12))
    together = channels.attributions(model(learnt()), data, {})
    monkeypatch.setattr(channels, "AT_ONCE", 1)
    alone = channels.attributions(model(learnt()), data, {})
    assert all(torch.allclose(together[layer], alone[layer], rtol=1e-3, atol=1e-8) for layer in LAYERS)


def test_recomputed_activations_change_nothing() -> None:
    task = replace(TASK, language=replace(TASK.language, checkpointing=True))
    module = task.prototype()
    load(module, learnt().params, learnt().buffers)
    module.train()
    found = channels.attributions(module, texts([1, 2]), {})
    plain = channels.attributions(model(learnt()), texts([1, 2]), {})
    assert all(torch.allclose(found[layer], plain[layer], rtol=1e-4, atol=1e-9) for layer in LAYERS)


def test_a_model_without_channels_is_refused_and_told_what_was_looked_for() -> None:
    with pytest.raises(MethodError, match=r"linear layers called down_proj.*found only: fc_in, fc_out"):
        channels.find(nn.ModuleDict({"fc_in": nn.Linear(2, 2), "fc_out": nn.Linear(2, 2)}))
    with pytest.raises(MethodError, match="found only: none at all"):
        channels.find(nn.ModuleDict({"down_proj": nn.Linear(2, 2).requires_grad_(False)}))

    class Other(Blind):
        layers = {"lm.h.0.mlp.c_proj": ("lm.h.0.mlp.c_proj.weight",)}  # noqa: RUF012

    with pytest.raises(MethodError, match="only: c_proj"):
        METHOD.phases(learnt(), Other())


def test_a_layer_that_mixes_texts_is_refused() -> None:
    layer = nn.Linear(4, 2)
    with channels._gated({"experts.0.down_proj": layer}, {"experts.0.down_proj": torch.ones(4)}, 2):
        layer(torch.ones(2, 3, 4))
        with pytest.raises(MethodError, match="models with experts are not served"):
            layer(torch.ones(6, 4))


@pytest.mark.parametrize("strength", [1.0, 0.3])
def test_gates_scale_columns_and_opening_gives_them_back_to_the_last_bit(strength: float) -> None:
    start = learnt().params
    gate = torch.ones(COUNT).index_fill(0, torch.tensor([3, 40]), 1 - strength)
    fresh = Track(torch.zeros(COUNT), torch.zeros(COUNT, dtype=torch.int64), gate, torch.zeros(0, 0))
    moved, tracks = channels.gated(start, {LAYERS[0]: fresh})
    assert all(torch.equal(moved[n], start[n]) for n in start if n != f"{LAYERS[0]}.weight")
    before, after = start[f"{LAYERS[0]}.weight"], moved[f"{LAYERS[0]}.weight"]
    assert torch.equal(after[:, [3, 40]], before[:, [3, 40]] * (1 - strength))
    rest = [c for c in range(COUNT) if c not in (3, 40)]
    assert torch.equal(after[:, rest], before[:, rest])
    kept = channels.from_params(channels.to_params(tracks))
    assert kept[LAYERS[0]].columns.shape == (before.shape[0], 2)
    whole = channels.opened(moved, kept)
    assert all(torch.equal(whole[n], start[n]) for n in start)
    assert torch.equal(before, learnt().params[f"{LAYERS[0]}.weight"]), "what was given is left alone"


def test_undoing_gives_back_the_model_of_before_all_requests() -> None:
    holder, start = Holder(), learnt()
    state = start
    for number in range(2):
        state = holder.serve(METHOD, state, number)
    assert sum(int(track.closed.sum()) for track in METHOD.tracks(state).values()) > 8
    changed = [n for n in start.params if not torch.equal(state.params[n], start.params[n])]
    assert changed == [f"{layer}.weight" for layer in LAYERS]
    undone = METHOD.undone(state)
    assert all(torch.equal(undone[n], start.params[n]) for n in start.params)


def test_requests_close_what_the_rules_say_within_budget() -> None:
    holder = Holder()
    first = holder.serve(METHOD, learnt(), 0)
    second = holder.serve(METHOD, first, 1)
    risks = channels.attributions(model(learnt()), texts(TASK.requests()[0]), {})
    for layer, track in METHOD.tracks(first).items():
        assert sorted(risks[layer].argsort(descending=True)[:4].tolist()) == torch.nonzero(track.closed)[:, 0].tolist()
        assert torch.equal(track.trajectory, trajectory.ranks(risks[layer]))
    for layer, track in METHOD.tracks(second).items():
        assert int(track.closed.sum()) == 8 == trajectory.counted(0.1, COUNT)
        new = track.closed & ~METHOD.tracks(first)[layer].closed
        assert ((track.trajectory >= 0.7) & (track.hits >= 2))[new].all()
    assert holder.logs.entries["suppressed"] == [[4, 4], [4, 4]]
    assert holder.logs.entries["closed"] == [[4, 4], [8, 8]]
    names = {name.rpartition("/")[2] for name in second.memory}
    assert names == {"trajectory", "hits", "gate", "columns"}
    assert all(name.startswith("tfr-net/") for name in second.memory)


def test_the_second_request_uses_the_memory_of_the_first() -> None:
    holder = Holder()
    first = holder.serve(METHOD, learnt(), 0)
    second = holder.serve(METHOD, first, 1)
    forgetful = holder.serve(METHOD, replace(first, memory={}), 1)
    assert any(not torch.equal(second.params[n], forgetful.params[n]) for n in first.params)
    before = METHOD.tracks(first)
    gates = {layer: track.gate for layer, track in before.items()}
    risks = channels.attributions(model(State(METHOD.undone(first))), texts(TASK.requests()[1]), gates)
    for layer, track in METHOD.tracks(second).items():
        expected = 0.7 * before[layer].trajectory + 0.3 * trajectory.ranks(risks[layer])
        assert torch.allclose(track.trajectory, expected, atol=1e-5)


def test_gates_are_closed_again_where_training_filled_their_columns() -> None:
    holder = Holder()
    first = holder.serve(METHOD, learnt(), 0)
    grown = {n: t + 0.01 if "down_proj" in n else t for n, t in first.params.items()}
    second = holder.serve(METHOD, replace(first, params=grown), 1)
    for layer, track in METHOD.tracks(first).items():
        assert not second.params[f"{layer}.weight"][:, track.closed].any()


def test_memory_of_another_model_is_refused() -> None:
    memory = Holder().serve(METHOD, learnt(), 0).memory
    missing = {n: t for n, t in memory.items() if "layers.0" not in n}
    narrow = {n: t if n.endswith("columns") else t[:-1] for n, t in memory.items()}
    for other in (missing, narrow):
        with pytest.raises(MethodError, match="memory is of a model with other channels"):
            METHOD.phases(replace(learnt(), memory=other), TASK)
    METHOD.phases(replace(learnt(), memory=memory), TASK)


def test_a_request_that_suppresses_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    holder, start = Holder(), learnt()
    with caplog.at_level(logging.WARNING):
        state = holder.serve(TFRNet(replace(LOOSE, first_budget=0.0)), start, 0)
    assert "this request suppressed nothing" in caplog.text
    assert all(torch.equal(state.params[n], start.params[n]) for n in start.params)
