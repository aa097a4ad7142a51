"""From finished runs to the quantities that the paper's tables and figures are about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from letheon.curve import Point
from letheon.metrics.measurement import Undefined
from letheon.pipeline import Run
from letheon.report.html import write_artefacts
from letheon.report.words import WHY
from letheon.reproduce.quantities import QUANTITIES
from letheon.reproduce.targets import Series
from letheon.results import total

DIAGNOSED: dict[str, tuple[str, str]] = {
    "dispersion": ("features", "fd_relative"),
    "rollback": ("rollback", "rt"),
    "barrier": ("connectivity", "barrier"),
}
"""Quantities that are no metric: the section of ``letheon diagnose``, and the field in its rows."""
DRAWN: dict[Series, str] = {"rollback": "rollback", "path": "connectivity"}
"""Series that come from a section of ``letheon diagnose``."""
EARLY = 5

Row = Mapping[str, Any]
Value = float | Undefined


@dataclass(frozen=True, slots=True)
class Drawn:
    """A series of one run.

    Attributes:
        title: what is drawn, with its unit.
        axis: what ``at`` counts.
        at: where the values lie.
        values: by method; None where there is none.
    """

    title: str
    axis: str
    at: tuple[float, ...]
    values: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of one run.

    Attributes:
        seed, digest: of its experiment.
        void: why it ranks no method; empty if it does.
        collapsed: methods whose model is destroyed: what it retains then says nothing.
        n_forget, n_test: samples that shares rest on.
        values: by method and quantity. ``origin`` is the model before the request.
        series: what a figure draws.
        label: the class that went, at class level.
    """

    seed: int
    digest: str
    void: str
    collapsed: frozenset[str]
    n_forget: int
    n_test: int
    values: Mapping[str, Mapping[str, Value]]
    series: tuple[Drawn, ...]
    label: int | None = None


def measured(run: Run, quantities: Iterable[str], series: Series, *, workers: int | None = None) -> Measured:
    """Everything that a target asks of one run; writes the run's tables and report on the way.

    Args:
        run: a finished run.
        quantities: keys of ``QUANTITIES``.
        series: what to draw.
        workers: clients trained at a time, where diagnostics train further.
    """
    wanted = [quantity for quantity in QUANTITIES if quantity in set(quantities)]
    needed = {DIAGNOSED[quantity][0] for quantity in wanted if quantity in DIAGNOSED}
    needed |= {DRAWN[series]} if series in DRAWN else set()
    sections = diagnosed(run, sorted(needed), workers=workers)
    write_artefacts(run)  # after the diagnostics: the report shows them
    rows: list[Row] = json.loads((run.folder / "results.json").read_text())
    values = {"origin": _origin(run, rows[0])} | {row["method"]: _values(run, row, wanted) for row in rows}
    for quantity in (quantity for quantity in wanted if quantity in DIAGNOSED):
        section, field = DIAGNOSED[quantity]
        for label, row in sections[section].items():
            values.setdefault(label, {})[quantity] = _told(row, field)
    first = rows[0]
    return Measured(
        seed=first["seed"],
        digest=first["run"],
        void=first["rr_reason"] if first["rr_status"] == "void" else "",
        collapsed=frozenset(row["method"] for row in rows if row["rr_status"] == "collapsed"),
        n_forget=first["n_forget"],
        n_test=first["n_test"],
        values=values,
        series=tuple(_series(run, series, sections)),
        label=run.experiment.request.label if run.experiment.request.scope == "class" else None,
    )


def diagnosed(run: Run, names: Sequence[str], *, workers: int | None) -> dict[str, dict[str, Row]]:
    """The rows of these sections of ``letheon diagnose``; measured now if the run folder does not have them."""
    if not names:
        return {}
    from letheon.diagnostics.suite import diagnose, keep, kept

    before = kept(run)
    have: dict[str, Any] = dict(before["sections"]) if before else {}
    missing = [name for name in names if name not in have]
    if missing:
        found = diagnose(run, missing, workers=workers)
        keep(run, found)
        have |= found["sections"]
    return {name: have[name]["rows"] for name in names}


def _values(run: Run, row: Row, wanted: Iterable[str]) -> dict[str, Value]:
    """The quantities of a method that its row, or its curve, gives."""
    found = {quantity: _value(run, row, quantity) for quantity in wanted if quantity not in DIAGNOSED}
    return {quantity: value for quantity, value in found.items() if value is not None}


def _value(run: Run, row: Row, quantity: str) -> Value | None:
    """A quantity of a method; None if rows do not have it."""
    if quantity == "bytes":
        return float(row["bytes_up"] + row["bytes_down"])
    if quantity == "early_rise":
        return early_rise(run.continued[row["method"]].points)
    if quantity == "rr" and row["rr_status"]:
        return Undefined(WHY[row["rr_status"]], row["rr_status"])
    return None if row[quantity] is None else float(row[quantity])


def early_rise(points: Sequence[Point]) -> Value:
    """By how many points KR rises in the first rounds of continued training; negative if it falls."""
    if len(points) < 2:
        return Undefined("not trained any further")
    return max(point.kr for point in points[1 : 1 + EARLY]) - points[0].kr


def _origin(run: Run, row: Row) -> dict[str, Value]:
    """The model before the request, as a row of the paper's tables."""
    cost = total(run.origin.costs)
    return {
        "mu_unlearned": float(row["mu_origin"]),
        "u_kr": float(row["kr_origin"]),
        "bytes": float(cost.bytes_up + cost.bytes_down),
        "flops": float(cost.flops),
    }


def _told(row: Row, field: str) -> Value:
    if row.get("undefined"):
        return Undefined(row["undefined"], "collapsed")
    if row[field] is None:
        return Undefined(str(row[f"{field}_reason"]))
    return float(row[field])


def _series(run: Run, series: Series, sections: Mapping[str, Mapping[str, Row]]) -> list[Drawn]:
    others = list(run.experiment.methods)[1:]
    if series == "life":
        u = _curves("KR during unlearning (%)", {label: run.unlearned[label].points for label in others})
        return [u, _continued(run)]
    if series == "continued":
        return [_continued(run)]
    if series == "rollback":
        rows = {label: row for label, row in sections["rollback"].items() if not row["undefined"]}
        most = max((len(row["rounds"]) for row in rows.values()), default=0)
        at = tuple(float(t) for t in range(1, most + 1))
        values = {label: _padded(row["rounds"], most) for label, row in rows.items() if label != "origin"}
        return [Drawn("Rollback tendency (RT)", "round", at, values)]
    if series == "path":
        rows = {label: row for label, row in sections["connectivity"].items() if not row["undefined"]}
        at = tuple(next(iter(rows.values()))["path"]) if rows else ()
        values = {label: tuple(row["losses"]["forget"]) for label, row in rows.items() if label != "origin"}
        return [Drawn("Loss on the data to forget along the path (nats)", "a", at, values)]
    return []


def _continued(run: Run) -> Drawn:
    points = {label: outcome.points for label, outcome in run.continued.items()}
    return _curves("KR during continued training (%)", points)


def _curves(title: str, curves: Mapping[str, Sequence[Point]]) -> Drawn:
    most = max((len(points) for points in curves.values()), default=0)
    values = {label: _padded([point.kr for point in points], most) for label, points in curves.items()}
    return Drawn(title, "round", tuple(float(t) for t in range(most)), values)


def _padded(values: Sequence[float | None], length: int) -> tuple[float | None, ...]:
    return (*values, *[None] * (length - len(values)))
