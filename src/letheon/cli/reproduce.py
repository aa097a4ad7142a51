"""``letheon reproduce``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.table import Table

from letheon.cli.interrupt import Stop, Stopped, stoppable
from letheon.cli.options import Debug, Json, Sets, Verbose, Workers
from letheon.cli.progress import STOPPING, following, waiting
from letheon.cli.run import Quiet, Resume, resume_command
from letheon.cli.terminal import Session, compute, is_plain, say, show, show_json, stderr, stdout
from letheon.errors import ConfigError
from letheon.reproduce.targets import Scale, Target, chosen_rows, recipe, target, targets

if TYPE_CHECKING:
    from letheon.experiment import Experiment
    from letheon.reproduce.comparison import Comparison
    from letheon.reproduce.measured import Measured
    from letheon.stream.experiment import Stream

SCALES: tuple[Scale, ...] = ("small", "paper")

Name = Annotated[str | None, typer.Argument(metavar="TARGET", help="A table or figure, as --list names it.")]
Listing = Annotated[bool, typer.Option("--list", help="List what can be reproduced, and what is missing for it.")]
Rows = Annotated[
    list[str] | None, typer.Option("--row", metavar="ROW", help="Only this row. Repeatable; all rows by default.")
]
Size = Annotated[
    Literal["small", "paper"],
    typer.Option("--scale", help="small: stand-ins for two cores; paper: the paper's data, model and sizes."),
]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="So many seeds, from the first on.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where run folders and results go.")]


def reproduce(
    context: typer.Context,
    name: Name = None,
    list_: Listing = False,
    rows: Rows = None,
    scale: Size = "small",
    seeds: Seeds = 1,
    sets: Sets = None,
    out: Out = Path("runs/reproduce"),
    resume: Resume = False,
    workers: Workers = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Run a table or figure of the papers, Lethe or COP, and put what it prints beside what is measured.

    With --resume, runs that are there are reused, also by other targets; interrupted ones are continued.
    """
    if list_:
        show_json(_listed()) if json else show(_list())
        return
    if name is None:
        raise ConfigError("reproduce: name a table or figure; `letheon reproduce --list` shows them")
    found = target(name)
    wanted = chosen_rows(found, rows or ())
    again = resume_command(context.ensure_object(Session).words)
    notice = f"{STOPPING}\n" if quiet or is_plain() else ""
    compute(stderr(), verbose=verbose)
    try:
        with stoppable(f"\nstopped at once; continue with:\n{again}\n", notice=notice) as stop:
            job = _Job(found, scale, seeds, tuple(sets or ()), out, resume, workers, quiet, stop)
            results = [job.row(row, shown=not json) for row in wanted]
        if json:
            show_json([asdict(comparison) for comparison in results])
    except Stopped as stopped:
        say(stderr(), f"stopped; what was done before is kept. Continue with:\n{again}")
        raise typer.Exit(stopped.code) from None


@dataclass(frozen=True)
class _Job:
    """One call of the command: its rows share everything but the experiment."""

    target: Target
    scale: Scale
    seeds: int
    sets: Sequence[str]
    out: Path
    resume: bool
    workers: int | None
    quiet: bool
    stop: Stop

    def row(self, row: str, *, shown: bool) -> Comparison:
        """Run a row with every seed, compare, write what came out, and show it."""
        from letheon.reproduce.comparison import compared
        from letheon.reproduce.running import experiment_of, experiments_of, keep

        found = recipe(self.target.rows[row], self.scale)
        first = experiment_of(self.target, row, self.scale, recipe=found, sets=self.sets)
        experiments = experiments_of(first, found, seeds=self.seeds, sets=self.sets)
        measured = [self._run(experiment, row) for experiment in experiments]
        comparison = compared(self.target, row, self.scale, recipe=found, changes=self.sets, found=measured)
        path = keep(comparison, self.out)
        if shown:
            _show(comparison, path)
        return comparison

    def _run(self, experiment: Experiment | Stream, row: str) -> Measured:
        from letheon.cli.run import position, run_as_it_is
        from letheon.pipeline import Run
        from letheon.reproduce import measured, streams
        from letheon.reproduce.running import check_device, run_folder

        check_device(experiment)
        console, folder = stderr(), run_folder(self.out, experiment)
        if not self.quiet:
            say(console, f"{self.target.id}, row {row}: {_which(experiment)}, run folder {folder}")
        with following(console, position(experiment), self.stop, quiet=self.quiet) as listener:
            done = run_as_it_is(experiment, folder, resume=self.resume, workers=self.workers, listener=listener)
        with waiting(console, "measuring", quiet=self.quiet):
            if isinstance(done, Run):
                return measured.measured(done, self.target.quantities, self.target.series, workers=self.workers)
            return streams.measured(done, self.target.series)


def _which(experiment: Experiment | Stream) -> str:
    from letheon.experiment import Experiment

    if isinstance(experiment, Experiment) and experiment.request.scope == "class":
        return f"seed {experiment.seed}, class {experiment.request.label}"
    return f"seed {experiment.seed}"


def _show(comparison: Comparison, path: Path) -> None:
    from letheon.reproduce.page import as_text

    show(as_text(comparison))
    say(stdout(), f"Written to {path}\n")


def _listed() -> list[dict[str, Any]]:
    """Every row of every target, with what it runs at each scale."""
    rows: list[dict[str, Any]] = []
    for found in targets().values():
        for row, experiment in found.rows.items():
            line: dict[str, Any] = {"target": found.id, "row": row, "title": found.published.title}
            for scale in SCALES:
                made = recipe(experiment, scale)
                methods = [_label(method) for method in (made.table["method"], *made.table["compare"])]
                line[scale] = {
                    "task": made.table["task"],
                    "clients": made.table.get("clients", 1),
                    "methods": methods,
                    "absent": dict(made.absent),
                    "needs": list(made.needs),
                    "classes": list(made.labels),
                    "departures": list(made.departures),
                }
            rows.append(line)
    return rows


def _label(method: Mapping[str, Any]) -> str:
    return f"{method['name']}{'+cop' if 'cop' in method else ''}"


def _list() -> Table:
    table = Table("target", "row", "what it shows", "runs", "missing", box=box.SIMPLE_HEAD)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    shown = ""
    for line in _listed():
        is_new, shown = line["target"] != shown, line["target"]
        small = line["small"]
        missing = [*small["needs"], *(f"method {method}" for method in small["absent"])]
        paper = [need for need in line["paper"]["needs"] if need not in small["needs"]]
        missing += [f"{need} (paper scale)" for need in paper]
        head = (line["target"], line["row"], line["title"]) if is_new else ("", line["row"], "")
        table.add_row(*head, ", ".join(dict.fromkeys(small["methods"])), ", ".join(missing) or "nothing")
    return table
