"""A comparison for people: Markdown for the docs, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from letheon.report.table import escaped
from letheon.report.words import spread
from letheon.reproduce.comparison import Comparison, Entry
from letheon.reproduce.measured import Drawn
from letheon.reproduce.quantities import QUANTITIES

MINUS = "\u2212"
MOST = 12
"""Columns of a series that are printed; the JSON file has all."""
ROUNDS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


def as_markdown(found: Comparison) -> str:
    """A section of a page: the table, whether orders and sentences hold, the series, and what to know about it."""
    parts = [
        f"## {found.source}, row {found.row}, {found.scale} scale",
        f"{found.title}. Cells: published / measured (difference; for costs the quotient). {_runs(found)}"
        + ("; measured values are mean [min, max] over runs." if len(found.runs) > 1 else "."),
        *(_grid(["method", *columns], _lines(found, columns)) for columns in _panels(found)),
    ]
    if found.orders:
        parts += ["### Order of the methods", _bullets(orders(found))]
    if found.claims:
        parts += ["### What the text says", _bullets(claims(found))]
    for drawn in found.series:
        parts += [f"### {drawn.title}", _grid([drawn.axis, *_heads(drawn)], _courses(drawn))]
    parts += ["### How this was measured", _bullets(notes(found))]
    return "\n\n".join(parts) + "\n"


def _runs(found: Comparison) -> str:
    """``Seeds: 0, 1; classes: 0, 4, 9``."""
    labels = dict.fromkeys(str(run.label) for run in found.runs if run.label is not None)
    said = f"Seeds: {', '.join(dict.fromkeys(str(run.seed) for run in found.runs))}"
    return said + (f"; {'class' if len(labels) == 1 else 'classes'}: {', '.join(labels)}" if labels else "")


def as_text(found: Comparison) -> Table:
    """The same for the terminal."""
    whole = Table.grid()
    whole.add_row(Text(f"{found.source}, row {found.row}, {found.scale} scale", style="bold"))
    for columns in _panels(found):
        whole.add_row(_table(["method", *columns], _lines(found, columns)))
    said = [f"published / measured (difference; costs: quotient). {_runs(found)}", *orders(found), *claims(found)]
    for line in said:
        whole.add_row(Text(line))
    for drawn in found.series:
        whole.add_row(Text(f"\n{drawn.title}, {drawn.axis}:", style="bold"))
        whole.add_row(_table(["method", *_heads(drawn)], _courses(drawn)))
    for line in notes(found):
        whole.add_row(Text(line, style="dim"))
    return whole


def orders(found: Comparison) -> list[str]:
    """One line for each column that the paper prints."""
    lines = []
    for column, order in found.orders.items():
        counted = f"{order.same} of {order.pairs} pairs in the published order"
        close = f", {order.unresolved} too close to tell" if order.unresolved else ""
        said = f"{order.status}: {counted}{close}" if order.status != "undefined" else f"undefined: {order.reason}"
        out = [f"{method} left out: {why}" for method, why in order.left_out.items()]
        lines.append("; ".join([f"{column} {said}", *order.reversed, *out]))
    return lines


def claims(found: Comparison) -> list[str]:
    """One line for each sentence."""
    return [f"{c.status}: {c.text}" + (f" ({c.reason})" if c.reason else "") for c in found.claims]


def notes(found: Comparison) -> list[str]:
    """What one has to know about the numbers."""
    named: dict[str, list[str]] = {}
    for column, key in found.columns.items():
        named.setdefault(QUANTITIES[key].meaning, []).append(column)
    lines = ["; ".join(f"{', '.join(columns)}: {meaning}" for meaning, columns in named.items())]
    if found.scale == "small":
        lines.append("Small scale: compare the order of the methods, not the values.")
    lines.append(
        "Methods run with their defaults here wherever the paper gives no setting, which is nearly everywhere."
    )
    lines += [f"Not as in the paper, or left open by it: {text}." for text in found.departures]
    lines += [f"Changed on the command line: {text}." for text in found.changes]
    lines += [f"Not run: {method} ({why})." for method, why in found.absent.items()]
    for run in (run for run in found.runs if run.void):
        which = f"seed {run.seed}" + ("" if run.label is None else f", class {run.label}")
        lines.append(f"Run {run.digest} ({which}) ranks no method: {run.void}.")
    return lines


def cell(entry: Entry, key: str) -> str:
    """``97.86 / 97.0 [96.6, 97.5] (−0.9)``."""
    unit = QUANTITIES[key].unit
    if unit == "ratio" and entry.published is not None and not isinstance(entry.published, str):
        published, value = _power(entry.published), "–" if entry.measured is None else _power(entry.measured)
    else:
        is_cost = key in ("bytes", "flops") and entry.measured is not None
        published = _printed(entry.published, QUANTITIES[key].decimals)
        value = (
            _power(entry.measured or 0.0) if is_cost else spread(entry.measured, entry.low, entry.high, entry.places)
        )
    states = "; ".join(f"{state} {n}" if entry.runs + n > 1 else state for state, n in entry.states.items())
    if states:
        value = states if entry.measured is None else f"{value}; {states}"
    if entry.difference is None:
        return f"{published} / {value}"
    change = f"×{entry.difference:.3g}" if unit == "ratio" else _signed(entry.difference, entry.places)
    return f"{published} / {value} ({change})"


def _signed(value: float, places: int) -> str:
    text = f"{value:+.{places}f}".replace("-", MINUS)
    return text if float(f"{value:.{places}f}") else f"±{text[1:]}"


def _printed(value: float | str | None, decimals: int) -> str:
    return "–" if value is None else value if isinstance(value, str) else f"{value:.{decimals}f}"


def _power(value: float) -> str:
    """As the paper writes costs: ``7.15e10``."""
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits}e{int(power)}"


def _panels(found: Comparison) -> list[list[str]]:
    """The columns, in tables that are not too wide."""
    columns = list(found.columns)
    wide = found.panel or len(columns)
    return [columns[start : start + wide] for start in range(0, len(columns), wide)]


def _lines(found: Comparison, columns: Sequence[str]) -> list[list[str]]:
    by_place = {(entry.method, entry.column): entry for entry in found.entries}
    methods = dict.fromkeys(entry.method for entry in found.entries)
    return [
        [method, *(cell(by_place[method, column], found.columns[column]) for column in columns)] for method in methods
    ]


def _shown(drawn: Drawn) -> list[int]:
    """Which positions of a series are printed."""
    if len(drawn.at) <= MOST:
        return list(range(len(drawn.at)))
    if drawn.axis == "round":
        return [i for i, at in enumerate(drawn.at) if at in ROUNDS or i == len(drawn.at) - 1]
    return [i * (len(drawn.at) - 1) // (MOST - 2) for i in range(MOST - 1)]


def _heads(drawn: Drawn) -> list[str]:
    return [f"{drawn.at[i]:g}" for i in _shown(drawn)]


def _courses(drawn: Drawn) -> list[list[str]]:
    def told(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}".replace("-", MINUS)

    return [[label, *(told(course[i]) for i in _shown(drawn))] for label, course in drawn.values.items()]


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, overflow="fold")
    for line in lines:
        table.add_row(*(Text(text) for text in line))
    return table


def _grid(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines]
    return "\n".join(f"| {' | '.join(map(escaped, row))} |" for row in rows)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)
