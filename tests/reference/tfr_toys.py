"""A model that knows twelve people by heart, and the holder who asks TFR-Net to forget some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from letheon.client import Client, load
from letheon.methods.base import Method, fedavg
from letheon.methods.tfr import TFRNet
from letheon.middleware import Excluding, Quorum
from letheon.phase import Phase, State, drive
from letheon.request import Request
from letheon.runtimes.alone import Alone
from letheon.stage import Logs
from letheon.tasks.text import Questions
from letheon.text.trajectory import Suppression
from letheon.training import Local
from text_toys import Toys, pair

LAYERS = ("lm.model.layers.0.mlp.down_proj", "lm.model.layers.1.mlp.down_proj")
COUNT = 88


@dataclass(frozen=True)
class Blind(Toys):
    """Toys of which only the first three people are asked about."""

    def questions(self) -> Mapping[str, Questions]:
        return {"retain": Questions({str(i): pair(i) for i in range(3)})}


TASK = Blind()
LOOSE = Suppression(hot=0.7, level=0.7, first_budget=0.05, budget=0.06, total=0.1)
METHOD = TFRNet(LOOSE)


@lru_cache
def learnt() -> State:
    """All twelve by heart."""
    client, local = Client("holder", TASK.train(), TASK), Local(optimizer="adamw", lr=3e-3, batch_size=4, epochs=40)
    return drive([Phase("train", fedavg(local, "all"))], Alone(client, TASK.prototype()), TASK.init(0), seed=0)


def model(state: State) -> nn.Module:
    module = TASK.prototype()
    load(module, state.params, state.buffers)
    return module.eval()


def texts(ids: Sequence[int]) -> Any:
    return TASK.train().take(torch.tensor(ids))


class Holder:
    """Serves requests one after another."""

    def __init__(self, task: Toys = TASK) -> None:
        self.task, self.client, self.logs = task, Client("holder", task.train(), task), Logs()

    def admitted(self, number: int) -> Excluding:
        request = Request("samples", samples=tuple(self.task.requests()[number]))
        if request.id not in self.client.requests:
            self.client.admit(request)
        return Excluding(Quorum(Alone(self.client, self.task.prototype())), request=request.id)

    def serve(self, method: Method, state: State, number: int) -> State:
        phases = method.phases(state, self.task)
        return drive(phases, self.admitted(number), state, seed=number, observers=[self.logs.observe])
