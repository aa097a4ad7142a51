"""``letheon run``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from letheon.cli.interrupt import Stopped, stoppable
from letheon.cli.options import Cache, Debug, File, Json, Sets, Verbose, Workers
from letheon.cli.progress import STOPPING, Position, following, waiting
from letheon.cli.terminal import Session, compute, is_plain, say, show, show_json, stderr, stdout

if TYPE_CHECKING:
    from letheon.experiment import Experiment
    from letheon.pipeline import Run
    from letheon.stream.experiment import Stream
    from letheon.stream.life import StreamRun

Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Run folder; runs/FILE-seedSEED-DIGEST by default.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue, or reuse, what the run folder holds.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def run(
    context: typer.Context,
    file: File,
    sets: Sets = None,
    out: Out = None,
    resume: Resume = False,
    cache: Cache = None,
    workers: Workers = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Run an experiment: train, admit the request, unlearn with each method, train on, compare with Retrain.

    An experiment on a language model is a stream of requests, served one after another.
    Ctrl-C stops it; the same command with --resume continues after the last complete round.
    """
    console, again = stderr(), resume_command(context.ensure_object(Session).words)
    try:
        notice = f"{STOPPING}\n" if quiet or is_plain() else ""  # else the display says so
        with stoppable(f"\nstopped at once; continue with:\n{again}\n", notice=notice) as stop:
            with waiting(console, "starting", quiet=quiet):
                compute(console, verbose=verbose)
                experiment, position = _loaded(file, sets or ())
            folder = out or default_folder(file, experiment)
            if not quiet:
                say(console, f"{experiment.title or file.stem}\nseed {experiment.seed}, run folder {folder}")
            with following(console, position, stop, quiet=quiet) as listener:
                done = run_as_it_is(experiment, folder, resume=resume, cache=cache, workers=workers, listener=listener)
            with waiting(console, "computing the results, writing the report", quiet=quiet):
                rows, path = _results(done)
        show_json(rows) if json else _show(done, rows, path)
    except Stopped as stopped:
        say(console, f"stopped; what was done before is kept. Continue with:\n{again}")
        raise typer.Exit(stopped.code) from None


def resume_command(words: Sequence[str]) -> str:
    """What to type to continue a run that ``words`` began."""
    return shlex.join(["letheon", *words, *([] if "--resume" in words else ["--resume"])])


def default_folder(file: Path, experiment: Experiment | Stream) -> Path:
    """Named by file, seed and digest: other settings never share a folder."""
    return Path("runs") / f"{file.stem}-seed{experiment.seed}-{experiment.digest[:8]}"


# What follows imports torch, hence not at the top.


def _loaded(file: Path, sets: Sequence[str]) -> tuple[Experiment | Stream, Position]:
    from letheon.experiment import Experiment
    from letheon.stream.experiment import Stream

    experiment = Stream.load(file, sets) if is_stream(file, sets) else Experiment.load(file, sets)
    return experiment, position(experiment)


def position(experiment: Experiment | Stream) -> Position:
    """The start of a run: which stages it has."""
    from letheon.experiment import Experiment
    from letheon.plan import stages_of
    from letheon.stream.life import stage_names

    if not isinstance(experiment, Experiment):
        return Position(stage_names(experiment))
    return Position([(name, {phase.name: phase.rounds for phase in phases}) for name, phases in stages_of(experiment)])


def is_stream(file: Path, sets: Sequence[str]) -> bool:
    """Whether the experiment in a file is on a language model, by the name of its task."""
    from letheon import config, registry

    table = config.read(file)
    for override in sets:
        table = config.override(table, override)
    task = table.get("task")
    name = task.get("name") if isinstance(task, dict) else task
    return isinstance(name, str) and name in registry.names("task", language=True)


def run_as_it_is(experiment: Experiment | Stream, folder: Path, **how: Any) -> Run | StreamRun:
    """Run an experiment, or a stream."""
    from letheon import pipeline
    from letheon.experiment import Experiment
    from letheon.stream import life

    if not isinstance(experiment, Experiment):
        return life.run(experiment, folder, **how)
    if experiment.flower is None:
        return pipeline.run(experiment, folder, **how)
    from letheon.federation import local

    return local.run(experiment, folder, **how)


def _results(done: Run | StreamRun) -> tuple[list[dict[str, Any]], Path]:
    """The rows of the table, as the artefacts have them: intervals take seconds, once is enough."""
    from letheon.pipeline import Run
    from letheon.report import html, streams

    if isinstance(done, Run):
        path = html.write_artefacts(done)
        rows: list[dict[str, Any]] = loads((done.folder / "results.json").read_text())
        return rows, path
    path = streams.write_artefacts(done)
    return loads((done.folder / "results.json").read_text())["rows"], path


def _show(done: Run | StreamRun, rows: list[dict[str, Any]], path: Path) -> None:
    from letheon.pipeline import Run
    from letheon.report import requests, stream_table
    from letheon.report.table import as_text

    show(as_text(rows) if isinstance(done, Run) else stream_table.as_text(rows))
    if not isinstance(done, Run):
        asked = loads((done.folder / "results.json").read_text())["apart"]
        if asked:
            show(stream_table.apart_as_text(asked))
    matrix = requests.known(done) if isinstance(done, Run) else ()
    if matrix:
        show(requests.as_text(matrix))
    say(stdout(), f"Report: {path}")
