"""All clients on one machine: threads, forked processes, and what may go wrong in them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn

from letheon import tree
from letheon.client import KINDS, Client, Kind
from letheon.data import Data
from letheon.errors import ConfigError, DataError, RoundError
from letheon.middleware import Quorum
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.base import Task
from letheon.work import Reply, Work, average


@dataclass(frozen=True)
class Tiny(Task):
    """Two features, two classes; with ``dropout`` clients run in forked processes."""

    head: ClassVar[str] = "1"
    classes: ClassVar[int] = 2
    bright: ClassVar[float] = 1.0
    dropout: float = 0.0

    def train(self) -> Data:
        return samples(16)

    def test(self) -> Data:
        return samples(4)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Dropout(self.dropout) if self.dropout else nn.Identity(), nn.Linear(2, 2))


def samples(n: int) -> Data:
    return Data(torch.arange(2.0 * n).reshape(n, 2) / n, torch.arange(n) % 2, torch.arange(n))


THREADS, PROCESSES = Tiny(), Tiny(0.5)
BOTH = pytest.mark.parametrize("task", [THREADS, PROCESSES], ids=["threads", "processes"])


def clients(task: Task, *sizes: int) -> list[Client]:
    return [Client(f"c{i}", samples(n), task) for i, n in enumerate(sizes)]


def work(task: Task, kind: str = "train") -> Work:
    state = task.init(0)
    return Work(kind, state.params, state.buffers, options={"lr": 0.1}, seed=3)


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind of work of the test's own: sleeps, dies or fails as the name of its client says."""
    monkeypatch.setitem(KINDS, "odd", Kind(odd, lambda task, work, n: {}, "free"))
    return "odd"


WORKED: list[str] = []


