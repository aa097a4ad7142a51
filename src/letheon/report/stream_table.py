"""The table of one or more streams: forgetting after each request over all texts so far, and utility."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from letheon.errors import ConfigError
from letheon.folder import EXPERIMENT, read
from letheon.metrics.text.degenerate import LIMIT
from letheon.report.words import spread
from letheon.results import ranges
from letheon.stream.results import CONTINUED, TITLES

Row = Mapping[str, Any]
SHOWN = ("rouge", "es", "em", "truth_ratio", "kr")
"""Scores of the table; all are in results.json."""
WITHOUT_RATIOS = ("rouge", "es", "em", "probability")
"""The same where the questions have no false answers."""
WORDS: Mapping[str, str] = {"rouge": "ROUGE-L"}
"""What a score is called where it is not about forgetting."""
LEFT_OUT = ("probability", "em")
"""Scores of what is asked apart that only results.json has."""


def is_stream(folder: Path) -> bool:
    """Whether the run in a folder is a stream of requests."""
    path = folder / EXPERIMENT
    return path.is_file() and "train_rounds" in (told := read(path)["experiment"]) and "request" not in told


def read_rows(folder: Path) -> list[Row]:
    """The rows of a finished stream.

    Raises:
        ConfigError: it is not finished.
    """
    path = folder / "results.json"
    if not path.is_file():
        raise ConfigError(f"{folder}: the stream is not complete; finish it with --resume")
    rows: list[Row] = json.loads(path.read_text())["rows"]
    return rows


def heads(rows: Sequence[Row]) -> list[str]:
    """Names of the columns."""
    first = " or ".join(dict.fromkeys(row["first_set"] for row in rows))
    return ["method", "after", *(f"{TITLES[name]} %" for name in _shown(rows)), f"MU of {first} %", "MU %"]


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """The table as text: of one run with intervals over questions, of several with mean and range over seeds."""
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["after"]), {}).setdefault(row["run"], row)
    names = (*_shown(rows), "mu_first", "mu")
    return [
        [method, _after(method, after), *(_cell(list(found.values()), name) for name in names)]
        for (method, after), found in groups.items()
    ]


def _shown(rows: Sequence[Row]) -> Sequence[str]:
    return SHOWN if all("truth_ratio" in row for row in rows) else WITHOUT_RATIOS


def _cell(rows: Sequence[Row], name: str) -> str:
    if len(rows) == 1:
        return spread(rows[0][name], rows[0][f"{name}_low"], rows[0][f"{name}_high"], 1)
    found = ranges(rows, name)
    if found is None:
        return "–"
    mean, least, most, count = found
    return f"{mean:.1f} ({least:.1f}–{most:.1f}){f', n = {count}' if count < len(rows) else ''}"


def _after(method: str, after: str) -> str:
    if after == CONTINUED:
        return CONTINUED
    return f"(of {after})" if method == "origin" else f"request {after}"


def caption(rows: Sequence[Row]) -> str:
    """What the brackets mean, and which models are broken."""
    runs = {row["run"]: row["seed"] for row in rows}
    told = f"{len(runs)} runs, seeds {', '.join(map(str, sorted(runs.values())))}: mean and range."
    told = "In brackets: 95 % intervals over questions." if len(runs) == 1 else told
    return f"{told} {broken(rows)}".rstrip()


def broken(rows: Sequence[Row]) -> str:
    """Which models did not forget but broke, in any of the runs; empty if none did."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["degenerate"] is not None and row["degenerate"] > LIMIT:
            after = found.setdefault(row["method"], [])
            after += [] if row["after"] in after else [row["after"]]
    if not found:
        return ""
    models = "; ".join(f"{method} after {', '.join(after)}" for method, after in found.items())
    return (
        f"Broken rather than forgetful, since more than {LIMIT:g} % of what they write about the texts to forget is "
        f"empty or the same over and over: {models}."
    )


def as_text(rows: Sequence[Row]) -> Table:
    """For the terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption(rows), caption_justify="left")
    for name in heads(rows):
        table.add_column(name, overflow="fold")
    for line in lines(rows):
        table.add_row(*line)
    return table


def as_markdown(rows: Sequence[Row]) -> str:
    """For documents."""
    table = [heads(rows), ["---"] * len(heads(rows)), *lines(rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in table) + f"\n\n{caption(rows)}\n"


def apart(rows: Sequence[Row]) -> list[list[str]]:
    """What was asked beside the table's questions: a line a group, a column for each model after the last request.

    The first line holds the heads.
    """
    last = max((row["requests"] for row in rows), default=0)
    shown = [row for row in rows if row["requests"] == last and row["score"] not in LEFT_OUT]
    models = list(dict.fromkeys((row["method"], row["after"]) for row in shown))
    names = [method if after != CONTINUED else f"{method}, {CONTINUED}" for method, after in models]
    found: dict[tuple[str, str, str], dict[tuple[str, str], str]] = {}
    for row in shown:
        line = found.setdefault((row["set"], row["group"], row["score"]), {})
        places = 1 if row["score"] in SHOWN else 3
        line[row["method"], row["after"]] = spread(row["value"], row["value_low"], row["value_high"], places)
    told = [
        [
            name,
            group or "all",
            f"{WORDS.get(score, TITLES[score])}{' %' if score in SHOWN else ''}",
            *(line.get(at, "–") for at in models),
        ]
        for (name, group, score), line in found.items()
    ]
    return [["questions", "of them", "score", *names], *told]


def apart_as_text(rows: Sequence[Row]) -> Table:
    """The same for a terminal."""
    head, *told = apart(rows)
    table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False)
    for line in told:
        table.add_row(*line)
    return table


def as_csv(rows: Iterable[Row]) -> str:
    """All numbers, a row each."""
    rows, out = list(rows), StringIO()
    fields = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, fields, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
