"""How fast this machine is with a task: timed, not looked up."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from letheon.curve import Evaluator
from letheon.experiment import Experiment
from letheon.files import write
from letheon.journal import save_state
from letheon.tasks.base import Task
from letheon.tasks.population import Population
from letheon.training import Local, train

SERIAL = 0.2
"""Share of a round that further workers do not shorten: two workers were measured at 0.6 of the time of one."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast this machine is with this task.

    Attributes:
        flop_seconds: seconds for each FLOP of training, in one thread.
        round_seconds: what a round costs beside the clients' work: evaluation, journal.
        factor: a round's training time with the workers at hand, in times of one worker.
    """

    flop_seconds: float
    round_seconds: float
    factor: float

    def seconds(self, flops: float, rounds: int) -> float:
        """Estimate for ``rounds`` rounds with ``flops`` FLOPs in all."""
        return self.flop_seconds * flops * self.factor + self.round_seconds * rounds


def calibrate(experiment: Experiment, population: Population, workers: int) -> Pace:
    """Time what a run does most, each for a fraction of a second."""
    task, request = experiment.task, population.request
    sizes = [len(request.select(name, data, "retain")) for name, data in population.clients.items()]
    factor = max(SERIAL + (1 - SERIAL) / workers, max(sizes) / sum(sizes))  # never shorter than the longest client
    flop_seconds = _step_seconds(experiment, population) / max(1.0, _step_flops(experiment, population))
    beside = _evaluation_seconds(task, population, workers) + _journal_seconds(task)
    return Pace(flop_seconds, beside, factor)


def _batch_size(experiment: Experiment, population: Population) -> int:
    return min(experiment.local.batch_size, max(map(len, population.clients.values())))


def _step_flops(experiment: Experiment, population: Population) -> float:
    return 3.0 * experiment.task.flops * _batch_size(experiment, population)


def _step_seconds(experiment: Experiment, population: Population) -> float:
    """One step of local training with the experiment's recipe."""
    task, steps = experiment.task, 10
    size = _batch_size(experiment, population)
    fields = experiment.local.options(0) | {"steps": steps, "batch_size": size}
    recipe = Local.from_options(fields)
    data = max(population.clients.values(), key=len)
    data = data.take(torch.arange(min(len(data), size * steps)))
    with torch.random.fork_rng(devices=[]):
        module = task.model()
        return timed(lambda: train(module, task.loss, data, recipe, seed=0), 0.5) / steps


def _evaluation_seconds(task: Task, population: Population, workers: int) -> float:
    """The evaluation that follows every round, as a run does it."""
    evaluate, state = Evaluator(task, population, workers=workers), task.init(0)
    try:
        return timed(lambda: evaluate("calibration", 0, state), 0.2)
    finally:
        evaluate.close()


def _journal_seconds(task: Task) -> float:
    """One journal entry, written and synced like a real one."""
    content = save_state(task.init(0), {})
    with tempfile.TemporaryDirectory() as folder:
        return timed(lambda: write(Path(folder) / "round", content), 0.1)


def timed(act: Callable[[], object], budget: float) -> float:
    """Median seconds of ``act`` over as many calls as fit into ``budget`` seconds; one goes before, to warm up."""
    act()
    times: list[float] = []
    while sum(times) < budget:
        started = time.perf_counter()
        act()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
