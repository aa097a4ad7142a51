"""Diagnostics as tables: what `letheon diagnose` prints and the report shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from letheon.diagnostics.suite import kept
from letheon.pipeline import Run
from letheon.report.words import DOES_NOT_SHOW, amount

Row = Mapping[str, Any]
Write = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What `letheon diagnose` found out about a run.

    Attributes:
        found: as in ``diagnostics.json``.
        subjects: labels of the models: Origin, Retrain, the methods, and a random step as long as ``main``'s.
        main: label of the method of interest.
    """

    found: Mapping[str, Any]
    subjects: tuple[str, ...]
    main: str

    def rows(self, section: str) -> Mapping[str, Row]:
        """The rows of a section by label, in the order of ``subjects``; empty if it was not measured."""
        rows = self.found["sections"].get(section, {"rows": {}})["rows"]
        others = [label for label in rows if label not in self.subjects]
        return {label: rows[label] for label in [*self.subjects, *others] if label in rows}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: the field of a section that it shows, and how its numbers are written.

    ``is_rare``: left out where no model has a value.
    """

    name: str
    section: str
    field: str
    write: Write
    is_rare: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A value and its interval as text."""

    value: str
    interval: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as text."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Cell, ...]], ...]
    notes: tuple[str, ...]


def _signed(value: float) -> str:
    return f"{value:+.3f}"


def _plain(value: float) -> str:
    return f"{value:.3f}"


def _share(value: float) -> str:
    return f"{value:.1f}"


COLUMNS: dict[str, tuple[Column, ...]] = {
    "How easily does it return?": (
        Column("RT", "rollback", "rt", _signed),
        Column("recovers in rounds", "connectivity", "recovery_rounds", amount),
        Column("barrier, nats", "connectivity", "barrier", _plain),
        Column("fresh BatchNorm", "connectivity", "barrier_recalibrated", _plain, is_rare=True),
        Column("barrier / distance", "connectivity", "barrier_per_distance", _plain),
        Column("relearns in rounds", "relearning", "relearn_rounds", amount),
        Column("in steps", "relearning", "relearn_steps", amount),
    ),
    "Is it still in the features?": (
        Column("FD", "features", "fd", amount),
        Column("FD / retained", "features", "fd_relative", _plain),
        Column("probe accuracy %", "probe", "accuracy", _share),
        Column("probe AUC", "probe", "auc", _plain),
    ),
    "Can members be told from strangers?": (
        Column("MIA AUC", "membership", "auc", _plain),
        Column("TPR % at FPR 1 %", "membership", "tpr_at_1", _share),
        Column("at FPR 0.1 %", "membership", "tpr_at_0.1", _share),
    ),
}
COURSES: dict[str, Callable[[Row], Sequence[float]]] = {
    "recovery_rounds": lambda row: row["course"],
    "relearn_rounds": lambda row: row["courses"]["rounds"],
    "relearn_steps": lambda row: row["courses"]["steps"],
}
"""How far training went where the knowledge did not return."""
NOTES: dict[str, tuple[str, str]] = {
    "rollback": (
        "RT",
        "cosine of each round's update and the way back to Origin (Eq. 24): mean [least, largest] over the first "
        "rounds of continued training, not an interval. A random step has RT near 0 too.",
    ),
    "connectivity": (
        "Recovery and barrier",
        "rounds of training on all data until 95 % of Origin's KR is back, and the height of the loss on the data to "
        "forget between the two models over the straight line; fresh BatchNorm: with its statistics taken anew. "
        "Over a longer way there is a higher barrier for free.",
    ),
    "relearning": ("Relearning", "training on the data to forget alone until half of Origin's KR is back."),
    "features": (
        "FD",
        "mean squared distance of the penultimate features of the data to forget to their centre. It grows with their "
        "norm, hence the ratio to that of retained test images.",
    ),
    "membership": (
        "MIA",
        "one threshold on the model's confidence, against held-out images, with the trigger where there is one. "
        "Compare with Retrain: far below its AUC is a leak as well.",
    ),
    "probe": (
        "Probe",
        "logistic regression from penultimate features to whether the trigger is on a held-out image; chance is 50 %, "
        "and untrained features show some of it as well.",
    ),
}


