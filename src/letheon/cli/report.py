"""``letheon report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from letheon.cli.options import Cache, Debug, Verbose
from letheon.cli.terminal import compute, stderr


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write; RUN/report.html by default.")
    ] = None,
    cache: Cache = None,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Write the report of a finished run, one HTML file with everything in it, and print its path."""
    compute(stderr(), verbose=verbose)
    from letheon import pipeline
    from letheon.report.html import write_report

    path = out or run / "report.html"
    write_report(pipeline.load(run, cache=cache), path)
    typer.echo(path)
