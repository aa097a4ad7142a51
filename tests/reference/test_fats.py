"""FATS: its rounds against slow loops, what it draws anew, and why that is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from of_three import Small
from torch import Tensor
from torch.nn import functional as F

from letheon import tree
from letheon.client import Client
from letheon.data import Data
from letheon.errors import ConfigError, MethodError, RoundError
from letheon.methods.draws import batches_of, cohort_of
from letheon.methods.fats import FATS, Entry, before, rounds_in
from letheon.middleware import Excluding, Quorum
from letheon.phase import State, drive, seed_of
from letheon.request import Request
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.base import buffers_of
from letheon.training import Local
from letheon.tree import Params
from letheon.work import BufferMean, Federation, Reply, Work

LOCAL = Local(lr=0.1, momentum=0.9, batch_size=32, first_round=7, decay=0.5)
FLAT = replace(LOCAL, decay=1.0)


def fats(seed: int, *, cohort: int = 3, rounds: int = 3, local: Local = FLAT) -> FATS:
    return FATS(cohort=cohort, steps=2, batch_size=4, rounds=rounds, seed=seed, local=local)


def members(small: Small, *requests: Request) -> list[Client]:
    found = [Client(name, data, small.task) for name, data in small.clients.items()]
    for member in found:
        for request in requests:
            member.admit(request)
    return found


def trained(small: Small, method: FATS) -> State:
    """FATS' own Origin."""
    with InProcess(members(small), workers=1) as runtime:
        return drive(method.origin(small.task, LOCAL, 99), Quorum(runtime), small.start, seed=1)


def unlearned(small: Small, method: FATS, origin: State, *requests: Request) -> State:
    """After the last of the requests; the ones before it were admitted earlier."""
    with InProcess(members(small, *requests), workers=1) as runtime:
        federation = Excluding(Quorum(runtime), request=requests[-1].id)
        return drive(method.phases(origin, small.task), federation, origin, seed=2)


def seed_where(first: int) -> int:
    """A seed for which client b is drawn in round ``first`` of three and not before, and not alone; 3: never."""
    for seed in range(1000):
        cohorts = [cohort_of("abc", 3, seed_of(f"{seed}|fats|{t}")) for t in range(3)]
        found = next((t for t in range(3) if "b" in cohorts[t]), 3)
        if found == first and (first == 3 or len(set(cohorts[first])) > 1):
            return seed
    raise AssertionError("no such seed")


def slow_round(small: Small, entry: Entry, data: dict[str, Data], lr: float) -> tuple[Params, Params]:
    """Every participation by torch.optim, and their plain mean."""
    params = {n.removeprefix("params/"): t for n, t in entry.model.items() if n.startswith("params/")}
    buffers = {n.removeprefix("buffers/"): t for n, t in entry.model.items() if n.startswith("buffers/")}
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}
    pooled, count = BufferMean(), entry.drawn.total()
    for client, times in sorted(entry.drawn.items()):
        each = BufferMean()
        for slot in range(times):
            module = small.task.model()
            module.load_state_dict({**params, **buffers})
            optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9)
            generator = torch.Generator().manual_seed(seed_of(f"{entry.seed}|{client}|{slot}"))
            for _ in range(2):
                index = torch.randperm(len(data[client]), generator=generator)[:4]
                optimizer.zero_grad()
                F.cross_entropy(module(data[client].inputs[index]), data[client].targets[index]).backward()
                optimizer.step()
            for name, p in module.named_parameters():
                total[name] += p.detach().double() / count
            each.push(buffers_of(module), 1.0)
        pooled.push(each.mean(), float(times))
    return {name: t.float() for name, t in total.items()}, pooled.mean()


def assert_model(small: Small, state: State, t: int, data: dict[str, Data], lr: float = 0.1) -> None:
    """Round ``t``, done again by hand from what is kept of it, leads to what came next."""
    params, buffers = slow_round(small, Entry.at(state.memory, t), data, lr)
    rounds = rounds_in(state.memory)
    found = Entry.at(state.memory, t + 1).begun(state) if t + 1 < rounds else state
    for name, wanted in (params | buffers).items():
        torch.testing.assert_close((found.params | found.buffers)[name], wanted, rtol=1e-4, atol=2e-5)