def diagnostics_of(run: Run, only: Sequence[str] | None = None) -> Diagnostics | None:
    """What was found out about the models of a run, or some sections of it; None if nothing was."""
    found = kept(run)
    if found is None:
        return None
    if only is not None:
        found = found | {"sections": {name: part for name, part in found["sections"].items() if name in only}}
    return Diagnostics(found, tuple(found["subjects"]), found["main"])


def grids(told: Diagnostics) -> list[Grid]:
    """The tables, without the columns that were not measured."""
    made = []
    for title, columns in COLUMNS.items():
        shown = [column for column in columns if _is_shown(told, column)]
        if shown:
            labels = list(dict.fromkeys(label for column in shown for label in told.rows(column.section)))
            lines = [(label, tuple(_cell(told, column, label) for column in shown)) for label in labels]
            names = ("model", *(column.name for column in shown))
            made.append(Grid(title, names, tuple(lines), tuple(_notes(told, shown))))
    return made


def _is_shown(told: Diagnostics, column: Column) -> bool:
    rows = told.rows(column.section).values()
    return any(row.get(column.field) is not None for row in rows) if column.is_rare else bool(rows)


def _cell(told: Diagnostics, column: Column, label: str) -> Cell:
    row, field = told.rows(column.section).get(label), column.field
    if row is None or row["undefined"]:
        return Cell("–")
    if row[field] is None:
        course = COURSES.get(field)
        more = course is not None and str(row[f"{field}_reason"]).startswith("more than")
        return Cell(f"> {len(course(row)) - 1}" if course and more else "–")
    low, high = row[f"{field}_low"], row[f"{field}_high"]
    ends = [column.write(end) if end is not None else "…" for end in (low, high)]
    return Cell(column.write(row[field]), f"[{ends[0]}, {ends[1]}]")


def _notes(told: Diagnostics, columns: Sequence[Column]) -> list[str]:
    """What the columns are, what is undefined and why, and rounds that did not come out as in the run."""
    measured = list(dict.fromkeys(column.section for column in columns))
    notes = [f"{name}: {text}" for name, text in (NOTES[section] for section in measured)]
    reasons: dict[str, list[str]] = {}
    for column in columns:
        for label, row in told.rows(column.section).items():
            reason = row["undefined"] or row[f"{column.field}_reason"]
            if reason and label not in reasons.setdefault(f"{column.name} undefined, {reason}", []):
                reasons[f"{column.name} undefined, {reason}"].append(label)
    notes += [f"{', '.join(labels)}: {reason}." for reason, labels in reasons.items()]
    for label, row in told.rows("rollback").items() if "rollback" in measured else ():
        if row.get("redriven") is False:
            which = f"round {row['differs_in_round']} of continued training"
            notes.append(f"{label}: {which} did not come out as in the run; RT is that of the new rounds.")
    return notes


def as_text(told: Diagnostics) -> list[Table]:
    """For the terminal; intervals go under their values."""
    return [_table(grid) for grid in grids(told)]


def _table(grid: Grid) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(grid.columns):
        table.add_column(name, justify="right" if i else "left", overflow="fold")
    for label, cells in grid.lines:
        table.add_row(Text(label), *(Text(f"{cell.value}\n{cell.interval}".rstrip()) for cell in cells))
    whole = Table.grid()
    whole.add_row(Text(grid.title, style="bold"))
    whole.add_row(table)
    whole.add_row(Text("\n".join(grid.notes)))
    return whole


def limits(told: Diagnostics | None) -> tuple[str, ...]:
    """What a report does not show, given what was diagnosed."""
    if told is None:
        return DOES_NOT_SHOW
    attacks = {"membership": "membership inference", "relearning": "relearning", "probe": "a linear probe"}
    tried = [name for section, name in attacks.items() if told.rows(section)]
    if not tried:
        return DOES_NOT_SHOW
    missing = [name for section, name in attacks.items() if not told.rows(section)]
    text = (
        f"Of attacks, {_listed(tried)} {'was' if len(tried) == 1 else 'were'} run in the simple forms described above; "
        f"stronger ones may see more. Not run: {_listed([*missing, 'reconstruction'])}. Continued training used the "
        "retained data only; what happens after its last round is not known."
    )
    return tuple(text if item.startswith("No membership inference") else item for item in DOES_NOT_SHOW)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
