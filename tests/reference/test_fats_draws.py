"""FATS's draws: how they are distributed after unlearning, how likely a hit is, and where the first one lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from letheon import tree
from letheon.client import Client
from letheon.data import Data
from letheon.methods.draws import (
    batches_of,
    client_probability,
    cohort_of,
    first_hit,
    recomputation,
    sample_probability,
)
from letheon.methods.fats import FATS, Entry
from letheon.phase import State, drive, seed_of
from letheon.request import Request
from letheon.tasks.vision import Digits
from letheon.training import Local
from letheon.work import Reply, Work

FLAT = Local(lr=0.1, momentum=0.9, batch_size=32, first_round=7)


class Lottery:
    """A federation in which clients answer questions, but learn nothing: for the draws alone."""

    def __init__(self, clients: Sequence[Client], request: str = "") -> None:
        self._clients = clients
        self._request = request
        self._module = clients[0].task.prototype()

    def run(self, *works: Work) -> Iterator[Reply]:
        for client in self._clients:
            for index, work in enumerate(replace(work, request=self._request) for work in works):
                if not work.asks(client.name) or not len(client.part(work)):
                    continue
                if work.kind == "fats":
                    yield Reply(index, client.name, tree.zeros_like(work.params), weight=1.0)
                else:
                    yield replace(client.execute(work, self._module), work=index)


@cache
def lottery() -> tuple[Digits, dict[str, Data], State]:
    task = Digits()
    data = task.train()
    clients = {name: data.take(torch.arange(4 * i, 4 * i + 4)) for i, name in enumerate("abc")}
    return task, clients, task.init(0)


def after(request: Request, method: FATS) -> tuple[State, State]:
    """Origin and the unlearned state of a lottery among three clients with four samples each."""
    task, data, start = lottery()
    clients = [Client(name, share, task) for name, share in data.items()]
    origin = drive(method.origin(task, FLAT, 1), Lottery(clients), start, seed=0)
    for client in clients:
        client.admit(request)
    return origin, drive(method.phases(origin, task), Lottery(clients, request.id), origin, seed=0)


def within(count: int, of: int, probability: float) -> bool:
    """Whether a count is within four standard deviations."""
    return abs(count - of * probability) <= 4 * (of * probability * (1 - probability)) ** 0.5


def test_after_unlearning_cohorts_are_distributed_as_if_the_client_had_never_been_there() -> None:
    runs, seen = 400, Counter[tuple[str, ...]]()
    for seed in range(runs):
        method = FATS(cohort=2, steps=1, batch_size=2, rounds=2, seed=seed, local=FLAT)
        _, end = after(Request("client", client="b"), method)
        for t in range(2):
            seen[tuple(sorted(Entry.at(end.memory, t).drawn.elements()))] += 1
    assert set(seen) == {("a", "a"), ("a", "c"), ("c", "c")}
    assert within(seen["a", "a"], 2 * runs, 0.25)
    assert within(seen["a", "c"], 2 * runs, 0.5)


def test_after_unlearning_a_sample_its_client_is_drawn_as_often_as_any_other() -> None:
    """The round of the hit must keep its cohort: who draws it anew, draws the client of the sample too rarely."""
    data = lottery()[1]["b"]
    request, runs = Request("samples", samples=(int(data.ids[0]),)), 600
    seen, hits, batches = Counter[str](), 0, Counter[tuple[int, ...]]()
    for seed in range(runs):
        method = FATS(cohort=1, steps=1, batch_size=2, rounds=1, seed=seed, local=FLAT)
        origin, end = after(request, method)
        entry = Entry.at(end.memory, 0)
        is_hit = entry.seed != Entry.at(origin.memory, 0).seed
        hits += is_hit
        seen.update(entry.drawn.elements())
        if entry.drawn["b"]:
            kept = request.select("b", data, "retain") if is_hit else data
            (index,) = batches_of(len(kept), method.recipe, entry.seed, "b", 0)
            batches[tuple(sorted(kept.ids[index].tolist()))] += 1
    assert within(hits, runs, 1 / 3 * 2 / 4)
    assert all(within(seen[name], runs, 1 / 3) for name in "abc")
    assert len(batches) == 3  # pairs of the three samples left, all alike
    assert all(within(count, batches.total(), 1 / 3) for count in batches.values())


def test_the_stability_bounds_are_bounds() -> None:
    clients, samples, rounds, cohort, runs = 5, 12, 3, 2, 1500
    local = Local(steps=2, batch_size=2)
    data = Data(torch.zeros(samples, 1), torch.zeros(samples), torch.arange(samples))
    drawn = hit = 0
    for run in range(runs):
        seeds = [seed_of(f"{run}|{t}") for t in range(rounds)]
        times = [cohort_of("abcde", cohort, seed).count("b") for seed in seeds]
        drawn += any(times)
        target = data.take(torch.tensor([3]))
        found = first_hit(data, target, local, client="b", seeds=torch.tensor(seeds), times=torch.tensor(times))
        hit += found < rounds
    each = 1 - (1 - 2 / samples) ** 2  # a participation has the sample in one of its two batches
    assert within(drawn, runs, 1 - (1 - 1 / clients) ** (rounds * cohort))
    assert within(hit, runs, 1 - (1 - each / clients) ** (rounds * cohort))
    assert drawn / runs < client_probability(rounds, cohort, clients) == 1.0
    assert hit / runs < sample_probability(local, samples, rounds=rounds, cohort=cohort, clients=clients)
    assert sample_probability(local, samples, rounds=3, cohort=2, clients=5) == pytest.approx(3 * 2 * 4 / 60)
    assert client_probability(2, 1, 5) == pytest.approx(0.4)


def test_a_request_runs_rounds_again_with_the_probabilities_of_its_holders_in_sum() -> None:
    local, settings = Local(steps=2, batch_size=2), {"rounds": 2, "cohort": 1}
    sizes = {name: {"all": 40, "forget": 0} for name in "abcde"}
    one = 2 * 1 * 2 * 2 / (5 * 40)
    assert recomputation(sizes, local, **settings) == 0.0
    assert recomputation(sizes | {"a": {"all": 40, "forget": 3}}, local, **settings) == pytest.approx(3 * one)
    assert recomputation(sizes | {"a": {"all": 40, "forget": 40}}, local, **settings) == pytest.approx(0.4)
    spread = {"a": {"all": 40, "forget": 3}, "b": {"all": 20, "forget": 1}, "f": {"all": 0, "forget": 0}}
    assert recomputation(sizes | spread, local, **settings) == pytest.approx(5 * one)
    everyone = {name: {"all": 40, "forget": 39} for name in "abcde"}
    assert recomputation(everyone, local, **settings) == 1.0


def brute_force(seeds: list[int], times: list[int], gone: set[int]) -> int:
    """Every batch of two out of nine positions is looked at, three for each time of being drawn."""
    hits = {len(seeds)}
    for t, (seed, drawn) in enumerate(zip(seeds, times, strict=True)):
        generators = [torch.Generator().manual_seed(seed_of(f"{seed}|me|{slot}")) for slot in range(drawn)]
        batches = [set(torch.randperm(9, generator=g).tolist()[:2]) for g in generators for _ in range(3)]
        hits |= {t for batch in batches if batch & gone}
    return min(hits)


def test_the_first_hit_is_found_by_looking_at_every_batch() -> None:
    local = Local(steps=3, batch_size=2)
    data = Data(torch.zeros(9, 1), torch.zeros(9), torch.arange(100, 109))
    seen = set()
    for start in range(30):
        seeds, times = [start * 10 + t for t in range(4)], [(start + t) % 3 for t in range(4)]
        gone = {start % 9, (start * 4) % 9}
        targets = data.take(torch.tensor(sorted(gone)))
        found = first_hit(data, targets, local, client="me", seeds=torch.tensor(seeds), times=torch.tensor(times))
        assert found == brute_force(seeds, times, gone)
        seen.add(found)
    assert len(seen) > 2
