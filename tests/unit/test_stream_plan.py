"""The price of a stream, held against what a run of it cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from letheon.methods.ascent import GA
from letheon.methods.descent import Cop
from letheon.methods.preference import NPO
from letheon.methods.retrain import Retrain
from letheon.plan import PhasePlan
from letheon.report import streams
from letheon.stream.experiment import Stream
from letheon.stream.life import StreamRun, run
from letheon.stream_plan import plan
from letheon.text import exam
from letheon.text.descent import Recipe
from letheon.training import Local
from text_toys import Toys

TUNING = Recipe(lr=1e-3, epochs=3, batch_size=2)


class Apart(Toys):
    """As RWKU does: two people whom Origin and Retrain learn, and nobody else."""

    def withheld(self) -> tuple[int, ...]:
        return (0, 1)


STREAM = Stream(
    Apart(count=3),
    NPO(tuning=TUNING, cop=Cop(rank=2, rank_total=3)),
    (GA(tuning=TUNING, retain="nll"), Retrain()),
    local=Local(optimizer="adamw", lr=3e-3, batch_size=4, epochs=2),
    train_rounds=2,
    continue_rounds=1,
    tokens=6,
)

FIELDS = ("rounds", "samples", "flops")


class Done:
    """A finished run with what its examinations read and wrote."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.read, self.asked = folder, list[int](), list[int]()
        read, answers = exam.read, exam.answers

        def reading(module: Any, texts: Any) -> Any:
            self.read.append(len(texts))
            return read(module, texts)

        def answering(module: Any, encoder: Any, questions: Any, *, new: int) -> Any:
            self.asked.append(len(questions))
            return answers(module, encoder, questions, new=new)

        monkeypatch.setattr(exam, "read", reading)
        monkeypatch.setattr(exam, "answers", answering)
        self.run: StreamRun = run(STREAM, folder)
        streams.write_artefacts(self.run)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return Done(tmp_path_factory.mktemp("stream"), monkeypatch)


@pytest.fixture(scope="module")
def priced() -> dict[str, dict[str, PhasePlan]]:
    return {stage.stage: {phase.phase: phase for phase in stage.phases} for stage in plan(STREAM).stages}


def test_counts_are_those_of_the_run(done: Done, priced: dict[str, dict[str, PhasePlan]]) -> None:
    outcomes = {"origin": [done.run.origin]}
    for label, served in done.run.served.items():
        assert served.continued is not None
        outcomes |= {f"{label}.unlearn": list(served.outcomes), f"{label}.continue": [served.continued]}
    assert priced.keys() == outcomes.keys()
    for stage, found in outcomes.items():
        costs = [cost for outcome in found for cost in outcome.costs]
        planned = {name: phase for name, phase in priced[stage].items() if name != "examine"}
        assert {cost.phase for cost in costs} == planned.keys()
        for name, phase in planned.items():
            own = [cost for cost in costs if cost.phase == name]
            seen = [sum(getattr(cost, field) for cost in own) for field in FIELDS]
            assert phase.is_exact
            assert [getattr(phase, field) for field in FIELDS] == pytest.approx(seen, rel=1e-12), (stage, name)


def test_every_text_that_an_examination_reads_is_counted(done: Done, priced: dict[str, dict[str, PhasePlan]]) -> None:
    assert sum(done.read) == sum(phases["examine"].samples for phases in priced.values())
    assert len(done.asked) == 1 + (1 + 1) + 2 * (3 + 1)


def test_the_disk_is_what_a_run_takes(done: Done) -> None:
    found = sum(path.stat().st_size for path in done.folder.rglob("*") if path.is_file())
    expected = plan(STREAM).disk_bytes
    assert 0.75 * expected < found < 1.25 * expected


def test_a_descent_that_may_stop_early_is_priced_as_the_longest() -> None:
    found = plan(replace(STREAM, method=GA(tuning=replace(TUNING, ceiling=9.0)), compare=()))
    assert not found.stages[1].phases[0].is_exact


def test_more_tokens_and_requests_cost_more() -> None:
    found, longer = plan(STREAM), plan(replace(STREAM, tokens=12))
    assert longer.total.flops > found.total.flops
    assert longer.digest != found.digest
    assert found.total.seconds > 0
