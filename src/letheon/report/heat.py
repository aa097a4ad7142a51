"""The alignment picture: for each layer and round, how the two streams stood to each other and what was done."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from letheon.report.alignment import Alignments, Cell
from letheon.report.drawing import FAINT, INK, MAIN, OTHERS, svg

MARKS = {"subtract": "−γ", "negate": "neg", "retain": "keep"}
"""What was done to a layer: Δʳ − γΔᵘ, −Δᵘ, or Δʳ alone."""
COLORS, NORM = colormaps["PuOr_r"].resampled(41), Normalize(-1.0, 1.0)
DARK = "#22272e"
BRIEF = 5
"""With more rounds than this, cells have room for the branch only."""
SHOWN = 6
"""Rounds whose γ intervals fit beside each other in one row."""


def alignment(log: Alignments, number: int) -> str:
    """The picture of one method, the ``number``-th on the page."""
    text = f"Cosine of the retain and the forget stream, and γ within its interval, by layer and round of {log.label}"
    return svg(f"alignment {number}", lambda: _picture(log), text)


def _picture(log: Alignments) -> Figure:
    shown = _evenly(log.rounds, SHOWN)
    height = max(0.27, 0.11 * len(shown)) * len(log.layers)
    figure = Figure(figsize=(9.0, 1.25 + height), layout="constrained")
    wide = min(1.6, max(0.5, (0.26 if log.rounds <= BRIEF else 0.16) * log.rounds))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(wide, 1.6))
    _heat(figure, left, log)
    _intervals(right, log, shown)
    left.set_yticks(range(len(log.layers)), log.layers)
    left.set_ylim(len(log.layers) - 0.5, -0.5)
    return figure


def _heat(figure: Figure, axes: Axes, log: Alignments) -> None:
    grid = [[0.0] * log.rounds for _ in log.layers]
    for cell in log.cells:
        grid[cell.layer][cell.round - 1] = cell.cosine
    edges = [round + 0.5 for round in range(log.rounds + 1)]
    rows = [layer - 0.5 for layer in range(len(log.layers) + 1)]
    mesh = axes.pcolormesh(edges, rows, grid, cmap=COLORS, norm=NORM, edgecolors="white", linewidth=1.2)
    if log.rounds <= 10:
        for cell in log.cells:
            _annotate(axes, cell, brief=log.rounds > BRIEF)
    axes.set_title("Cosine of the two streams")
    axes.set_xlabel("rectification round" + ("\nand length of the step" if log.is_scaled else ""))
    ticks = _evenly(log.rounds, 10)
    lengths = [f"\n×{log.scales[round - 1]:.3g}" if log.is_scaled else "" for round in ticks]
    axes.set_xticks(ticks, [f"{round}{length}" for round, length in zip(ticks, lengths, strict=True)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, location="right", ticks=[-1, 0, 1], aspect=24, pad=0.02, shrink=0.9)
    bar.outline.set_visible(False)


def _annotate(axes: Axes, cell: Cell, *, brief: bool) -> None:
    red, green, blue, _ = COLORS(NORM(cell.cosine))
    color = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else DARK
    text = MARKS[cell.branch] if brief else f"{cell.cosine:+.2f} {MARKS[cell.branch]}"
    if not cell.holds:
        text += " ✗"
    axes.text(cell.round, cell.layer, text, ha="center", va="center", fontsize=7.5, color=color)


def _intervals(axes: Axes, log: Alignments, shown: Sequence[int]) -> None:
    """The admissible interval of γ in each layer, and the γ used; only where γ was used."""
    used = [cell for cell in log.cells if cell.branch == "subtract" and cell.round in shown and cell.lower > 0]
    for cell in used:
        at = shown.index(cell.round)
        y = cell.layer + (at - (len(shown) - 1) / 2) * 0.72 / len(shown)
        color = OTHERS[at % len(OTHERS)]
        axes.plot([cell.lower, cell.upper], [y, y], color=color, linewidth=2.4, alpha=0.45, marker="|", markersize=6)
        look = {"marker": "o", "markersize": 4.6, "color": color} if cell.holds else _BROKEN
        axes.plot([cell.gamma], [y], linestyle="none", zorder=4, **look)  # type: ignore[arg-type]
    axes.set_title("γ used (dot) in the interval of Eq. (13)")
    axes.set_xlabel("γ, logarithmic")
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.7)
    axes.tick_params(axis="y", length=0)
    for layer in range(len(log.layers) + 1):
        axes.axhline(layer - 0.5, color=FAINT, alpha=0.25, linewidth=0.7)
    if used:
        ticks = _decades(min(cell.lower for cell in used), max(max(cell.upper, cell.gamma) for cell in used))
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        _key(axes, shown, broken=any(not cell.holds for cell in used))
    else:
        axes.text(0.5, 0.5, "no layer used γ", transform=axes.transAxes, ha="center", va="center", color=INK)


_BROKEN = {"marker": "X", "markersize": 7.5, "color": MAIN, "markeredgewidth": 0}


def _key(axes: Axes, shown: Sequence[int], *, broken: bool) -> None:
    marks = [
        Line2D([], [], color=OTHERS[i % len(OTHERS)], marker="o", markersize=4.6, linewidth=2.4, label=f"round {round}")
        for i, round in enumerate(shown)
    ]
    if broken:
        marks.append(Line2D([], [], linestyle="none", label="Eq. (14) broken", **_BROKEN))  # type: ignore[arg-type]
    axes.figure.legend(handles=marks, loc="outside upper right", ncols=len(marks), columnspacing=1.4)


def _decades(low: float, high: float) -> list[float]:
    """Round numbers between two positive ones: powers of ten, and multiples of them where there is room."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1,)):
        ticks = [step * 10.0**power for power in powers for step in steps]
        shown = [tick for tick in ticks if low <= tick <= high]
        if len(shown) <= 8:
            return shown or [low, high]
    return shown[:: 1 + len(shown) // 8]


def _evenly(count: int, most: int) -> list[int]:
    """At most ``most`` of the rounds 1 … count, first and last among them."""
    if count <= most:
        return list(range(1, count + 1))
    return sorted({1 + round(i * (count - 1) / (most - 1)) for i in range(most)})
