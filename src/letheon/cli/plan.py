"""``letheon plan``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from letheon.cli.options import Debug, File, Json, Sets, Verbose, Workers
from letheon.cli.terminal import compute, show, show_json, stderr
from letheon.cli.units import amount, duration

if TYPE_CHECKING:
    from letheon.plan import PhasePlan, Plan

AT_MOST = "≤"


def plan(
    file: File,
    sets: Sets = None,
    workers: Workers = None,
    json: Json = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Price an experiment before running it: rounds, samples, FLOPs, bytes, disk, and an estimate of time."""
    compute(stderr(), verbose=verbose)
    from letheon.cli.run import is_stream

    found = _stream(file, sets or ()) if is_stream(file, sets or ()) else _experiment(file, sets or (), workers)
    if json:
        show_json(asdict(found))
        return
    show(_table(found))
    show(_details(found))


def _stream(file: Path, sets: Sequence[str]) -> Plan:
    from letheon.stream.experiment import Stream
    from letheon.stream_plan import plan as priced

    return priced(Stream.load(file, sets))


def _experiment(file: Path, sets: Sequence[str], workers: int | None) -> Plan:
    from letheon.experiment import Experiment
    from letheon.plan import plan as priced

    return priced(Experiment.load(file, sets), workers=workers)


def _details(found: Plan) -> Table:
    """What has no column: time, disk and where the data come from."""
    crew = f"{found.workers} worker{'s' if found.workers > 1 else ''}"
    kept, peak = amount(found.disk_bytes, "B"), amount(found.disk_peak_bytes, "B")
    details = Table.grid(padding=(0, 2))
    if not found.total.is_exact:
        details.add_row(AT_MOST, "at most: what searches, or writes, may stop earlier")
    details.add_row("Run", found.digest)
    time = duration(found.total.seconds)
    details.add_row("Time", f"about {time} with {crew}: an estimate, from a second of timing on this machine")
    details.add_row("Disk", f"about {kept} in the end, {peak} on the way")
    for at, note in enumerate(found.notes):
        details.add_row("" if at else "Data", note)
    return details


def _table(found: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("model", footer="total", overflow="fold")
    table.add_column("phase", no_wrap=True)
    for name, footer in zip(("rounds", "samples", "FLOP", "down", "up", "time"), _cells(found.total), strict=True):
        table.add_column(name, footer=footer, justify="right", no_wrap=True)
    shown = ""
    for stage in found.stages:
        label = stage.stage.rpartition(".")[0] or stage.stage
        for phase in stage.phases:
            table.add_row("" if label == shown else label, phase.phase, *_cells(phase))
            shown = label
    return table


def _cells(phase: PhasePlan) -> list[str]:
    return [
        f"{AT_MOST if phase.rounds and not phase.is_exact else ''}{phase.rounds:,}",
        f"{phase.samples:,.0f}",
        amount(phase.flops, ""),
        amount(phase.bytes_down, "B"),
        amount(phase.bytes_up, "B"),
        duration(phase.seconds),
    ]
