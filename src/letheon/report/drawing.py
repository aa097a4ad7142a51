"""How figures look, and how they become SVG text: the same bytes for the same data, and nothing global moves.

Figures use matplotlib's objects, never pyplot. Ink is written as ``currentColor``, so that the page decides.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from io import BytesIO
from typing import Any
from xml.sax.saxutils import escape

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from letheon.report.curves import Curves, Line
from letheon.report.words import shortened

INK = "#1f2328"
FAINT = "#8b949e"
MAIN = "#d55e00"
# Okabe and Ito's colours can be told apart by colour-blind readers; markers and dashes serve in print.
OTHERS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)))
ROOM = 125
"""Characters in one row of a legend."""

_OWN: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica Neue", "Arial"],
    "font.size": 9.0,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
_FAMILIES = re.compile(r"(axes|figure|font|grid|legend|lines|patch|path|savefig|svg|text|xtick|ytick)\.")


def svg(name: str, draw: Callable[[], Figure], description: str) -> str:
    """What ``draw`` returns, as an ``<svg>`` element to put into a page.

    Args:
        name: unlike that of any other figure on the page.
        draw: makes the figure; matplotlib's defaults and ours are in force, the user's are not.
        description: for those who cannot see it.
    """
    with settings(name), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing")  # the page's font is another one anyway
        buffer = BytesIO()
        draw().savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue().decode()
    start, _, inner = text[text.index("<svg") :].partition(">")
    box = re.search(r'viewBox="[^"]*"', start)
    opening = f'<svg {box[0] if box else ""} role="img" xmlns:xlink="http://www.w3.org/1999/xlink">'
    inner = re.sub(r"<metadata>.*?</metadata>\s*|<style.*?</style>\s*", "", inner, flags=re.DOTALL)
    inner = re.sub(r'<g id="[^"]*"', "<g", inner).replace(INK, "currentColor")
    return f"{opening}<title>{escape(description)}</title>{inner}"


def settings(name: str) -> AbstractContextManager[None]:
    """Our settings over matplotlib's own defaults, to draw within."""
    wanted: Any = {key: value for key, value in matplotlib.rcParamsDefault.items() if _FAMILIES.match(key)}
    return matplotlib.rc_context(wanted | _OWN | {"svg.hashsalt": f"letheon {name}"})


def style(curves: Curves, line: Line) -> dict[str, Any]:
    """How a line looks: the method of interest stands out, the reference is dashed, the rest can be told apart."""
    if line.kind == "origin":
        return {"color": FAINT, "linewidth": 1.3}
    if line.kind == "retrain":
        return {"color": INK, "linewidth": 1.6, "linestyle": (0, (4, 2))}
    if line.kind == "main":
        return {"color": MAIN, "linewidth": 2.6, "zorder": 4}
    at = [other.label for other in curves.lines if other.kind == "other"].index(line.label)
    dashes = DASHES[at // len(OTHERS) % len(DASHES)]
    marks = {"marker": MARKERS[at % len(MARKERS)], "markersize": 4.5, "markeredgewidth": 0}
    return {"color": OTHERS[at % len(OTHERS)], "linewidth": 1.5, "linestyle": dashes, "zorder": 3, **marks}


def legend(figure: Figure, axes: Axes) -> None:
    """One legend for the whole figure, above the curves: lines first, areas last."""
    handles, labels = axes.get_legend_handles_labels()
    entries = sorted(zip(handles, labels, strict=True), key=lambda entry: not isinstance(entry[0], Line2D))
    names = shortened([label for _, label in entries])
    lengths = [len(name) + 8 for name in names]
    columns = len(names) if sum(lengths) <= ROOM else max(1, ROOM // max(lengths))
    figure.legend(
        [handle for handle, _ in entries],
        names,
        loc="outside upper left",
        ncols=columns,
        columnspacing=1.6,
        handlelength=2.4,
    )
