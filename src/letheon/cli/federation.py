"""``letheon new-federation`` and ``letheon forget``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from letheon.cli.options import Debug
from letheon.cli.terminal import say, stdout

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet.", show_default=False)]
Table = Annotated[Path, typer.Argument(metavar="TABLE", help="The site's exclusion table.", show_default=False)]
Samples = Annotated[list[int], typer.Argument(metavar="ID...", help="Ids of the samples.", show_default=False)]


def new_federation(directory: Directory, debug: Debug = False) -> None:
    """Write a Flower app that trains, and forgets what it is asked to forget: strict, commented, ready to run."""
    from letheon.federation.new import write_app

    write_app(directory)
    say(stdout(), f"{directory}: written; README.md in it says how to go on")


def forget(table: Table, samples: Samples, debug: Debug = False) -> None:
    """File a request about single samples on the machine of the site that holds them; prints its id for the server."""
    from letheon.request import Request
    from letheon.runtimes.exclusions import Exclusions

    say(stdout(), Exclusions(table).file(Request("samples", samples=tuple(sorted(set(samples))))))
