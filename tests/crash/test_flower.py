"""Over Flower: a ServerApp that is killed, or a node that fails in the middle of unlearning, costs a round at most."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Error, Message

from letheon import pipeline
from letheon.errors import RoundError
from letheon.experiment import Experiment
from letheon.journal import DiskJournal
from letheon.life import owners
from letheon.pipeline import Run
from letheon.runtimes.flower import Flower
from letheon.runtimes.mail import parcel_in
from letheon.runtimes.records import unpack_order
from letheon.runtimes.simulated import simulated
from letheon.runtimes.terms import Terms
from letheon.testing.grid import Answer, Fault, MemoryGrid, apps_of

Findings = dict[str, Any]
Find = Callable[[Run], Findings]
Start = Callable[[Callable[[], object]], int]

KILLED = -signal.SIGKILL
UNAVAILABLE = 5


def runtime(experiment: Experiment, folder: Path, faults: dict[str, Fault] | None = None) -> Flower:
    """The experiment's clients as nodes; their exclusion tables lie in ``folder`` and outlive everything."""
    names = list(experiment.populate().clients)
    sites = [simulated(experiment, name, folder) for name in names]
    nodes = {10 + names.index(name): fault for name, fault in (faults or {}).items()}
    grid = MemoryGrid(apps_of(sites), faults=nodes)
    return Flower(grid, names, terms=Terms(deadline_s=2.0, gather_s=1, poll_s=0.01))


def forgetting(experiment: Experiment) -> str:
    return str(experiment.populate().request.client)


def when(phase_has: Callable[[set[str]], bool], fault: Fault) -> Fault:
    """The fault, but only in messages whose works ask for such parts."""

    def conditional(message: Message, answer: Answer) -> Message | None:
        if not message.metadata.message_type.startswith("train"):
            return answer(message)
        parts = {work.part for work in unpack_order(parcel_in(message.content)).works.values()}
        return fault(message, answer) if phase_has(parts) else answer(message)

    return conditional


def in_rectify(parts: set[str]) -> bool:
    return parts == {"forget", "retain"}


def dying(*, at: int) -> Fault:
    """Kills the whole process, server and all, when a node has done the work of message number ``at``."""
    seen = 0

    def fault(message: Message, answer: Answer) -> Message:
        nonlocal seen
        reply = answer(message)
        seen += message.metadata.message_type.startswith("train")
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    return fault


@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_serverapp_that_is_killed_within_rounds_ends_as_if_nothing_had_happened(
    *, experiment: Experiment, tmp_path: Path, expected: Findings, findings: Find, start: Start, node: int
) -> None:
    name, deaths = list(experiment.populate().clients)[node], 0

    def life() -> None:
        # Dies when its first, second or third client has answered. Later each time: a round may take several messages.
        over = runtime(experiment, tmp_path, {name: dying(at=2 + deaths)})
        pipeline.run(experiment, tmp_path / "run", resume=True, workers=1, runtime=over)

    while (status := os.waitstatus_to_exitcode(os.waitpid(start(life), 0)[1])) == KILLED:
        deaths += 1
    assert status == 0
    assert deaths >= 3
    assert findings(pipeline.load(tmp_path / "run")) == expected


def lost(message: Message, answer: Answer) -> None:
    return None


def gone(message: Message, answer: Answer) -> Message:
    return Message(Error(UNAVAILABLE, "node is gone"), reply_to=message)


def raising(message: Message, answer: Answer) -> Message:
    return Message(Error(2, "MemoryError"), reply_to=message)


@pytest.mark.parametrize(
    ("fault", "reason"), [(lost, "no reply within"), (gone, "node is gone"), (raising, "MemoryError")]
)
def test_a_round_without_its_forget_node_is_never_applied_and_is_made_up_for(
    *, experiment: Experiment, tmp_path: Path, expected: Findings, findings: Find, fault: Fault, reason: str
) -> None:
    folder, name = tmp_path / "run", forgetting(experiment)
    over = runtime(experiment, tmp_path, {name: when(in_rectify, fault)})
    with pytest.raises(RoundError) as raised:
        pipeline.run(experiment, folder, workers=1, runtime=over)
    assert f"0 usable replies to 'train' on 'forget', 1 needed ({name}: " in str(raised.value)
    assert reason in str(raised.value)
    assert saved(experiment, folder) == ("amplify", 1)
    run = pipeline.run(experiment, folder, resume=True, workers=1, runtime=runtime(experiment, tmp_path))
    assert findings(run) == expected


def saved(experiment: Experiment, folder: Path) -> tuple[str, int]:
    """The last round in the journal of Lethe's unlearning."""
    (stage,) = folder.glob("stages/lethe.unlearn-*")
    kept = DiskJournal(stage / "journal", owner=owners(experiment)["lethe.unlearn"]).load()
    assert kept is not None
    return kept[:2]


@pytest.mark.parametrize("fault", [lost, gone, raising])
def test_a_round_goes_on_without_a_retain_node_and_says_so(
    *, experiment: Experiment, tmp_path: Path, fault: Fault
) -> None:
    name = next(n for n in experiment.populate().clients if n != forgetting(experiment))
    faults = {name: when(in_rectify, fault)}
    run = pipeline.run(experiment, tmp_path / "run", workers=1, runtime=runtime(experiment, tmp_path, faults))
    events = run.unlearned["lethe"].events
    assert {(e["client"], e["phase"], e["round"]) for e in events} == {(name, "rectify", 1), (name, "rectify", 2)}
    assert run.diverged("lethe") == ""


@pytest.fixture(autouse=True)
def _no_zombies() -> Iterator[None]:
    yield
    with suppress(ChildProcessError):
        assert os.waitpid(-1, os.WNOHANG) == (0, 0)
