"""A run as one HTML file that needs no network, and the other files that a run leaves for people."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import jinja2
import safetensors.torch
from markupsafe import Markup

from letheon import tree
from letheon.curve import Point, flattened
from letheon.files import write, write_json
from letheon.phase import State
from letheon.pipeline import Run
from letheon.report import diagrams, heat, plot
from letheon.report.diagnostics import Diagnostics, diagnostics_of, grids, limits
from letheon.report.model import Report, report_of, stages
from letheon.report.table import as_csv, sheet
from letheon.report.words import WHY, amount, digits, size, spread

ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("letheon", "report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {"amount": amount, "size": size}


def write_report(run: Run, path: Path) -> None:
    """Write the report on ``run`` to ``path``, whole or not at all."""
    write(path, html(report_of(run), diagnostics_of(run)).encode())


def html(report: Report, diagnostics: Diagnostics | None = None) -> str:
    """The page. Whatever comes from the experiment is escaped; the figures are inline."""
    main = next(row for row in report.rows if row["method"] == report.main)
    figures = {
        "kr": Markup(plot.life(report, "kr")),
        "mu": Markup(plot.life(report, "mu")),
        "continued": Markup(plot.continued(report)),
        "costs": Markup(plot.costs(report)),
    }
    pictures = [(log, Markup(heat.alignment(log, i))) for i, log in enumerate(report.alignments)]
    return ENVIRONMENT.get_template("report.html.j2").render(
        report=report,
        sheet=sheet(report.rows),
        tiles=_tiles(report, main),
        verdict="void" if report.void else main["verdict"],
        figures=figures,
        pictures=pictures,
        limits=limits(diagnostics),
        **(_diagnosed(report, diagnostics) if diagnostics else {"diagnostics": None}),
    )


def _diagnosed(report: Report, told: Diagnostics) -> dict[str, Any]:
    figures = {
        "courses": diagrams.courses(told, report.curves),
        "clouds": diagrams.clouds(told, "own"),
        "common": diagrams.clouds(told, "common"),
        "dots": diagrams.dots(told),
        "layers": diagrams.layers(told),
    }
    rows = [row for row in told.rows("rollback").values() if not row["undefined"]]
    return {
        "diagnostics": told,
        "diagrams": {name: Markup(figure) if figure else None for name, figure in figures.items()},
        "grids": grids(told),
        "layers": list(rows[0]["layers"]) if rows else [],
    }


def _tiles(report: Report, main: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The four numbers to see first: name, value, and what to hold it against."""
    kr, mu = digits(report.n_forget), digits(report.n_test)
    rate = "–" if main["rr"] is None else f"{main['rr']:.{kr}f} %"
    interval = spread(main["rr"], main["rr_low"], main["rr_high"], kr).partition(" ")[2]
    why = WHY[main["rr_status"]] if main["rr_status"] else f"95 % interval {interval}"
    return [
        ("KR after unlearning", f"{main['u_kr']:.{kr}f} %", f"Origin {main['kr_origin']:.{kr}f} %"),
        ("KR at most, continued", f"{main['ct_kr_max']:.{kr}f} %", f"Retrain {main['kr_retrain']:.{kr}f} %"),
        ("Resurfacing rate", rate, why),
        ("MU at the end", f"{main['mu']:.{mu}f} %", f"Retrain {main['mu_retrain']:.{mu}f} %"),
    ]


def curves_csv(run: Run) -> str:
    """All points of all stages, a row each; what single samples did is not in it."""
    rows = flattened(_points(run))
    out = StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _points(run: Run) -> Iterator[tuple[str, Point]]:
    return ((stage, point) for stage, outcome in stages(run).items() for point in outcome.points)


def write_artefacts(run: Run) -> Path:
    """Write the results, tables, curves, models and report of ``run`` into its folder; returns the report's path.

    The models are plain safetensors, parameters and buffers under their own names. ``origin.safetensors`` is the model
    before the request: it still holds what was to be forgotten; so do the ``trained`` ones of methods with their own.
    """
    report = report_of(run)
    write_json(run.folder / "results.json", list(report.rows))
    write(run.folder / "table.csv", as_csv(report.rows).encode())
    write(run.folder / "curves.csv", curves_csv(run).encode())
    write_json(run.folder / "curves.json", _curves(run))
    write(run.folder / "experiment.toml", report.experiment.encode())
    for name, state in _models(run):
        write(run.folder / "models" / f"{name}.safetensors", _weights(state))
    path = run.folder / "report.html"
    write(path, html(report, diagnostics_of(run)).encode())
    return path


def _curves(run: Run) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in flattened(_points(run)):
        found.setdefault(row.pop("stage"), []).append(row)
    return found


def _models(run: Run) -> Iterator[tuple[str, State]]:
    yield "origin", run.origin.state
    for label in run.experiment.methods:
        if label in run.trained:
            yield f"{_file_name(label)}.trained", run.trained[label].state
        yield f"{_file_name(label)}.unlearned", run.unlearned[label].state
        for number, outcome in enumerate(run.later.get(label, ()), 2):
            yield f"{_file_name(label)}.unlearned{number}", outcome.state
        yield f"{_file_name(label)}.continued", run.continued[label].state


def _file_name(label: str) -> str:
    """The label, if every file system can hold it; else what it can hold, and a digest to tell it from others."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_=.") else "_" for c in label)[:60]
    return safe if safe == label else f"{safe}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def _weights(state: State) -> bytes:
    tensors = {name: t.contiguous() for name, t in tree.clone(state.params | state.buffers).items()}
    content: bytes = safetensors.torch.save(tensors, {"format": "pt"})
    return content
