"""The command ``letheon``: one file for each command.

Listing, ``--help`` and ``--version`` import no torch: what is heavy is imported inside the commands.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from letheon import __version__
from letheon.cli import compare, diagnose, evaluate, federation, methods, plan, report, reproduce, tasks, unlearn
from letheon.cli import run as run_command
from letheon.cli.terminal import Session, say, stderr
from letheon.errors import LetheonError

USAGE_ERROR = 2

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run_command.run)
app.command("plan")(plan.plan)
app.command("compare")(compare.compare)
app.command("diagnose")(diagnose.diagnose)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.command("unlearn")(unlearn.unlearn)
app.command("evaluate")(evaluate.evaluate)
app.command("methods")(methods.methods)
app.command("tasks")(tasks.tasks)
app.command("new-federation")(federation.new_federation)
app.command("forget")(federation.forget)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"letheon {__version__}")
        raise typer.Exit


@app.callback()
def letheon(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Unlearning that stays unlearned: train, delete, unlearn, keep training, and measure whether it comes back."""


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 something to correct, 130 or 143 stopped by Ctrl-C or SIGTERM.

    Args:
        words: what follows ``letheon``; the process's own words by default.
    """
    session = Session(tuple(sys.argv[1:] if words is None else words))
    try:
        app(args=list(session.words), prog_name="letheon", obj=session)
    except LetheonError as error:
        if session.debug:
            raise
        say(stderr(), f"error: {error}", style="red")
        sys.exit(USAGE_ERROR)
    except OSError as error:
        if session.debug or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        say(stderr(), f"error: {error.strerror}; free some, and repeat the command, a run with --resume", style="red")
        sys.exit(USAGE_ERROR)
