"""The comparison table: rows of one or more runs, for terminals, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from letheon.pipeline import Run
from letheon.report.model import rows_of
from letheon.report.words import STATUS, amount, digits, spread
from letheon.results import ranges

Row = Mapping[str, Any]
COLUMNS = ("method", "MU %", "U-KR %", "CT-KR max %", "RR %", "rounds", "MB", "GFLOP", "seconds", "verdict")
_SHARES = ("mu", "u_kr", "ct_kr_max")


@dataclass(frozen=True, slots=True)
class Summary:
    """A method over its runs.

    Attributes:
        method: its label.
        setting: digest of everything but the seed; rows of different settings are never averaged.
        rows: one for each run.
        ranges: for each number, its mean, minimum, maximum and count over the runs where it is defined.
        rr_statuses: how often RR was not defined, by status.
        verdicts: how often each verdict fell.
    """

    method: str
    setting: str
    rows: tuple[Row, ...]
    ranges: Mapping[str, tuple[float, float, float, int] | None]
    rr_statuses: Mapping[str, int]
    verdicts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table as text; it stands out if the method passed in every run."""

    cells: tuple[str, ...]
    stands_out: bool


@dataclass(frozen=True, slots=True)
class Sheet:
    """The table as text, whatever it will be printed on."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    caption: str
    notes: tuple[str, ...]


def compare_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One object for each run and method: the rows of ``Results``, and the ``setting`` that seeds of a method share."""
    return [row for run in runs for row in rows_of(run)]


def summary(rows: Sequence[Row]) -> list[Summary]:
    """Methods over their runs, in the order of their first row. The same run given twice counts once."""
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["setting"]), {}).setdefault(row["run"], row)
    return [_summary(method, setting, tuple(runs.values())) for (method, setting), runs in groups.items()]


def _summary(method: str, setting: str, rows: tuple[Row, ...]) -> Summary:
    numbers = [key for key, value in rows[0].items() if _is_number(value) or key == "rr"]
    statuses = Counter(row["rr_status"] for row in rows if row["rr_status"])
    verdicts = Counter(row["verdict"] for row in rows)
    return Summary(method, setting, rows, {key: ranges(rows, key) for key in numbers}, statuses, verdicts)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def sheet(rows: Sequence[Row]) -> Sheet:
    """The comparison table. A void run ranks nothing: its reasons stand under the table and no line stands out."""
    groups = summary(rows)
    names = Counter(group.method for group in groups)
    can_rank = not any(row["rr_status"] == "void" for row in rows)
    lines = []
    for group in groups:
        name = group.method if names[group.method] == 1 else f"{group.method} · {group.setting[:6]}"
        runs = f" ({len(group.rows)} runs)" if len(group.rows) > 1 else ""
        cells = _several(group) if runs else _one(group.rows[0])
        stands_out = can_rank and all(_verdict(row) == "pass" for row in group.rows)
        lines.append(Line((name + runs, *cells), stands_out))
    return Sheet(COLUMNS, tuple(lines), _caption(rows, groups), tuple(_notes(groups)))


def _one(row: Row) -> tuple[str, ...]:
    mu, kr = digits(row["n_test"]), digits(row["n_forget"])
    shares = [spread(row[key], row[f"{key}_low"], row[f"{key}_high"], mu if key == "mu" else kr) for key in _SHARES]
    rate = STATUS[row["rr_status"]] if row["rr_status"] else spread(row["rr"], row["rr_low"], row["rr_high"], kr)
    megabytes = (row["bytes_up"] + row["bytes_down"]) / 1e6
    costs = [amount(value) for value in (row["rounds"], megabytes, row["flops"] / 1e9, row["seconds"])]
    return (*shares, rate, *costs, _verdict(row))


def _several(group: Summary) -> tuple[str, ...]:
    rows, count = group.rows, len(group.rows)
    mu, kr = digits(_least(rows, "n_test")), digits(_least(rows, "n_forget"))
    shares = [_range(group.ranges[key], mu if key == "mu" else kr) for key in _SHARES]
    traffic = ranges([{"mb": (row["bytes_up"] + row["bytes_down"]) / 1e6} for row in rows], "mb")
    computed = ranges([{"gflop": row["flops"] / 1e9} for row in rows], "gflop")
    costs = [group.ranges["rounds"], traffic, computed, group.ranges["seconds"]]
    verdicts = "; ".join(f"{verdict} {n}/{count}" for verdict, n in sorted(_verdicts(rows).items()))
    return (*shares, _rates(group), *(amount(cost[0]) if cost else "–" for cost in costs), verdicts)


def _least(rows: Iterable[Row], key: str) -> int:
    return min(int(row[key]) for row in rows)


def _range(found: tuple[float, float, float, int] | None, places: int) -> str:
    return spread(*found[:3], places) if found else "–"