def odd(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    WORKED.append(client.name)
    _, what, number = [*client.name.split("-"), "", ""][:3]
    if what == "sleep":
        time.sleep(float(number))
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "bug":
        raise ZeroDivisionError("a bug in a client")
    if what == "refuse":
        raise DataError("not today")
    return Reply(0, client.name, {"module": torch.tensor([id(module)])}, metrics={"thread": threading.get_ident()})


def named(task: Task, *names: str, n: int = 4) -> list[Client]:
    return [Client(name, samples(n), task) for name in names]


@BOTH
def test_replies_come_in_the_order_of_names_whoever_finishes_first(task: Task, kind: str) -> None:
    with InProcess(named(task, "b", "a-sleep-0.2", "c"), workers=3) as runtime:
        assert [reply.client for reply in runtime.run(work(task, kind))] == ["a-sleep-0.2", "b", "c"]


def test_the_longest_client_starts_first(kind: str) -> None:
    sizes = {"a": 3, "b": 9, "c": 5, "d": 9}
    WORKED.clear()
    with InProcess([Client(name, samples(n), THREADS) for name, n in sizes.items()], workers=1) as runtime:
        list(runtime.run(work(THREADS, kind)))
    assert WORKED == ["b", "d", "c", "a"]


@BOTH
def test_clients_without_the_part_are_not_asked(task: Task) -> None:
    with InProcess(clients(task, 5, 0, 3)) as runtime:
        replies = list(runtime.run(work(task)))
    assert [(reply.client, reply.weight) for reply in replies] == [("c0", 5.0), ("c2", 3.0)]


@BOTH
def test_of_a_cohort_only_the_members_are_asked(task: Task) -> None:
    with InProcess(clients(task, 5, 4, 0, 3)) as runtime:
        cohort = replace(work(task), clients=("c3", "c0", "c2"))
        replies = list(runtime.run(cohort, work(task)))
    assert [(reply.client, reply.work) for reply in replies] == [("c0", 0), ("c0", 1), ("c1", 1), ("c3", 0), ("c3", 1)]


@BOTH
def test_a_federation_in_which_nobody_holds_the_part_replies_nothing(task: Task) -> None:
    with InProcess(clients(task, 0, 0)) as runtime:
        assert list(runtime.run(work(task))) == []
        with pytest.raises(RoundError, match="no client holds the part"):
            average(Quorum(runtime).run(work(task)))


@BOTH
def test_works_asked_for_together_are_answered_by_position(task: Task) -> None:
    first, second = work(task), work(task, "evaluate")
    with InProcess(clients(task, 4, 4), workers=2) as runtime:
        replies = list(runtime.run(first, second))
    assert [(reply.client, reply.work) for reply in replies] == [("c0", 0), ("c0", 1), ("c1", 0), ("c1", 1)]
    assert "accuracy" in replies[1].metrics


@BOTH
def test_the_number_of_workers_changes_no_bit(task: Task) -> None:
    digests = set()
    for workers in (1, 2, 7):
        with InProcess(clients(task, 9, 4, 16, 1, 5), workers=workers) as runtime:
            replies = list(runtime.run(work(task)))
        digests.add(tuple(tree.digest(reply.tensors) for reply in replies))
    assert len(digests) == 1


@BOTH
def test_a_fault_of_the_program_in_a_client_is_not_swallowed(task: Task, kind: str) -> None:
    error = ZeroDivisionError if task is THREADS else RuntimeError
    with InProcess(named(task, "a", "b-bug", "c-sleep-0.05"), workers=2) as runtime:
        with pytest.raises(error, match="a bug in a client") as caught:
            list(runtime.run(work(task, kind)))
        if task is PROCESSES:
            assert "client b-bug failed in a worker process" in str(caught.value)
            assert "ZeroDivisionError" in str(caught.value)
            assert multiprocessing.active_children() == []
        assert len(list(runtime.run(work(task)))) == 3  # and the federation can still be used


@BOTH
def test_a_client_that_cannot_work_is_quarantined_and_the_round_goes_on(task: Task, kind: str) -> None:
    with InProcess(named(task, "a", "b-refuse", "c"), workers=2) as runtime:
        quorum = Quorum(runtime)
        assert [reply.client for reply in quorum.run(work(task, kind))] == ["a", "c"]
        quorum.observe("train", 1, task.init(0))
        assert [(event["client"], event["reason"]) for event in quorum.events] == [("b-refuse", "not today")]


def test_a_worker_process_that_dies_is_an_error_that_names_its_clients(kind: str) -> None:
    with InProcess(named(PROCESSES, "a", "b-die", "c-sleep-30"), workers=3) as runtime:
        began = time.monotonic()
        with pytest.raises(RoundError, match=r"a worker process died; no reply from b-die$"):
            list(runtime.run(work(PROCESSES, kind)))
        assert time.monotonic() - began < 15.0  # nobody waits for the sleeper
        assert multiprocessing.active_children() == []
        assert len(list(runtime.run(work(PROCESSES)))) == 3


def test_a_worker_process_that_dies_takes_the_clients_after_it_along(kind: str) -> None:
    with (
        InProcess(named(PROCESSES, "a-die", "b", "c"), workers=1) as runtime,
        pytest.raises(RoundError, match="no reply from a-die, b, c"),
    ):
        list(runtime.run(work(PROCESSES, kind)))


def test_replies_larger_than_a_pipe_do_not_lock_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
        return Reply(0, client.name, {"x": torch.full((300_000,), float(seed % 7))})

    monkeypatch.setitem(KINDS, "large", Kind(large, lambda task, work, n: {}, "free"))
    with InProcess(clients(PROCESSES, *range(1, 8)), workers=2) as runtime:
        replies = list(runtime.run(work(PROCESSES, "large")))
    assert [len(reply.tensors["x"]) for reply in replies] == [300_000] * 7


def test_each_worker_has_a_module_of_its_own_and_keeps_it(kind: str) -> None:
    names = [f"{letter}-sleep-0.02" for letter in "abcdefgh"]
    with InProcess(named(THREADS, *names), workers=2) as runtime:
        replies = [reply for _ in range(2) for reply in runtime.run(work(THREADS, kind))]
    pairs = {(reply.metrics["thread"], int(reply.tensors["module"])) for reply in replies}
    assert len(pairs) == len({thread for thread, _ in pairs}) == len({module for _, module in pairs}) == 2


def test_closing_ends_the_threads() -> None:
    def ours() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("letheon")]

    before = ours()
    runtime = InProcess(clients(THREADS, 4, 4), workers=2)
    list(runtime.run(work(THREADS)))
    assert len(ours()) > len(before)
    runtime.close()
    runtime.close()
    assert ours() == before


