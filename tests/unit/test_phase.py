"""The loop that drives phases, and its seeds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from letheon.phase import Phase, Seeded, State, drive
from letheon.work import Federation, Reply, Work


class Listening:
    """A federation that keeps the seeds it was asked with and answers nothing."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def run(self, *works: Work) -> Iterator[Reply]:
        self.seeds += [work.seed for work in works]
        return iter(())


class Memory:
    """A journal in memory."""

    def __init__(self, saved: tuple[str, int, State] | None = None) -> None:
        self.saved = saved
        self.places: list[tuple[str, int]] = []

    def load(self) -> tuple[str, int, State] | None:
        return self.saved

    def save(self, phase: str, done: int, state: State) -> None:
        self.saved = phase, done, state
        self.places.append((phase, done))


START = State({"w": torch.zeros(1)})


def counted(federation: Federation, state: State, t: int) -> State:
    """A step that asks twice and adds 1 to the model and to its scratch."""
    list(federation.run(Work("a", state.params), Work("b", state.params)))
    list(federation.run(Work("c", state.params)))
    scratch = {"seen": state.scratch.get("seen", torch.zeros(1)) + 1}
    return State(state.moved({"w": torch.ones(1)}).params, scratch=scratch)


PHASES = [Phase("one", counted, 2), Phase("none", counted, 0), Phase("two", counted, 3)]


def test_phases_are_driven_in_order_and_scratch_is_dropped_at_the_end() -> None:
    seen: list[tuple[str, int, float]] = []

    def look(phase: str, done: int, state: State) -> None:
        seen.append((phase, done, state.params["w"].item()))

    state = drive(PHASES, Listening(), START, seed=0, observers=[look])
    assert seen == [("one", 1, 1.0), ("one", 2, 2.0), ("two", 1, 3.0), ("two", 2, 4.0), ("two", 3, 5.0)]
    assert state.scratch == {}
    assert START.params["w"].item() == 0.0


@pytest.mark.parametrize("rounds", range(1, 6))
def test_a_run_resumed_after_any_round_sees_the_seeds_and_reaches_the_state_of_an_unbroken_one(rounds: int) -> None:
    whole, journal = Listening(), Memory()
    end = drive(PHASES, whole, START, seed=3, journal=journal)
    places = journal.places
    cut = Memory()

    def stop(phase: str, done: int, state: State) -> None:
        if (phase, done) == places[rounds - 1]:
            cut.save(phase, done, state)
            raise KeyboardInterrupt

    first, second = Listening(), Listening()
    with pytest.raises(KeyboardInterrupt):
        drive(PHASES, first, START, seed=3, observers=[stop])
    resumed = drive(PHASES, second, START, seed=3, journal=cut)
    assert first.seeds + second.seeds == whole.seeds
    assert resumed.params["w"].item() == end.params["w"].item() == 5.0


def test_a_journal_is_saved_after_every_round_and_after_all_who_look() -> None:
    order: list[str] = []

    class Late(Memory):
        def save(self, phase: str, done: int, state: State) -> None:
            order.append("journal")

    drive(PHASES[:1], Listening(), START, seed=0, journal=Late(), observers=[lambda *_: order.append("observer")])
    assert order == ["observer", "journal"] * 2


def test_seeds_differ_between_runs_phases_rounds_and_calls_but_not_between_works_of_one_call() -> None:
    federation = Listening()
    drive(PHASES, federation, START, seed=0)
    drive(PHASES, federation, START, seed=1)
    together, apart = federation.seeds[0::3] + federation.seeds[2::3], federation.seeds[1::3]
    assert federation.seeds[0::3] == apart
    assert len(set(together)) == len(together) == 20
    assert all(0 <= seed < 2**63 for seed in together)


def test_a_phase_ends_when_its_condition_holds_but_not_before_its_first_round() -> None:
    places = Memory()
    phases = [
        Phase("until", counted, 10, until=lambda state: state.params["w"].item() >= 3.0),
        Phase("at once", counted, 10, until=lambda state: True),
    ]
    drive(phases, Listening(), START, seed=0, journal=places)
    assert places.places == [("until", 1), ("until", 2), ("until", 3), ("at once", 1)]


def test_phases_of_the_same_name_are_refused() -> None:
    with pytest.raises(ValueError, match="names must differ"):
        drive([PHASES[0], PHASES[0]], Listening(), START, seed=0)


def test_seeded_counts_the_calls_of_its_own_round_only() -> None:
    seeds = []
    for _ in range(2):
        federation = Listening()
        list(Seeded(federation, seed=1, phase="x", round=2).run(Work("a", {})))
        seeds += federation.seeds
    assert seeds[0] == seeds[1]