def _rates(group: Summary) -> str:
    """RR where it is defined, then how often it is not and why."""
    undefined = [f"{STATUS[status]} {n}" for status, n in sorted(group.rr_statuses.items())]
    found = group.ranges["rr"]
    if found is None:
        return "; ".join(undefined)
    text = spread(*found[:3], digits(_least(group.rows, "n_forget")))
    return f"{text} ({found[3]} of {len(group.rows)} runs; {'; '.join(undefined)})" if undefined else text


def _verdict(row: Row) -> str:
    is_reference = row["method"] == "retrain" and row["verdict"] == "pass"
    return "reference" if is_reference else str(row["verdict"])


def _verdicts(rows: Iterable[Row]) -> Counter[str]:
    return Counter(_verdict(row) for row in rows)


def _caption(rows: Sequence[Row], groups: Sequence[Summary]) -> str:
    forgotten, tested = _extent(row["n_forget"] for row in rows), _extent(row["n_test"] for row in rows)
    several = any(len(group.rows) > 1 for group in groups)
    spans = "mean [min, max] over runs" if several else "in brackets: 95 % intervals over samples"
    if several and any(len(group.rows) == 1 for group in groups):
        spans += "; where no number of runs is given: one run, and its 95 % interval over samples"
    return f"n = {forgotten} samples to forget, {tested} test images; {spans}."


def _extent(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _notes(groups: Sequence[Summary]) -> list[str]:
    """Under the table: void runs with their reasons, and with one run, why methods failed."""
    rows = [row for group in groups for row in group.rows]
    void = [row for row in rows if row["rr_status"] == "void"]
    notes = [f"Run {row['run']} (seed {row['seed']}) ranks no method: {row['rr_reason']}." for row in void]
    said = [row for row in rows if row.get("caveat") and row not in void]
    notes += [f"Run {row['run']} (seed {row['seed']}): {row['caveat']}." for row in said]
    if any(row["control"] is None for row in rows):
        notes.append("No fine-tuning was run beside the methods: whether the run can tell them apart was not checked.")
    notes = list(dict.fromkeys(notes))
    if len({row["run"] for row in rows}) == 1:
        notes += [f"{row['method']}: {'; '.join(row['verdict_reasons'])}." for row in rows if row["verdict"] == "fail"]
    return notes


def as_text(rows: Sequence[Row]) -> Table:
    """For the terminal: where there is little room, intervals go under their values, then costs under the metrics."""
    content = sheet(rows)
    whole = Table.grid()
    parts = (_table(content, (0, 1, 2, 3, 4, 9)), _table(content, (0, 5, 6, 7, 8)))
    whole.add_row(_Fitting(_table(content, range(10)), parts))
    whole.add_row(Text("\n".join([content.caption, *content.notes])))
    return whole


def _table(content: Sheet, chosen: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i in chosen:
        name = content.columns[i]
        is_cost = i in range(5, 9)
        side: Literal["left", "right"] = "right" if is_cost else "left"
        table.add_column(name.replace(" %", "\u00a0%"), justify=side, no_wrap=is_cost, overflow="fold")
    for line in content.lines:
        cells = [_Cell(line.cells[i]) if i else Text(line.cells[i]) for i in chosen]
        table.add_row(*cells, style="bold" if line.stands_out else None)
    return table


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The whole table, or its parts where the whole does not fit."""

    whole: Table
    parts: tuple[Table, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update(width=10_000), self.whole).minimum
        yield from (self.whole,) if needed <= options.max_width else self.parts

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        whole = Measurement.get(console, options.update(width=10_000), self.whole)
        return Measurement(1, whole.maximum).with_maximum(options.max_width)


@dataclass(frozen=True, slots=True)
class _Cell:
    """Text that breaks before its brackets and after semicolons. It is never read as markup."""

    text: str

    @property
    def _parts(self) -> list[str]:
        return self.text.replace(" [", "\n[").replace(" (", "\n(").replace("; ", ";\n").split("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fits = len(self.text) <= options.max_width
        yield Text(self.text if fits else "\n".join(self._parts))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(len, self._parts)), len(self.text)).with_maximum(options.max_width)


def as_csv(rows: Sequence[Row]) -> str:
    """All fields of all rows; undefined numbers are empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "; ".join(v) if isinstance(v, list) else v for key, v in row.items()} for row in rows)
    return out.getvalue()


def as_markdown(rows: Sequence[Row]) -> str:
    """A pipe table with its caption and notes."""
    content = sheet(rows)
    aligned = ["---" if name in ("method", "verdict") else "---:" for name in content.columns]
    lines = [_piped(content.columns), _piped(aligned)]
    for line in content.lines:
        cells = [escaped(cell) for cell in line.cells]
        lines.append(_piped([f"**{cells[0]}**", *cells[1:]] if line.stands_out else cells))
    under = [escaped(text) for text in (content.caption, *content.notes)]
    return "\n".join(lines) + "\n\n" + "\n\n".join(under) + "\n"


def _piped(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text that Markdown prints as it is."""
    for mark in "\\|*_<>`":
        text = text.replace(mark, f"\\{mark}")
    return text
