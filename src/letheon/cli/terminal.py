"""What commands share: where text goes, how it looks there, and what was asked of all commands alike."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import dataclass
from typing import IO, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


@dataclass
class Session:
    """One call of the command.

    Attributes:
        words: what follows ``letheon`` on the command line.
        debug: show tracebacks.
    """

    words: tuple[str, ...]
    debug: bool = False


def set_debug(context: typer.Context, debug: bool) -> None:
    """What ``--debug`` does."""
    context.ensure_object(Session).debug |= debug


def is_plain() -> bool:
    """Whether to print lines without colours, cursor movements or live displays."""
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    is_screen = all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))  # None: closed
    return bool(dumb or os.environ.get("NO_COLOR") or not is_screen)


def stdout() -> Console:
    """For results."""
    return _console(sys.stdout)


def stderr() -> Console:
    """For progress, logs and errors."""
    return _console(sys.stderr)


def _console(file: IO[str]) -> Console:
    if is_plain():
        return Console(file=file, force_terminal=False, color_system=None, highlight=False)
    return Console(file=file, highlight=False)


def say(console: Console, text: str, *, style: str = "") -> None:
    """Print text as it is: no markup, and line breaks of its own only where nobody reads along."""
    console.print(Text(text, style=style), soft_wrap=not console.file.isatty())


def show(table: Table) -> None:
    """A table on stdout; in a pipe or a file it gets the width that it needs."""
    console = stdout()
    if console.file.isatty():
        console.print(table)
        return
    console.width = Measurement.get(console, console.options.update(width=10_000), table).maximum or 1
    with console.capture() as printed:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def show_json(value: Any) -> None:
    """JSON on stdout and nothing else."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False))


def compute(console: Console, *, verbose: bool) -> None:
    """Get ready for a command that computes: one torch thread for each worker, log lines to ``console``."""
    import torch

    torch.set_num_threads(1)
    log = logging.getLogger("letheon")
    log.handlers = [handler for handler in log.handlers if not isinstance(handler, _Lines)]
    log.addHandler(_Lines(console))
    log.setLevel(logging.INFO if verbose else logging.WARNING)


class _Lines(logging.Handler):
    """Log records as lines of a console, above a live display if there is one."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        try:
            say(self._console, f"{record.levelname.lower()}: {record.getMessage()}", style=style)
        except Exception:  # a record that cannot be shown must not end a run
            self.handleError(record)
