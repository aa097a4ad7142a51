"""The figures of diagnostics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from letheon.report.curves import Curves
from letheon.report.diagnostics import Diagnostics, Row
from letheon.report.drawing import FAINT, INK, MAIN, legend, style, svg
from letheon.report.heat import COLORS, NORM
from letheon.report.words import shortened

Course = Callable[[Row], Sequence[tuple[float, float]]]
Axis = Literal["own", "common"]
BESIDE = "#0072b2"
ABREAST = 3
"""Panels beside each other."""
DOTS: tuple[tuple[str, str, str], ...] = (
    ("features", "FD / retained", "fd_relative"),
    ("probe", "Probe accuracy (%)", "accuracy"),
    ("membership", "MIA AUC", "auc"),
    ("membership", "TPR (%) at FPR 1 %", "tpr_at_1"),
    ("membership", "TPR (%) at FPR 0.1 %", "tpr_at_0.1"),
)
"""Section, title and field."""


def courses(told: Diagnostics, curves: Curves) -> str | None:
    """RT by round, the loss along the path to the recovered model, KR while it recovers and while it is taught again.

    None if nothing of it was measured.
    """
    panels = [panel for panel in COURSES if any(_points(row, panel[3]) for row in told.rows(panel[0]).values())]
    if not panels:
        return None
    text = "Rollback tendency, loss on the straight path, recovery and relearning of all models"
    return svg("diagnostics courses", lambda: _panels(told, curves, panels), text)


def clouds(told: Diagnostics, axis: Axis) -> str | None:
    """Two principal components of penultimate features, a panel for each model; None if not measured.

    ``own``: of the model's own features. ``common``: of those of the model before the request, for all on one scale.
    """
    rows = {label: row for label, row in told.rows("features").items() if row.get(f"points_{axis}")}
    if not rows:
        return None
    whose = {"own": "their own", "common": "common"}[axis]
    text = f"Penultimate features of all models in two dimensions, {whose} axes"
    return svg(f"diagnostics clouds {axis}", lambda: _clouds(rows, axis), text)


def dots(told: Diagnostics) -> str | None:
    """Dispersion, probe and membership inference: a dot and its interval for each model; None if not measured."""
    panels = [(title, found) for section, title, field in DOTS if (found := _intervals(told, section, field))]
    if not panels:
        return None
    text = "Dispersion, probe and membership inference of all models, with intervals; Retrain's value as a dashed line"
    return svg("diagnostics dots", lambda: _dots(panels, told.found["retrain"]), text)


def layers(told: Diagnostics) -> str | None:
    """RT by round and layer, a panel for each model; None if it is nowhere defined."""
    rows = {label: row["layers"] for label, row in told.rows("rollback").items() if _points(row, COURSES[0][3])}
    if not rows:
        return None
    return svg("diagnostics layers", lambda: _layers(rows), "Rollback tendency of all models by round and layer")


def _points(row: Row, course: Course) -> Sequence[tuple[float, float]]:
    return [] if row["undefined"] else course(row)


def _defined(values: Sequence[float | None], first: int) -> list[tuple[float, float]]:
    return [(t, value) for t, value in enumerate(values, first) if value is not None]


def _way(row: Row) -> list[tuple[float, float]]:
    return list(zip(row["path"], row["losses"]["forget"], strict=True)) if row["distance"] > 0.0 else []


def _fresh(row: Row) -> list[tuple[float, float]]:
    losses = row["losses_recalibrated"]
    return list(zip(row["path"], losses["forget"], strict=True)) if losses and row["distance"] > 0.0 else []


_TITLE, _PATH = "Loss on the data to forget (nats)", "from unlearned (0) to recovered (1)"
COURSES: tuple[tuple[str, str, str, Course], ...] = (
    ("rollback", "Rollback tendency (RT)", "round of continued training", lambda row: _defined(row["rounds"], 1)),
    ("connectivity", _TITLE, _PATH, _way),
    ("connectivity", "The same, BatchNorm statistics fresh", _PATH, _fresh),
    ("connectivity", "KR (%) in training on all data", "round", lambda row: _defined(row["course"], 0)),
    ("relearning", "KR (%) in training on what went", "round", lambda row: _defined(row["courses"]["rounds"], 0)),
    ("relearning", "The same, step by step", "step", lambda row: _defined(row["courses"]["steps"], 0)),
)
"""Section, title, what the horizontal axis counts, and the points of a row."""


def _intervals(told: Diagnostics, section: str, field: str) -> dict[str, tuple[float, float, float]]:
    """Value and interval by model, where there is a value."""
    rows = {k: r for k, r in told.rows(section).items() if not r["undefined"] and r[field] is not None}
    return {label: (row[field], row[f"{field}_low"], row[f"{field}_high"]) for label, row in rows.items()}


def _panels(told: Diagnostics, curves: Curves, panels: Sequence[tuple[str, str, str, Course]]) -> Figure:
    lines, columns = -(-len(panels) // ABREAST), min(ABREAST, len(panels))
    figure = Figure(figsize=(9.0, 0.5 + 2.9 * lines), layout="constrained")
    all_axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, (section, title, x, course) in zip(all_axes, panels, strict=False):
        for label, row in told.rows(section).items():
            points = _points(row, course)
            look = _look(told, curves, label) | {"markevery": max(1, len(points) // 10)}
            axes.plot([a for a, _ in points], [b for _, b in points], label=label, **look)
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.7)
        if section == "rollback":
            axes.axhline(0.0, color=FAINT, linewidth=0.8)
            axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    legend(figure, all_axes[0])
    return figure


def _look(told: Diagnostics, curves: Curves, label: str) -> dict[str, Any]:
    """As in the other figures; the random step is dotted."""
    line = next((line for line in curves.lines if label in (line.label, line.label.lower())), None)
    if line is None:
        return {"color": INK, "linewidth": 1.5, "linestyle": ":"}
    return style(curves, line)


def _clouds(rows: Mapping[str, Row], axis: Axis) -> Figure:
    columns = min(4, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(9.0, 0.5 + 2.3 * lines), layout="constrained")
    is_one = axis == "common"
    panels = list(figure.subplots(lines, columns, squeeze=False, sharex=is_one, sharey=is_one).flat)
    names = shortened(list(rows), most=24)
    for axes, name, row in zip(panels, names, rows.values(), strict=False):
        _cloud(axes, name, row, axis)
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure


def _cloud(axes: Axes, name: str, row: Row, axis: Axis) -> None:
    looks = {"retained": (BESIDE, "retained training samples"), "forget": (MAIN, "data to forget")}
    for kind, (color, label) in looks.items():
        points = row[f"points_{axis}"][kind]
        axes.scatter(
            [p[0] for p in points], [p[1] for p in points], s=7, color=color, alpha=0.55, linewidths=0, label=label
        )
    axes.set_title(f"{name}: {row[f'explained_{axis}']:.0f} % of variance")
    axes.set_xticks([])
    axes.set_yticks([])


def _dots(panels: Sequence[tuple[str, Mapping[str, tuple[float, float, float]]]], retrain: str) -> Figure:
    labels = list(dict.fromkeys(label for _, found in panels for label in found))
    figure = Figure(figsize=(9.0, 0.8 + 0.26 * len(labels)), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (title, found) in zip(all_axes, panels, strict=True):
        for label, (value, low, high) in found.items():
            y, color = labels.index(label), INK if label == retrain else MAIN
            axes.plot([low, high], [y, y], color=color, linewidth=1.5)
            axes.plot([value], [y], color=color, marker="o", markersize=4.5, linestyle="none")
        if retrain in found:
            axes.axvline(found[retrain][0], color=FAINT, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.set_title(title)
        axes.set_yticks(range(len(labels)), shortened(labels))
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
    return figure


def _layers(rows: Mapping[str, Mapping[str, Sequence[float | None]]]) -> Figure:
    names = list(next(iter(rows.values())))
    figure = Figure(figsize=(9.0, 1.1 + 0.2 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(rows), squeeze=False, sharey=True)[0]
    for axes, title, row in zip(panels, shortened(list(rows), most=14), rows.values(), strict=True):
        grid = [[math.nan if value is None else value for value in row[name]] for name in names]
        rounds = range(1, len(grid[0]) + 1)
        edges = [t - 0.5 for t in (*rounds, len(rounds) + 1)]
        mesh = axes.pcolormesh(edges, [y - 0.5 for y in range(len(names) + 1)], grid, cmap=COLORS, norm=NORM)
        axes.set_title(title, fontsize=7.5)
        axes.set_xticks([rounds[0], rounds[-1]])
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(length=0)
    figure.colorbar(mesh, ax=list(panels), ticks=[-1, 0, 1], aspect=24, pad=0.01)
    return figure