def without(small: Small, request: Request) -> dict[str, Data]:
    return {name: request.select(name, data, "retain") for name, data in small.clients.items()}


def test_its_origin_averages_every_participation_of_a_cohort_drawn_with_replacement(small: Small) -> None:
    origin = trained(small, fats(0))
    assert rounds_in(origin.memory) == 3
    assert max(max(Entry.at(origin.memory, t).drawn.values()) for t in range(3)) > 1  # one takes part twice
    for t in range(3):
        entry = Entry.at(origin.memory, t)
        assert entry.seed == seed_of(f"0|fats|{t}")
        assert entry.drawn == Counter(cohort_of("abc", 3, entry.seed))
        assert_model(small, origin, t, small.clients)
    assert tree.digest(Entry.at(origin.memory, 0).begun(origin).params) == tree.digest(small.start.params)


def test_the_schedule_is_that_of_its_own_training(small: Small) -> None:
    origin = trained(small, fats(0, local=LOCAL))
    for t in range(3):
        assert_model(small, origin, t, small.clients, lr=0.1 * 0.5**t)


def test_a_client_that_was_never_drawn_leaves_no_trace_to_remove(small: Small) -> None:
    method = fats(seed_where(3))
    origin = trained(small, method)
    end = drive(method.phases(origin, small.task), small.tap, origin, seed=2)
    assert end == replace(origin, scratch={})
    assert len(small.tap.calls) == 1  # the question; nobody trains
    assert all(reply.metrics["samples"] == 0 for reply in small.tap.calls[0][1])


@pytest.mark.parametrize("first", [0, 1, 2])
def test_all_from_the_first_round_of_a_forgotten_client_on_is_drawn_and_computed_anew(small: Small, first: int) -> None:
    method = fats(seed_where(first))
    origin = trained(small, method)
    end = drive(method.phases(origin, small.task), small.tap, origin, seed=2)
    assert rounds_in(end.memory) == 3
    for t in range(3):
        old, new = Entry.at(origin.memory, t), Entry.at(end.memory, t)
        if t < first:
            assert tree.digest(old.model) == tree.digest(new.model)
            assert (old.seed, old.drawn) == (new.seed, new.drawn)
            continue
        assert "b" not in new.drawn
        assert new.drawn.total() == 3
        assert new.seed != old.seed
        assert_model(small, end, t, without(small, small.request))
    old, new = Entry.at(origin.memory, first), Entry.at(end.memory, first)
    assert tree.digest(old.model) == tree.digest(new.model)  # it starts over from there
    assert not (old.drawn - Counter("b" * 3)) - new.drawn  # the draws of the others stand
    assert not any("/drawn/b" in name for name in end.memory)
    assert end.params["head.weight"].ne(origin.params["head.weight"]).any()


def holders(entry: Entry, data: dict[str, Data], local: Local) -> Iterator[tuple[str, Tensor]]:
    """The ids in every batch of a round."""
    for client, times in entry.drawn.items():
        for slot in range(times):
            for index in batches_of(len(data[client]), local, entry.seed, client, slot):
                yield client, data[client].ids[index]


@pytest.mark.parametrize("seed", range(6))
def test_no_batch_of_the_record_holds_a_forgotten_sample(small: Small, seed: int) -> None:
    method = fats(seed, cohort=2)
    chosen = torch.cat([small.clients["a"].ids[:2], small.clients["c"].ids[3:4]])
    request = Request("samples", samples=tuple(chosen.tolist()))
    origin = trained(small, method)
    end = unlearned(small, method, origin, request)
    touched = [
        t
        for t in range(3)
        for _, ids in holders(Entry.at(origin.memory, t), small.clients, method.recipe)
        if torch.isin(ids, chosen).any()
    ]
    since = min(touched, default=3)
    assert int(end.memory.get("fats/since", torch.tensor(3))) == since
    for t in range(3):
        data = small.clients if t < since else without(small, request)
        for _, ids in holders(Entry.at(end.memory, t), data, method.recipe):
            assert not torch.isin(ids, chosen).any()
        assert_model(small, end, t, data)
    if since < 3:  # all three retain something, so that the cohort of the round stands
        assert Entry.at(end.memory, since).drawn == Entry.at(origin.memory, since).drawn


