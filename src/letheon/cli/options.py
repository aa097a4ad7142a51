"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from letheon.cli.terminal import set_debug

File = Annotated[Path, typer.Argument(metavar="FILE", help="Experiment, a TOML file.", show_default=False)]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in method.gamma.beta=0.2. Repeatable."),
]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Where stages are kept, to share them between runs."),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Clients trained at a time; all cores by default."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else to stdout.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what happens.")]
Debug = Annotated[bool, typer.Option("--debug", callback=set_debug, help="Show the traceback of an error.")]
