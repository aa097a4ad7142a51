"""Ctrl-C and SIGTERM stop a run between two rounds; what the journal holds by then is what remains."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """The run was asked to stop. Not an Exception: nobody on the way may take it for a fault.

    Attributes:
        code: exit status of the process, 128 + the number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


@dataclass
class Stop:
    """Whether the run was asked to stop.

    Attributes:
        signal: what asked; 0: nothing did.
        waits: stop at the next ``check`` only. An exception out of nowhere may leave half a file behind, or be lost:
            whatever Python calls while it forks or collects garbage swallows it.
    """

    signal: int = 0
    waits: bool = False

    def check(self) -> None:
        """Stop here if the run was asked to."""
        if self.signal:
            raise Stopped(self.signal)


@contextmanager
def stoppable(last_words: str, *, notice: str) -> Iterator[Stop]:
    """While open, the first signal stops the run with ``Stopped`` and the second ends the process at once.

    Args:
        last_words: written to stderr if the process is ended at once.
        notice: written to stderr if the run will stop, but not yet.
    """
    owner, stop = os.getpid(), Stop()

    def act(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked client: its owner ends it, unless only the client was meant
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if stop.signal:
            _end_at_once(128 + number, last_words)
        stop.signal = number
        if not stop.waits:
            raise Stopped(number)
        os.write(2, notice.encode())  # print might be in the middle of something

    before = {number: signal.signal(number, act) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _end_at_once(code: int, last_words: str) -> NoReturn:
    for child in active_children():
        child.kill()
    os.write(2, last_words.encode())
    os._exit(code)
