"""Several requests, one after another or together: what is known of each after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from letheon.metrics.interval import share
from letheon.pipeline import Run
from letheon.report.words import digits, spread


@dataclass(frozen=True, slots=True)
class Known:
    """One row of the matrix.

    Attributes:
        label: of the method, or ``origin``.
        after: what has just been done.
        retention: KR of each request in per cent, with its 95 % interval (Wilson); by number, as ``Population.views``
            has them.
    """

    label: str
    after: str
    retention: Mapping[str, str]


def known(run: Run) -> tuple[Known, ...]:
    """The matrix of KR of a run with several requests; empty with one."""
    steps = [f"request {number}" for number in range(1, len(run.population.requests) + 1)]
    after = {"origin": ["training"]}
    if not run.known:
        return ()
    return tuple(
        Known(label, step, _shares(run, row))
        for label in ("origin", *run.experiment.methods)
        for step, row in zip(after.get(label, [*steps, "continued training"]), run.known[label], strict=True)
    )


def _shares(run: Run, row: Sequence[float]) -> dict[str, str]:
    shares = {}
    for value, (number, population) in zip(row, run.population.views.items(), strict=True):
        n = population.forget_size
        measured = share(round(value * n / 100.0), n)
        shares[number] = spread(value, measured.low, measured.high, digits(n))
    return shares


def as_text(rows: Sequence[Known]) -> Table:
    """For the terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="KR % of each request", title_justify="left")
    for name in ("method", "after", *(f"request {number}" for number in rows[0].retention)):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(row.label, row.after, *row.retention.values())
    return table
