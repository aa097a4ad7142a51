"""The figures of diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from letheon.report.curves import Curves
from letheon.report.diagnostics import Diagnostics, Row
from letheon.report.drawing import FAINT, INK, MAIN, legend, style, svg
from letheon.report.words import shortened

Course = Callable[[Row], Sequence[tuple[float, float]]]
BESIDE = "#0072b2"


def courses(told: Diagnostics, curves: Curves) -> str | None:
    """RT by round, the loss along the path to the recovered model, and KR while it recovers; None if not measured."""
    drawn: list[tuple[str, str, str, Course]] = [
        ("rollback", "Rollback tendency (RT)", "round of continued training", _tendencies),
        ("connectivity", "Loss on the data to forget (nats)", "from unlearned (0) to recovered (1)", _losses),
        ("connectivity", "KR (%) in training on all data", "round", _recovery),
    ]
    panels = [panel for panel in drawn if told.rows(panel[0])]
    if not panels:
        return None
    text = "Rollback tendency, loss on the straight path, and recovery of all models"
    return svg("diagnostics courses", lambda: _panels(told, curves, panels), text)


def clouds(told: Diagnostics) -> str | None:
    """The first two principal components of penultimate features, a panel for each model; None if not measured."""
    rows = {label: row for label, row in told.rows("features").items() if row.get("points_own")}
    if not rows:
        return None
    return svg("diagnostics clouds", lambda: _clouds(rows), "Penultimate features of all models in two dimensions")


def _tendencies(row: Row) -> list[tuple[float, float]]:
    return [(t, value) for t, value in enumerate(row["rounds"], 1) if value is not None]


def _losses(row: Row) -> list[tuple[float, float]]:
    return list(zip(row["path"], row["losses"]["forget"], strict=True)) if row["distance"] > 0.0 else []


def _recovery(row: Row) -> list[tuple[float, float]]:
    return list(enumerate(row["course"]))


def _panels(told: Diagnostics, curves: Curves, panels: Sequence[tuple[str, str, str, Course]]) -> Figure:
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (section, title, x, course) in zip(all_axes, panels, strict=True):
        for label, row in told.rows(section).items():
            points = [] if row["undefined"] else course(row)
            look = _look(told, curves, label) | {"markevery": max(1, len(points) // 10)}
            axes.plot([a for a, _ in points], [b for _, b in points], label=label, **look)
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.7)
        if course is _tendencies:
            axes.axhline(0.0, color=FAINT, linewidth=0.8)
            axes.xaxis.get_major_locator().set_params(integer=True)
    legend(figure, all_axes[0])
    return figure


def _look(told: Diagnostics, curves: Curves, label: str) -> dict[str, Any]:
    """As in the other figures; the random step is dotted."""
    line = next((line for line in curves.lines if label in (line.label, line.label.lower())), None)
    if line is None:
        return {"color": INK, "linewidth": 1.5, "linestyle": ":"}
    return style(curves, line)


def _clouds(rows: Mapping[str, Row]) -> Figure:
    columns = min(4, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(9.0, 0.5 + 2.3 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    names = shortened(list(rows), most=24)
    for axes, name, row in zip(panels, names, rows.values(), strict=False):
        _cloud(axes, name, row)
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure


def _cloud(axes: Axes, name: str, row: Row) -> None:
    looks = {"retained": (BESIDE, "retained training samples"), "forget": (MAIN, "data to forget")}
    for kind, (color, label) in looks.items():
        points = row["points_own"][kind]
        axes.scatter(
            [p[0] for p in points], [p[1] for p in points], s=7, color=color, alpha=0.55, linewidths=0, label=label
        )
    axes.set_title(f"{name}: {row['explained_own']:.0f} % of variance")
    axes.set_xticks([])
    axes.set_yticks([])
