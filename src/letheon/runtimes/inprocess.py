"""All clients on one machine: a pool of threads, or of forked processes where the model needs its own RNG.

Workers = cores, one intra-op thread each, longest client first. Replies leave in client order, so neither the number
of workers nor who finishes first changes a bit of the result.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import threading
import traceback
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import ClassVar

import torch
from torch import nn

from letheon.client import Client
from letheon.errors import ConfigError, RoundError
from letheon.request import Request
from letheon.work import Reply, Work


@dataclass(frozen=True, slots=True)
class _Message:
    """One client's share of a round: the works it takes part in, with their positions."""

    client: Client
    works: tuple[tuple[int, Work], ...]

    @property
    def samples(self) -> int:
        return sum(len(self.client.part(work)) for _, work in self.works)

    def answer(self, module: nn.Module) -> list[Reply]:
        return [replace(self.client.execute(work, module), work=index) for index, work in self.works]


class InProcess:
    """A federation whose clients live in this process.

    Args:
        clients: names must differ.
        workers: how many run at a time; the number of cores by default.

    Class attributes:
        gives: what of ``Method.needs`` can be had: every reply on its own, and rounds that a method records.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"history", "per-client"})

    def __init__(self, clients: Sequence[Client], *, workers: int | None = None) -> None:
        names = [client.name for client in clients]
        if len(set(names)) != len(names) or not names:
            raise RoundError(f"in-process federation: client names must differ and there must be one, got {names}")
        self.clients = sorted(clients, key=lambda client: client.name)
        self.workers = available_cores() if workers is None else workers
        if self.workers < 1:
            raise ConfigError(f"workers: must be at least 1, got {workers}")
        task = self.clients[0].task
        _ = task.flops  # kept by the task: forked workers would count anew in every round
        pool = _Forks if task.draws else _Threads
        self._pool: _Threads | _Forks = pool(task.prototype(), self.workers)

    def admit(self, requests: Sequence[Request], *, life: str = "") -> None:
        """From now on these requests and no others are in force; clients in this process keep no table of their own."""
        for client in self.clients:
            client.requests = {}
            for request in requests:
                client.admit(request)

    def run(self, *works: Work) -> Iterator[Reply]:
        messages = []
        for client in self.clients:
            mine = tuple((i, w) for i, w in enumerate(works) if w.asks(client.name) and len(client.part(w)))
            if mine:
                messages.append(_Message(client, mine))
        # Longest first: the last client to start is a short one, so that the workers finish together.
        order = sorted(range(len(messages)), key=lambda i: (-messages[i].samples, i))
        for replies in self._pool.answers(messages, order):
            yield from replies

    def close(self) -> None:
        """End the workers. A closed federation cannot run again."""
        self._pool.close()

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quiet() -> None:
    """One intra-op thread, denormals flushed, in the calling thread."""
    torch.get_num_threads()  # or the thread's first kernel would set the number anew
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


class _Intraop:
    """One intra-op thread in the whole process while any pool of threads is open, then what there was before.

    MKL's number of threads belongs to the process: if one pool gave it back while another works, the second pool's
    products would be summed by two threads, and come out with other bits.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a collection may end one pool while another begins
        self._open = 0
        self._before = 1

    def enter(self) -> None:
        with self._lock:
            self._before = self._before if self._open else torch.get_num_threads()
            self._open += 1

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:  # in a thread of its own: the caller's thread keeps what it has
                restore = threading.Thread(target=torch.set_num_threads, args=(self._before,))
                restore.start()
                restore.join()


_INTRAOP = _Intraop()