def threads_of_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(torch.get_num_threads).result()


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="one intra-op thread is all there is")
@pytest.mark.parametrize("close", [True, False])
def test_the_intraop_threads_come_back_even_if_nobody_closes(close: bool) -> None:
    gc.collect()
    before = threads_of_a_new_thread()
    runtime = InProcess(clients(THREADS, 4, 4), workers=2)
    list(runtime.run(work(THREADS)))
    assert threads_of_a_new_thread() == 1
    if close:
        runtime.close()
    del runtime
    gc.collect()
    assert threads_of_a_new_thread() == before


@BOTH
def test_two_federations_side_by_side_do_not_disturb_each_other(task: Task) -> None:
    members = clients(task, 6, 7, 8)
    with InProcess(members, workers=2) as alone:
        expected = [tree.digest(reply.tensors) for reply in alone.run(work(task))]
    with InProcess(members, workers=2) as first, InProcess(members, workers=1) as second:
        pairs = list(zip(first.run(work(task)), second.run(work(task)), strict=True))
    assert [tree.digest(a.tensors) for a, _ in pairs] == expected
    assert [tree.digest(b.tensors) for _, b in pairs] == expected


def run_in_thread(members: Sequence[Client], digests: list[list[str]]) -> None:
    with InProcess(members, workers=2) as runtime:
        for _ in range(3):
            digests.append([tree.digest(reply.tensors) for reply in runtime.run(work(THREADS))])


def test_federations_in_several_threads_give_the_same_as_in_one() -> None:
    digests: list[list[str]] = []
    members = clients(THREADS, 6, 7, 8)
    threads = [threading.Thread(target=partial(run_in_thread, members, digests)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 9
    assert all(digest == digests[0] for digest in digests)


def test_a_round_that_is_given_up_half_way_leaves_the_federation_usable(kind: str) -> None:
    with InProcess(named(THREADS, "a", "b-sleep-0.1", "c"), workers=1) as runtime:
        stream = runtime.run(work(THREADS, kind))
        assert next(stream).client == "a"
        stream.close()  # type: ignore[attr-defined]
        assert [reply.client for reply in runtime.run(work(THREADS))] == ["a", "b-sleep-0.1", "c"]


def test_workers_use_one_thread_inside_torch_and_flush_denormals(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
        flushed = float(torch.tensor([1e-40]) * 1.0) == 0.0
        return Reply(0, client.name, {}, metrics={"threads": torch.get_num_threads(), "flushed": flushed})

    monkeypatch.setitem(KINDS, "look", Kind(look, lambda task, work, n: {}, "free"))
    for task in (THREADS, PROCESSES):
        with InProcess(clients(task, 3, 4), workers=2) as runtime:
            for reply in runtime.run(work(task, "look")):
                assert (reply.metrics["threads"], reply.metrics["flushed"]) == (1, True)


def test_a_federation_needs_clients_with_different_names_and_at_least_one_worker() -> None:
    with pytest.raises(RoundError, match="names must differ"):
        InProcess([*clients(THREADS, 3), *clients(THREADS, 4)])
    with pytest.raises(RoundError, match="there must be one"):
        InProcess([])
    with pytest.raises(ConfigError, match="workers: must be at least 1, got 0"):
        InProcess(clients(THREADS, 3), workers=0)


def test_a_federation_needs_no_more_workers_than_clients() -> None:
    with InProcess(clients(PROCESSES, 3), workers=50) as runtime:
        assert len(list(runtime.run(work(PROCESSES)))) == 1
