"""Bytes as they are printed: parameters in float32, both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from letheon import tree
from letheon.adapter import Adapter
from letheon.client import Client
from letheon.data import Data
from letheon.methods.base import fedavg
from letheon.methods.lethe import Lethe
from letheon.middleware import Cost, DryRun, Excluding, Metered
from letheon.phase import Phase, State, drive
from letheon.request import Request
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.vision import Digits, MNIST5k
from letheon.training import Local

MODEL = 44_426 * 4
ADAPTER = 2_788 * 4
REQUEST = Request("class", label=1)


@pytest.fixture(scope="module")
def runtime() -> Iterator[InProcess]:
    """Three clients with four images each; each holds something of class 1 and something else."""
    task = MNIST5k()
    generator = torch.Generator().manual_seed(0)
    clients = []
    for k in range(3):
        images = torch.randn(4, 1, 28, 28, generator=generator)
        data = Data(images, torch.tensor([1, 1, 2, 3]), torch.arange(4 * k, 4 * k + 4))
        clients.append(Client(f"c{k}", data, task))
        clients[-1].admit(REQUEST)
    with InProcess(clients, workers=1) as found:
        yield found


def costs(runtime: InProcess, phases: list[Phase], start: State) -> dict[str, Cost]:
    meter = Metered(runtime)
    drive(phases, Excluding(meter, request=REQUEST.id), start, seed=0, observers=[meter.observe])
    return {cost.phase: cost for cost in meter.phases}


def test_a_client_round_of_lenet_is_355408_bytes(runtime: InProcess) -> None:
    found = costs(runtime, [Phase("restore", fedavg(Local()))], MNIST5k().init(0))["restore"]
    assert found.bytes_up == found.bytes_down == 3 * MODEL
    assert (found.bytes_up + found.bytes_down) / 3 == 355_408


def test_rounds_add_up(runtime: InProcess) -> None:
    found = costs(runtime, [Phase("restore", fedavg(Local()), 4)], MNIST5k().init(0))["restore"]
    assert (found.rounds, found.bytes_up + found.bytes_down) == (4, 4 * 3 * 355_408)
    assert found.samples == 4 * 3 * 2


def test_two_streams_in_one_message_send_the_model_and_the_adapter_once_and_return_two_updates(
    runtime: InProcess,
) -> None:
    method = Lethe(adapter=Adapter(rank=16, steps=2), rounds=2, restore_rounds=1, search=None, local=Local())
    start = MNIST5k().init(0)
    found = costs(runtime, list(method.phases(start, MNIST5k())), start)
    assert (found["amplify"].bytes_down, found["amplify"].bytes_up) == (3 * (MODEL + ADAPTER), 3 * ADAPTER)
    assert found["rectify"].rounds == 2
    assert found["rectify"].bytes_down == 2 * 3 * (MODEL + ADAPTER)
    assert found["rectify"].bytes_up == 2 * 3 * 2 * MODEL
    assert found["restore"].bytes_down == found["restore"].bytes_up == 3 * MODEL


def test_a_dry_run_has_the_same_bytes_samples_and_flops_as_the_run_itself(runtime: InProcess) -> None:
    task = runtime.clients[0].task
    sizes = {client.name: {"all": 4, "forget": 2, "retain": 2} for client in runtime.clients}
    start, phases = task.init(0), [Phase("restore", fedavg(Local(epochs=3)), 2)]
    real = costs(runtime, phases, start)["restore"]
    meter = Metered(DryRun(sizes, task))
    drive(phases, meter, start, seed=0, observers=[meter.observe])
    for name in ("rounds", "bytes_up", "bytes_down", "samples", "flops"):
        assert getattr(meter.phases[0], name) == getattr(real, name)
    assert real.flops == 3 * 563_280 * real.samples


def test_buffers_travel_too() -> None:
    task = Digits(norm=True)
    data = task.train().take(torch.arange(20))
    start = task.init(0)
    with InProcess([Client("c0", data, task)], workers=1) as runtime:
        meter = Metered(runtime)
        drive([Phase("train", fedavg(Local(), "all"))], meter, start, seed=0, observers=[meter.observe])
    whole = tree.n_bytes(start.params) + tree.n_bytes(start.buffers)
    assert whole == (2_410 + 64) * 4 + (32 + 32) * 4 + 8
    assert meter.phases[0].bytes_up == meter.phases[0].bytes_down == whole
