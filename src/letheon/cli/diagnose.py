"""``letheon diagnose``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from letheon.cli.options import Cache, Debug, Json, Verbose, Workers
from letheon.cli.terminal import compute, is_plain, say, show, show_json, stderr, stdout

Only = Annotated[
    str, typer.Option("--only", metavar="NAMES", help="Some of rt, lmc, fd, relearn, mia and probe, by commas.")
]


def diagnose(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", show_default=False)],
    only: Only = "",
    json: Json = False,
    cache: Cache = None,
    workers: Workers = None,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Look into the models of a finished run: how easily does the knowledge return, and is it still inside?

    Writes RUN/diagnostics.json, which `letheon report` shows. What the run has not stored is trained again.
    """
    console = stderr()
    compute(console, verbose=verbose)
    from letheon import pipeline
    from letheon.diagnostics import suite
    from letheon.report.diagnostics import as_text, diagnostics_of

    names = suite.sections(only)
    finished = pipeline.load(run, cache=cache)
    with _following(console) as heard:
        path = suite.keep(finished, suite.diagnose(finished, names, workers=workers, heard=heard))
    told = diagnostics_of(finished, names)
    assert told is not None
    if json:
        show_json(told.found)
        return
    for table in as_text(told):
        show(table)
    say(stdout(), f"Diagnostics: {path}\nTo see them drawn: letheon report {run}")


@contextmanager
def _following(console: Console) -> Iterator[Callable[[str, str], None] | None]:
    """A line in a terminal that says what is measured."""
    if is_plain():
        yield None
        return
    with console.status("starting", spinner="dots") as status:
        yield lambda section, label: status.update(f"{section}: {label}")