class _Threads:
    """Threads with a module copy each. PyTorch releases the interpreter lock inside its kernels."""

    def __init__(self, module: nn.Module, workers: int) -> None:
        self._module = module
        self._local = threading.local()
        _INTRAOP.enter()
        # Once: at close, or when a pool that nobody closed is collected.
        self._leave = weakref.finalize(self, _INTRAOP.leave)
        self._leave.atexit = False
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="letheon", initializer=_quiet)

    def _answer(self, message: _Message) -> list[Reply]:
        if not hasattr(self._local, "module"):
            self._local.module = copy.deepcopy(self._module)
        return message.answer(self._local.module)

    def answers(self, messages: Sequence[_Message], order: Sequence[int]) -> Iterator[list[Reply]]:
        futures = {i: self._executor.submit(self._answer, messages[i]) for i in order}
        try:
            for i in range(len(messages)):
                yield futures.pop(i).result()
        finally:
            for future in futures.values():
                future.cancel()

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._leave()


class _Forks:
    """Processes forked for each round: a model that draws from torch's global RNG has it to itself."""

    def __init__(self, module: nn.Module, workers: int) -> None:
        self._module = module
        self._workers = workers
        self._context = multiprocessing.get_context("fork")

    def answers(self, messages: Sequence[_Message], order: Sequence[int]) -> Iterator[list[Reply]]:
        shares = _balanced(messages, order, self._workers)
        pipes: list[Connection] = []
        processes: list[ForkProcess] = []
        answers: dict[int, list[Reply]] = {}
        try:
            for share in shares:
                ours, theirs = self._context.Pipe(duplex=False)
                pipes.append(ours)
                process = self._context.Process(
                    target=_serve, args=(theirs, self._module, messages, share), daemon=True
                )
                process.start()
                processes.append(process)
                theirs.close()  # or the end of the worker would not be the end of the pipe
            _gather(pipes, shares, messages, answers)
        finally:
            for process in processes:
                if len(answers) < len(messages):
                    process.kill()
                process.join()
            for pipe in pipes:
                pipe.close()
        yield from (answers[i] for i in range(len(messages)))

    def close(self) -> None:
        """Nothing outlives a round."""


def _balanced(messages: Sequence[_Message], order: Sequence[int], workers: int) -> list[list[int]]:
    """Each message, longest first, to the worker with the least to do."""
    shares: list[list[int]] = [[] for _ in range(min(workers, len(messages)))]
    loads = [0] * len(shares)
    for i in order:
        least = loads.index(min(loads))
        shares[least].append(i)
        loads[least] += messages[i].samples
    return shares


def _serve(pipe: Connection, module: nn.Module, messages: Sequence[_Message], share: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    _quiet()
    for i in share:
        try:
            pipe.send((i, [_plain(reply) for reply in messages[i].answer(module)]))
        except Exception:
            pipe.send((i, traceback.format_exc()))
    pipe.close()


def _gather(
    pipes: Sequence[Connection],
    shares: Sequence[list[int]],
    messages: Sequence[_Message],
    answers: dict[int, list[Reply]],
) -> None:
    """Read whichever worker has something: one that waits to send does not train."""
    missing = {pipe: set(share) for pipe, share in zip(pipes, shares, strict=True)}
    while missing:
        for pipe in wait(list(missing)):
            assert isinstance(pipe, Connection)
            try:
                index, replies = pipe.recv()
            except EOFError:
                lost = ", ".join(sorted(messages[i].client.name for i in missing[pipe]))
                raise RoundError(f"in-process federation: a worker process died; no reply from {lost}") from None
            if isinstance(replies, str):
                raise RuntimeError(f"client {messages[index].client.name} failed in a worker process:\n{replies}")
            answers[index] = [_tensors(reply) for reply in replies]
            missing[pipe].discard(index)
            if not missing[pipe]:
                del missing[pipe]


def _plain(reply: Reply) -> Reply:
    """Tensors as arrays: torch would otherwise send file descriptors of shared memory."""
    arrays = {name: tensor.numpy() for name, tensor in reply.tensors.items()}
    buffers = {name: tensor.numpy() for name, tensor in reply.buffers.items()}
    return replace(reply, tensors=arrays, buffers=buffers)  # type: ignore[arg-type]


def _tensors(reply: Reply) -> Reply:
    tensors = {name: torch.from_numpy(array) for name, array in reply.tensors.items()}
    return replace(reply, tensors=tensors, buffers={n: torch.from_numpy(a) for n, a in reply.buffers.items()})
