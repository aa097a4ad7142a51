"""Evaluation after every round, and the curve that it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from letheon.client import Client, finite
from letheon.data import Data
from letheon.phase import State
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.base import Task
from letheon.tasks.population import Population
from letheon.work import Work

CHUNK = 1000
"""Test samples of one evaluation job: small enough to keep all workers busy."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a model knows after a round.

    Attributes:
        phase: phase of the method, or ``start``.
        round: rounds done in the phase.
        kr: retention on the data to forget, per cent.
        mu: clean test accuracy over all classes, per cent.
        forget_loss: mean loss on the data to forget, in nats.
        forget_bits: packed outcomes on the data to forget, in hexadecimal; order of (client, sample).
        test_correct: right answers on the test set, of each class.
        attack: held-out triggered images that get the trigger's label; None without a trigger.
    """

    phase: str
    round: int
    kr: float
    mu: float
    forget_loss: float
    forget_bits: str
    test_correct: tuple[int, ...]
    attack: int | None


class Evaluator:
    """Scores a model on the data to forget, the test set and the triggered test set.

    It runs where the data lies anyway in a simulation; its cost is not the method's and is not metered.
    """

    def __init__(self, task: Task, population: Population, *, workers: int | None = None) -> None:
        self._targets = population.test.targets
        self._classes = task.classes
        forget = [
            Client(f"forget/{name}", covered, task)
            for name, data in sorted(population.clients.items())
            if len(covered := data.take(population.covered(name)))
        ]
        clients = [*forget, *_chunked("test", population.test, task)]
        if population.triggered_test is not None:
            clients += _chunked("triggered", population.triggered_test, task)
        self._runtime = InProcess(clients, workers=workers)

    def __call__(self, phase: str, round: int, state: State) -> Point:
        seen: dict[str, list[torch.Tensor]] = {}
        loss = weight = 0.0
        for reply in self._runtime.run(Work("evaluate", state.params, state.buffers, options={"detail": True})):
            kind = reply.client.split("/")[0]
            seen.setdefault(kind, []).append(reply.tensors["correct"])
            if kind == "forget":
                loss, weight = loss + reply.weight * reply.metrics["loss"], weight + reply.weight
        forget, test = torch.cat(seen["forget"]), torch.cat(seen["test"])
        by_class = torch.bincount(self._targets[test], minlength=self._classes)
        return Point(
            phase,
            round,
            kr=100.0 * float(forget.double().mean()),
            mu=100.0 * float(test.double().mean()),
            forget_loss=finite(loss / weight),
            forget_bits=np.packbits(forget.numpy()).tobytes().hex(),
            test_correct=tuple(by_class.tolist()),
            attack=int(torch.cat(seen["triggered"]).sum()) if "triggered" in seen else None,
        )

    def close(self) -> None:
        """End the workers."""
        self._runtime.close()


def _chunked(name: str, data: Data, task: Task) -> list[Client]:
    parts = torch.arange(len(data)).split(CHUNK)
    return [Client(f"{name}/{i:04d}", data.take(part), task) for i, part in enumerate(parts)]


class Curve:
    """The points of one stage: an observer that the journal carries along.

    Args:
        evaluate: gives the point of a state.
        heard: called with every new point, to show progress.
    """

    def __init__(
        self, evaluate: Callable[[str, int, State], Point], heard: Callable[[Point], None] | None = None
    ) -> None:
        self._evaluate = evaluate
        self._heard = heard
        self.points: list[Point] = []

    def observe(self, phase: str, done: int, state: State) -> None:
        """Evaluate the state and keep the point."""
        self.points.append(self._evaluate(phase, done, state))
        if self._heard:
            self._heard(self.points[-1])

    def dump(self) -> Any:
        """The points as plain data."""
        return [asdict(point) for point in self.points]

    def load(self, data: Any) -> None:
        """The inverse of ``dump``."""
        self.points = points_of(data)


def points_of(data: Any) -> list[Point]:
    """Points from plain data."""
    return [Point(**{**row, "test_correct": tuple(row["test_correct"])}) for row in data]


def bits_of(points: list[Point], n: int) -> NDArray[np.bool_]:
    """``(points, n)`` outcomes on the n samples to forget."""
    packed = np.array([list(bytes.fromhex(point.forget_bits)) for point in points], dtype=np.uint8)
    return np.unpackbits(packed.reshape(len(points), -1), axis=1, count=n).astype(bool)


def flattened(rows: Iterator[tuple[str, Point]]) -> list[dict[str, Any]]:
    """Points as rows of a table, for CSV: without the packed bits."""
    return [
        {"stage": stage} | {k: v for k, v in asdict(point).items() if k not in ("forget_bits", "test_correct")}
        for stage, point in rows
    ]
