"""TFR-Net opens closed channels again: what is judged, on which texts, and what is taken back."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from tfr_toys import COUNT, LAYERS, METHOD, TASK, Holder, learnt, model, texts
from torch import Tensor

from letheon.client import Client
from letheon.errors import MethodError
from letheon.methods.tfr import TFRNet
from letheon.methods.watch import held_out
from letheon.middleware import Excluding, Quorum
from letheon.phase import State, drive
from letheon.request import Request
from letheon.runtimes.alone import threads
from letheon.runtimes.inprocess import InProcess
from letheon.stage import Logs
from letheon.text import channels
from letheon.text.channels import Track
from letheon.text.descent import mean_loss
from letheon.text.trajectory import Recovery
from letheon.work import Work
from text_toys import Toys


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


def recovered(method: TFRNet, state: State, wanted: Sequence[int], logs: Logs | None = None) -> State:
    """The second phase alone, where these channels of the first layer are the candidates, in this order."""
    tracks = method.tracks(state)
    risk = {f"risk/{layer}": torch.full((COUNT,), 0.6) for layer in LAYERS}
    value = {f"value/{layer}": torch.ones(COUNT) for layer in LAYERS}
    for place, channel in enumerate(wanted):
        risk[f"risk/{LAYERS[0]}"][channel] = 0.01 * (place + 1)
    cool = {layer: replace(track, trajectory=torch.zeros(COUNT)) for layer, track in tracks.items()}
    memory = {f"tfr-net/{name}": tensor for name, tensor in channels.to_params(cool).items()}
    given = replace(state, memory=memory, scratch=risk | value)
    phase = method.phases(state, TASK)[1]
    found = phase.step(Holder().admitted(0), given, 0)
    if logs:
        logs.observe("recover", 1, found)
    return found


def shut(columns: Mapping[int, Tensor | None], strength: float = 1.0) -> State:
    """A model with these channels of the first layer closed; a column that is given takes the place of its own."""
    start = learnt()
    weight = start.params[f"{LAYERS[0]}.weight"].clone()
    for channel, column in columns.items():
        if column is not None:
            weight[:, channel] = column
    params = start.params | {f"{LAYERS[0]}.weight": weight}
    gates = {layer: torch.ones(COUNT) for layer in LAYERS}
    for channel in columns:
        gates[LAYERS[0]][channel] = 1 - strength
    tracks = {
        layer: Track(torch.zeros(COUNT), torch.zeros(COUNT, dtype=torch.int64), gate, torch.zeros(0, 0))
        for layer, gate in gates.items()
    }
    moved, kept = channels.gated(params, tracks)
    memory = {f"tfr-net/{name}": tensor for name, tensor in channels.to_params(kept).items()}
    return replace(start, params=moved, memory=memory)


HARM = torch.linspace(-9e3, 9e3, 32)
"""A column that ruins the model."""


def test_a_harmful_recovery_is_taken_back_to_the_last_bit_and_a_harmless_one_stays() -> None:
    state, logs = shut({3: HARM, 5: torch.full((32,), 1e-7), 6: torch.full((32,), -1e-7)}), Logs()
    found = recovered(METHOD, state, [5, 3, 6], logs)
    gate = METHOD.tracks(found)[LAYERS[0]].gate
    assert gate[[3, 5, 6]].tolist() == [0.0, 1.0, 1.0]
    weight = found.params[f"{LAYERS[0]}.weight"]
    assert torch.equal(weight[:, 3], torch.zeros(32))
    assert torch.equal(weight[:, 5], torch.full((32,), 1e-7)), "as it was"
    assert torch.equal(METHOD.tracks(found)[LAYERS[0]].columns, HARM[:, None])
    alone = recovered(METHOD, state, [3])
    assert all(torch.equal(alone.params[n], state.params[n]) for n in state.params)
    assert logs.entries["reopened"] == [[2, 0]]
    assert len(logs.entries["probes"][0]) == 1 + 5  # three together, two of them, then one each


def test_probes_are_of_the_right_texts_and_the_loop_is_the_slow_one() -> None:
    """One channel at a time, whether accepted by losses that are computed here, with all that was accepted before."""
    some = [8, 33, 80, 50, 5, 61, 70, 20]
    rules = Recovery(tolerance=0.001, forget_tolerance=0.002, block=1)
    method = replace(METHOD, recovery=rules)
    state, logs = shut(dict.fromkeys(some)), Logs()
    found = recovered(method, state, some, logs)
    retained = TASK.train().take(torch.arange(10))
    held = retained.take(held_out(TASK, retained.ids))
    assert 0 < len(held) < 3
    weight, whole = state.params[f"{LAYERS[0]}.weight"].clone(), method.undone(state)[f"{LAYERS[0]}.weight"]
    module = model(state)

    def looked() -> list[float]:
        module.get_parameter(f"{LAYERS[0]}.weight").data.copy_(weight)
        return [mean_loss(module, part) for part in (texts(TASK.requests()[0]), held)]

    looks = [looked()]
    kept = []
    for channel in some:
        weight[:, channel] = whole[:, channel]
        looks.append(looked())
        if looks[-1][1] <= 1.001 * looks[0][1] and looks[-1][0] >= 0.998 * looks[0][0]:
            kept.append(channel)
        else:
            weight[:, channel] = 0
    assert 0 < len(kept) < len(some), "some are accepted and some are not"
    opened = METHOD.tracks(found)[LAYERS[0]].gate
    assert [channel for channel in some if opened[channel] == 1] == kept
    assert logs.entries["probes"][0] == looks


def test_what_is_held_out_is_neither_drawn_nor_reported() -> None:
    """Tokens of the held-out text decide recoveries and nothing else."""
    retained = TASK.train().take(torch.arange(8))
    held = retained.take(held_out(TASK, retained.ids)).ids
    assert not set(held.tolist()) & {0, 1, 2}
    replies = []
    for spoilt in (torch.tensor([-1]), held, torch.tensor([0])):
        holder = Holder()
        holder.client.data.targets[torch.isin(holder.client.data.ids, spoilt), 3:] = 7
        work = Work("attribute", learnt().params, part="forget", options={"texts": 128})
        attributed = next(iter(holder.admitted(0).run(work))).tensors
        probed = next(iter(holder.admitted(0).run(replace(work, kind="probe")))).metrics
        replies.append((attributed, probed["retained"]))
    assert all(torch.equal(replies[0][0][n], replies[1][0][n]) for n in replies[0][0])
    assert any(not torch.equal(replies[0][0][n], replies[2][0][n]) for n in replies[0][0])
    assert replies[0][1] != replies[1][1]
    assert replies[0][1] == replies[2][1]


def test_where_nothing_can_be_held_out_nothing_is_opened_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    holder = Holder(Toys())
    with caplog.at_level(logging.WARNING):
        state = holder.serve(METHOD, learnt(), 0)
    assert "no retained text can be held out" in caplog.text
    assert state.memory
    assert "reopened" not in holder.logs.entries


def test_two_holders_of_one_request_are_refused() -> None:
    data, ids, start = TASK.train(), torch.tensor(TASK.requests()[0]), learnt()
    clients = [Client(f"c{side}", data.take(data.ids % 2 == side), TASK) for side in (0, 1)]
    request = Request("samples", samples=tuple(ids.tolist()))
    with InProcess(clients, workers=1) as runtime:
        for client in clients:
            client.admit(request)
        with pytest.raises(MethodError, match="2 clients hold data of the request"):
            drive(METHOD.phases(start, TASK), Excluding(Quorum(runtime), request=request.id), start, seed=0)
