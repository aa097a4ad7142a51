"""``letheon compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    rows, form = _rows(runs, cache)
    if json:
        show_json(rows)
    elif csv or markdown:
        typer.echo((form.as_csv(rows) if csv else form.as_markdown(rows)).rstrip("\n"))
    else:
        show(form.as_text(rows))


def _rows(runs: list[Path], cache: Path | None) -> tuple[list[Any], Any]:
    """The rows of all runs, and the module that knows how to print them."""
    from letheon import pipeline
    from letheon.errors import ConfigError
    from letheon.report import stream_table, table

    kinds = {stream_table.is_stream(folder) for folder in runs}
    if len(kinds) > 1:
        raise ConfigError("compare: some of these are streams on a language model and some are not; compare them apart")
    if kinds == {True}:
        return [row for folder in runs for row in stream_table.read_rows(folder)], stream_table
    return table.compare_rows([pipeline.load(folder, cache=cache) for folder in runs]), table
