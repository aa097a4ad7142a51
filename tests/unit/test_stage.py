"""Stages: driven to the end, kept, found again, and resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from letheon import tree
from letheon.curve import Curve, Point
from letheon.errors import JournalError
from letheon.files import read_sealed, write, write_sealed
from letheon.journal import save_state
from letheon.middleware import Metered, Quorum
from letheon.phase import Phase, State
from letheon.stage import Outcome, Stage, finished
from letheon.work import Federation, Reply, Work, average

START = State({"z": torch.zeros(2), "a": torch.zeros(1)}, {"n.mean": torch.zeros(1)})


class Growing:
    """One client that replies ones; from call ``nan_from`` on its replies are not finite."""

    def __init__(self, nan_from: int = 10**9) -> None:
        self.calls = 0
        self._nan_from = nan_from

    def run(self, *works: Work) -> Iterator[Reply]:
        self.calls += 1
        value = 1.0 if self.calls < self._nan_from else float("nan")
        for index, work in enumerate(works):
            update = {name: torch.full_like(tensor, value) for name, tensor in work.params.items()}
            yield Reply(index, "c0", update, work.buffers, weight=1.0, metrics={"samples": 3.0})


def step(federation: Federation, state: State, t: int) -> State:
    mean = average(federation.run(Work("train", state.params, state.buffers, "retain")))
    return State(state.moved(mean.tensors).params, mean.buffers, {"kept": torch.ones(1)}, {"dropped": torch.ones(1)})


PHASES = [Phase("one", step, 2), Phase("two", step, 2)]


def point(phase: str, done: int, state: State) -> Point:
    return Point(phase, done, float(state.params["z"][0]), 50.0, 0.1, "ff", (1, 2), None)


class Place:
    """A stage's folder, and runs in it as separate processes would start them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(
        self,
        federation: Growing | None = None,
        *,
        owner: str = "me",
        phases: Sequence[Phase] = PHASES,
        evaluate: Callable[[str, int, State], Point] = point,
    ) -> Outcome:
        meter = Metered(federation or Growing())
        quorum = Quorum(meter)
        stage = Stage(self.folder, owner=owner, meter=meter, quorum=quorum, curve=Curve(evaluate))
        return stage.run(phases, quorum, START, seed=0)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "stage")


def places(outcome: Outcome) -> list[tuple[str, int]]:
    return [(p.phase, p.round) for p in outcome.points]


WHOLE = [("start", 0), ("one", 1), ("one", 2), ("two", 1), ("two", 2)]


def stopping(at: int) -> Callable[[str, int, State], Point]:
    """Evaluates, and dies in the evaluation number ``at``."""
    count = 0

    def evaluate(phase: str, done: int, state: State) -> Point:
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        return point(phase, done, state)

    return evaluate


def same(a: Outcome, b: Outcome) -> bool:
    parts = ("params", "buffers", "memory", "scratch")
    orders = [[list(getattr(o.state, part)) for part in parts] for o in (a, b)]
    digests = [[tree.digest(getattr(o.state, part)) for part in parts] for o in (a, b)]
    costs = [[(c.phase, c.rounds, c.bytes_up, c.samples) for c in o.costs] for o in (a, b)]
    plain = [(o.points, o.events, o.logs, o.diverged) for o in (a, b)]
    return all(x == y for x, y in (orders, digests, costs, plain))


def test_a_stage_is_found_again_as_it_was_returned(place: Place) -> None:
    outcome = place.run()
    assert places(outcome) == WHOLE
    assert outcome.state.params["z"].tolist() == [4.0, 4.0]
    assert (list(outcome.state.memory), outcome.state.scratch) == (["kept"], {})
    found = finished(place.folder, "me")
    assert found is not None
    assert same(found, outcome)
    assert [cost.seconds for cost in found.costs] == [cost.seconds for cost in outcome.costs]
    assert sorted(path.name for path in place.folder.rglob("*") if path.is_file()) == [
        "model.safetensors",
        "result.json",
    ]


@pytest.mark.parametrize("at", range(1, 6))
def test_a_stage_that_died_while_evaluating_ends_like_an_unbroken_one(place: Place, tmp_path: Path, at: int) -> None:
    expected = Place(tmp_path / "unbroken").run()
    with pytest.raises(KeyboardInterrupt):
        place.run(evaluate=stopping(at))
    assert finished(place.folder, "me") is None
    federation = Growing()
    assert same(place.run(federation), expected)
    assert federation.calls == (4 if at == 1 else 6 - at)  # the round that was not evaluated is trained again


def test_a_stage_of_another_owner_is_not_taken_for_ours(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.run(owner="other")
    assert finished(place.folder, "me") is None
    assert "belongs to other, its model to other, not to me; the stage has to be run again" in caplog.text
    assert finished(place.folder.parent / "nothing", "me") is None


def test_another_model_of_the_same_owner_is_noticed(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.run()
    write(place.folder / "model.safetensors", save_state(START, {"owner": "me"}))
    assert finished(place.folder, "me") is None
    assert "not the model that result.json speaks of" in caplog.text


def test_a_result_of_another_version_is_not_read(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.run()
    result = read_sealed(place.folder / "result.json")
    write_sealed(place.folder / "result.json", {k: v for k, v in result.items() if k != "logs"})
    assert finished(place.folder, "me") is None
    assert "another version of Letheon" in caplog.text


def test_a_journal_in_a_phase_that_is_not_there_any_more_is_refused(place: Place) -> None:
    with pytest.raises(KeyboardInterrupt):
        place.run(evaluate=stopping(4))
    renamed = [Phase("first", step, 2), Phase("two", step, 2)]
    with pytest.raises(JournalError, match=r"in phase 'one', which this version.*remove the folder"):
        place.run(phases=renamed)


@pytest.mark.parametrize("good", [0, 1, 3])
def test_a_stage_that_diverges_keeps_the_last_good_model_and_says_why(place: Place, good: int) -> None:
    outcome = place.run(Growing(nan_from=good + 1))
    assert "not finite" in outcome.diverged
    assert outcome.state.params["z"].tolist() == [good, good]
    assert outcome.state.scratch == {}
    assert places(outcome) == WHOLE[: good + 1]
    assert [event["client"] for event in outcome.events] == ["c0"]
    found = finished(place.folder, "me")
    assert found is not None
    assert same(found, outcome)


def test_a_stage_that_diverges_after_it_was_resumed_ends_as_without_the_break(place: Place, tmp_path: Path) -> None:
    expected = Place(tmp_path / "unbroken").run(Growing(nan_from=3))
    with pytest.raises(KeyboardInterrupt):
        place.run(evaluate=stopping(4))  # two rounds are saved
    assert same(place.run(Growing(nan_from=1)), expected)


def test_a_stage_without_phases_is_its_start(place: Place) -> None:
    outcome = place.run(phases=[])
    assert places(outcome) == [("start", 0)]
    assert tree.digest(outcome.state.params) == tree.digest(START.params)


def test_evaluation_is_not_part_of_the_time_of_a_round(place: Place) -> None:
    def slow(phase: str, done: int, state: State) -> Point:
        time.sleep(0.05)
        return point(phase, done, state)

    outcome = place.run(evaluate=slow)
    assert sum(cost.seconds for cost in outcome.costs) < 0.1


def test_what_a_result_holds_is_plain_and_sorted(place: Place) -> None:
    outcome = place.run()
    text = (place.folder / "result.json").read_text()
    assert text.index('"costs"') < text.index('"curve"') < text.index('"owner"')
    assert read_sealed(place.folder / "result.json")["digest"] == tree.digest(
        outcome.state.params | outcome.state.buffers
    )
