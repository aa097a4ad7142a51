"""``letheon compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from letheon.cli.options import Cache, Debug, Json, Verbose
from letheon.cli.terminal import compute, show, show_json, stderr


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.", show_default=False)],
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else to stdout.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table and nothing else.")] = False,
    cache: Cache = None,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Put the methods of one or more runs into one table: does the knowledge stay gone, and at what price?"""
    if json + csv + markdown > 1:
        raise typer.BadParameter("choose one of --json, --csv and --markdown")
    compute(stderr(), verbose=verbose)
    from letheon import pipeline
    from letheon.report.table import as_csv, as_markdown, as_text, compare_rows

    rows = compare_rows([pipeline.load(folder, cache=cache) for folder in runs])
    if json:
        show_json(rows)
    elif csv or markdown:
        typer.echo((as_csv(rows) if csv else as_markdown(rows)).rstrip("\n"))
    else:
        show(as_text(rows))
