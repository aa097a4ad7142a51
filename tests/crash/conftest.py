"""A run of under a second that has every stage and phase, and what must be equal between two of them."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from letheon import pipeline, tree
from letheon.experiment import Experiment
from letheon.methods.lethe import Lethe
from letheon.pipeline import Run
from letheon.results import Results
from letheon.stage import Outcome
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.training import Local

Findings = dict[str, Any]


def small(task: Digits | None = None) -> Experiment:
    return Experiment(
        task or Digits(norm=True),
        Lethe(rounds=2, restore_rounds=1),
        clients=3,
        request=Target(min_forget=20, trigger=Trigger(size=2, margin=0)),
        local=Local(lr=0.05),
        train_rounds=2,
        continue_rounds=2,
    )


def findings_of(run: Run) -> Findings:
    """All that a run found, but for wall times. Lists of names, so that a changed order shows."""
    stages = {"origin": run.origin}
    stages |= {f"{label}.unlearn": outcome for label, outcome in run.unlearned.items()}
    stages |= {f"{label}.continue": outcome for label, outcome in run.continued.items()}
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in Results(run).rows()]
    return {"rows": rows, **{name: _outcome(outcome) for name, outcome in stages.items()}}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    parts = {part: getattr(outcome.state, part) for part in ("params", "buffers", "memory", "scratch")}
    return {
        "names": {part: list(tensors) for part, tensors in parts.items()},
        "digests": {part: tree.digest(tensors) for part, tensors in parts.items()},
        "curve": [asdict(point) for point in outcome.points],
        "costs": [asdict(cost) | {"seconds": None} for cost in outcome.costs],
        "events": outcome.events,
        "logs": outcome.logs,
        "diverged": outcome.diverged,
    }


def _start(work: Callable[[], object]) -> int:
    """The pid of a forked process that does ``work`` and ends with status 0, or 1 if it raised."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        torch.set_num_threads(1)  # the parent's OpenMP threads did not come along
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Starts a child process; those that a failing test leaves behind are killed."""
    children: list[int] = []

    def started(work: Callable[[], object]) -> int:
        children.append(_start(work))
        return children[-1]

    yield started
    for pid in children:
        with suppress(ChildProcessError):  # waited for, as it should be
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@pytest.fixture(scope="session")
def experiment() -> Experiment:
    return small()


@pytest.fixture(scope="session")
def unbroken(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted. Copy it before touching it."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    pipeline.run(experiment, folder)
    return folder


@pytest.fixture(scope="session")
def findings() -> Callable[[Run], Findings]:
    return findings_of


@pytest.fixture(scope="session")
def expected(unbroken: Path) -> Findings:
    return findings_of(pipeline.load(unbroken))
