"""The figures of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from letheon.report.curves import Curves, Dot, Line
from letheon.report.drawing import FAINT, INK, MAIN, legend, style, svg
from letheon.report.model import Report, Row
from letheon.report.words import amount, shortened

Quantity = Literal["kr", "mu"]
VALUES: dict[Quantity, tuple[Callable[[Dot], float], str]] = {
    "kr": (lambda dot: dot.kr, "KR: retained of the data to forget (%)"),
    "mu": (lambda dot: dot.mu, "MU: clean test accuracy (%)"),
}


def life(report: Report, quantity: Quantity) -> str:
    """A quantity through training, unlearning (U) and continued training (C), as in the paper's Fig. 1."""
    value, what = VALUES[quantity]
    return svg(
        f"life {quantity}",
        lambda: _lives(report.curves, value, what, band=quantity == "kr"),
        f"{what} of all methods through training, unlearning and continued training",
    )


def continued(report: Report) -> str:
    """Continued training from near: KR on a scale that shows small shares, and MU."""
    return svg("continued", lambda: _closeups(report.curves), "KR and MU of all methods in continued training")


def costs(report: Report) -> str:
    """What unlearning cost each method."""
    rows = report.rows
    return svg("costs", lambda: _bars(rows, report.main), "Rounds, traffic and computation of unlearning by method")


def _lives(curves: Curves, value: Callable[[Dot], float], what: str, *, band: bool) -> Figure:
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True, width_ratios=(3, 4, 5), gridspec_kw={"wspace": 0})
    spans = ((0, curves.request), (curves.request, curves.resumed), (curves.resumed, curves.end))
    names = ("Training", "U: unlearning", "C: continued training on the retained data")
    for axes, span, name in zip(panels, spans, names, strict=True):
        _axis(axes, span)
        axes.set_title(name)
    height = _phases(panels[1], curves)
    if band:
        _band(panels[2], curves)
    for line in curves.lines:
        _life(panels, curves, line, value)
    panels[0].set(ylim=(-3, height), yticks=range(0, 101, 20), ylabel=what)
    for axes in panels[1:]:
        axes.tick_params(axis="y", length=0)
    legend(figure, panels[2])
    return figure


def _axis(axes: Axes, span: tuple[int, int]) -> None:
    """A stretch of the round axis; its ticks count from its own start."""
    start, end = span
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if (end - start) / step <= 6)
    ticks = range(start, end + 1, step)
    margin = 0.03 * max(1, end - start)  # where everything diverged at once, no round was done
    axes.set(xlim=(start - margin, end + margin), xlabel="round")
    axes.set_xticks(ticks, [str(tick - start) for tick in ticks])
    axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.7)


def _life(panels: Sequence[Axes], curves: Curves, line: Line, value: Callable[[Dot], float]) -> None:
    for axes, dots in zip(panels, (line.training, line.unlearning, line.continued), strict=True):
        _draw(axes, curves, line, dots, value)
    if line.unlearning and line.unlearning[-1].x < curves.resumed:  # done early: the model waits as it is
        last = line.unlearning[-1]
        color = style(curves, line)["color"]
        panels[1].plot([last.x, curves.resumed], [value(last)] * 2, color=color, linewidth=1.0, linestyle=":")


def _draw(axes: Axes, curves: Curves, line: Line, dots: Sequence[Dot], value: Callable[[Dot], float]) -> None:
    look = style(curves, line) | {"markevery": max(1, len(dots) // 10)}
    if len(dots) == 1:
        look |= {"marker": "x", "markersize": 6, "markeredgewidth": 1.5}  # it diverged: there is no line
    axes.plot([dot.x for dot in dots], [value(dot) for dot in dots], label=line.label, **look)


def _band(axes: Axes, curves: Curves) -> None:
    band = curves.band
    label = "Retrain's 95 % band"
    axes.fill_between(band.x, band.low, band.high, color=INK, alpha=0.16, linewidth=0, label=label, zorder=2)


def _phases(axes: Axes, curves: Curves) -> float:
    """Tint and name the phases of the method of interest; returns the height that they need."""
    width, height = curves.resumed - curves.request, 103.0
    for i, stretch in enumerate(curves.stretches):
        axes.axvspan(stretch.start, stretch.end, color=MAIN, alpha=(0.14, 0.06)[i % 2], linewidth=0, zorder=0)
        is_narrow = (stretch.end - stretch.start) / width < 0.028 * len(stretch.phase)
        height = max(height, 105.0 + 2.2 * len(stretch.phase) if is_narrow else 110.0)
    for stretch in curves.stretches:
        is_narrow = (stretch.end - stretch.start) / width < 0.028 * len(stretch.phase)
        middle, turned = (stretch.start + stretch.end) / 2, 90 if is_narrow else 0
        axes.text(middle, height - 1.5, stretch.phase, ha="center", va="top", fontsize=8, rotation=turned)
    return height


def _closeups(curves: Curves) -> Figure:
    figure = Figure(figsize=(9.0, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _band(left, curves)
    for axes, quantity in ((left, "kr"), (right, "mu")):
        value, what = VALUES["kr" if quantity == "kr" else "mu"]
        for line in curves.lines:
            if line.continued:
                _draw(axes, curves, line, line.continued, value)
        _axis(axes, (curves.resumed, curves.end))
        axes.set_title(what)
    left.set_yscale("symlog", linthresh=1.0, linscale=0.5)
    left.set_yticks([0, 1, 3, 10, 30, 100], ["0", "1", "3", "10", "30", "100"])
    left.set_yticks([], minor=True)
    left.set_ylim(-0.08, 115)
    legend(figure, left)
    return figure


def _bars(rows: Sequence[Row], main: str) -> Figure:
    figure = Figure(figsize=(9.0, 0.9 + 0.3 * len(rows)), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    measures: tuple[tuple[str, Callable[[Row], float]], ...] = (
        ("Rounds", lambda row: row["rounds"]),
        ("Traffic, up and down (MB)", lambda row: (row["bytes_up"] + row["bytes_down"]) / 1e6),
        ("Computation at clients (GFLOP)", lambda row: row["flops"] / 1e9),
    )
    labels = [row["method"] for row in rows]
    colors = [MAIN if label == main else FAINT for label in labels]
    for axes, (name, measure) in zip(panels, measures, strict=True):
        values = [measure(row) for row in rows]
        bars = axes.barh(range(len(rows)), values, color=colors, height=0.62)
        axes.bar_label(bars, [amount(value) for value in values], padding=3, fontsize=8.5)
        axes.set_title(name)
        axes.set_xlim(0, 1.25 * max(*values, 1e-9))
        axes.set_xticks([])
        axes.spines[["bottom"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(rows)), shortened(labels))
    panels[0].invert_yaxis()
    return figure