def test_a_second_request_repeats_at_least_what_the_first_one_did(small: Small) -> None:
    method = fats(seed_where(1))
    origin = trained(small, method)
    once = unlearned(small, method, origin, small.request)
    used = {int(i) for _, ids in holders(Entry.at(once.memory, 0), small.clients, method.recipe) for i in ids}
    spare = [int(i) for i in small.clients["c"].ids if int(i) not in used]
    second = Request("samples", samples=tuple(spare[:2]))
    twice = unlearned(small, method, once, small.request, second)
    kept = without(small, small.request)
    left = {name: second.select(name, data, "retain") for name, data in kept.items()}
    assert Entry.at(twice.memory, 1).drawn == Entry.at(once.memory, 1).drawn
    assert Entry.at(twice.memory, 1).seed != Entry.at(once.memory, 1).seed
    for t in (1, 2):
        assert_model(small, twice, t, left)
    assert_model(small, twice, 0, small.clients)


def test_the_memory_of_later_rounds_goes_and_that_of_others_stays() -> None:
    names = (
        "fats/round-000001/seed",
        "fats/round-000002/seed",
        "fats/round-000010/seed",
        "fats/since",
        "other/round-x",
    )
    memory = {name: torch.tensor(1) for name in names}
    assert list(before(memory, 2)) == ["fats/round-000001/seed", "fats/since", "other/round-x"]
    assert rounds_in(memory) == 3


def test_what_each_client_of_a_cohort_costs(small: Small) -> None:
    method = fats(0)
    trained(small, method)
    work = Work(
        "fats", small.start.params, small.start.buffers, "retain", options=method.recipe.options(0) | {"draws": 5}
    )
    (reply,) = small.tap.run(replace(work, clients=("a", "a", "nobody")))
    assert reply.metrics["samples"] == 2 * 2 * 4
    assert reply.metrics["flops"] == 3 * small.task.flops * 16


def test_a_model_without_a_record_and_a_round_that_nobody_answers_are_refused(small: Small) -> None:
    method = fats(0)
    with pytest.raises(MethodError, match="no record of its draws"):
        drive(method.phases(small.start, small.task), small.tap, small.start, seed=2)
    origin = trained(small, method)
    nobody: Federation = _Canned([])
    with pytest.raises(RoundError, match="no usable reply"):
        method.locate(nobody, origin, 0)
    with pytest.raises(RoundError, match="client a: out of order"):
        method.locate(_Canned([Reply(0, "a", {}, error="out of order")]), origin, 0)


def test_one_that_does_not_say_when_it_was_drawn_counts_as_drawn_at_once(small: Small) -> None:
    method = fats(seed_where(3))
    origin = trained(small, method)
    silent = [Reply(0, "b", {}, weight=1.0), Reply(1, "a", {}, weight=1.0)]
    assert int(method.locate(_Canned(silent), origin, 0).scratch["fats/from"]) == 0
    said = [replace(silent[0], metrics={"first": 2.0}), silent[1]]
    assert int(method.locate(_Canned(said), origin, 0).scratch["fats/from"]) == 2


class _Canned:
    """Answers whatever it was given."""

    def __init__(self, replies: list[Reply]) -> None:
        self._replies = replies

    def run(self, *works: Work) -> Iterator[Reply]:
        return iter(self._replies)


def test_batches_of_one_are_refused_for_batch_norm(small: Small) -> None:
    method = replace(fats(0), batch_size=1)
    if small.start.buffers:
        with pytest.raises(RoundError, match=r"raise fats\.batch_size"):
            trained(small, method)
    else:
        assert rounds_in(trained(small, method).memory) == 3


@pytest.mark.parametrize("name", ["cohort", "steps", "batch_size", "rounds"])
def test_bad_settings_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"fats\.{name}: must be at least 1"):
        FATS(**{name: 0})  # type: ignore[arg-type]
