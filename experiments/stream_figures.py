"""Figures of streams over several seeds: utility against forgetting after each request, and by COP's rank cap.

    python experiments/stream_figures.py runs/tofu-0 runs/tofu-1 runs/tofu-2 --out docs/results/tofu

Takes finished runs of one experiment that differ in the seed. Writes ``courses.svg``; where an objective was run with
several rank caps ``ranks.svg`` instead; and ``rows.json``, the numbers behind them. Utility is that of the first set.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from letheon.errors import LetheonError
from letheon.files import write
from letheon.methods.descent import Descent
from letheon.report.drawing import DASHES, FAINT, INK, MAIN, MARKERS, OTHERS, svg
from letheon.report.stream_table import read_rows
from letheon.stream.experiment import Stream
from letheon.stream.results import CONTINUED

Row = Mapping[str, Any]

SHOWN = {"mu_first": "utility on retained texts (%)", "em": "EM on the texts to forget so far (%)"}
KEPT = ("method", "seed", "run", "after", "requests", "n_forget", "mu_first", "mu", "em", "es", "rouge", "truth_ratio")
COLOURS = (MAIN, *OTHERS)
ALONE = 0


def courses(rows: Sequence[Row]) -> Figure:
    """Each quantity after each request and after continued training: mean over the seeds, and their range."""
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    panels = figure.subplots(1, len(SHOWN))
    labels = [label for label in dict.fromkeys(row["method"] for row in rows) if label not in ("origin", "retrain")]
    bases = list(dict.fromkeys(label.partition("+")[0] for label in labels))
    last = max(row["requests"] for row in rows)
    for axes, (metric, what) in zip(panels, SHOWN.items(), strict=True):
        for label in labels:
            at = bases.index(label.partition("+")[0])
            held = "+" in label
            look = {"color": COLOURS[at], "linestyle": "-" if held else DASHES[1], "marker": MARKERS[at]}
            look |= {"markerfacecolor": COLOURS[at] if held else "none", "markersize": 4.5}
            _course(axes, [row for row in rows if row["method"] == label], metric, last, look | {"label": label})
        for label, colour in (("retrain", INK), ("origin", FAINT)):
            level = [row[metric] for row in rows if row["method"] == label and row["after"] == f"{last}"]
            if level:
                axes.axhline(sum(level) / len(level), color=colour, linestyle=DASHES[2], label=label, zorder=1)
        axes.set(title=what, xlabel="after request", ylim=(-2, 102))
        axes.set_xticks(range(1, last + 2), [*map(str, range(1, last + 1)), "training"])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return figure


def _course(axes: Axes, rows: Sequence[Row], metric: str, last: int, look: Mapping[str, Any]) -> None:
    places = _places(rows, metric, lambda row: last + 1 if row["after"] == CONTINUED else int(row["after"]))
    _line(axes, places, look)


def _places(rows: Sequence[Row], metric: str, place: Callable[[Row], int]) -> dict[int, list[float]]:
    """The values of all seeds by where they stand on the axis, from left to right."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row[metric] is not None:
            found.setdefault(place(row), []).append(row[metric])
    return dict(sorted(found.items()))


def ranks(rows: Sequence[Row], caps: Mapping[str, tuple[str, int]]) -> Figure:
    """Each quantity after the last request by rank cap; 0 is the objective alone."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    panels = figure.subplots(1, len(SHOWN))
    last = max(row["requests"] for row in rows)
    found = [row for row in rows if row["after"] == f"{last}"]
    at_caps = sorted({cap for _, cap in caps.values()})
    for axes, (metric, what) in zip(panels, SHOWN.items(), strict=True):
        for at, base in enumerate(dict.fromkeys(base for base, _ in caps.values())):
            own = {label: at_caps.index(cap) for label, (name, cap) in caps.items() if name == base}
            mine = [{"cap": own[row["method"]], **row} for row in found if row["method"] in own]
            places = _places(mine, metric, lambda row: row["cap"])
            _line(axes, places, {"color": COLOURS[at], "marker": MARKERS[at], "label": base})
        level = [row[metric] for row in found if row["method"] == "origin"]
        axes.axhline(sum(level) / len(level), color=FAINT, linestyle=DASHES[2], label="origin", zorder=1)
        axes.set(title=what, xlabel="directions a request may add (none: without COP)", ylim=(-2, 102))
        axes.set_xticks(range(len(at_caps)), [str(cap or "none") for cap in at_caps])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return figure


def _line(axes: Axes, places: Mapping[int, Sequence[float]], look: Mapping[str, Any]) -> None:
    """Means with the range between the runs behind them."""
    at = list(places)
    axes.plot(at, [sum(values) / len(values) for values in places.values()], **look)
    ends = [[end(values) for values in places.values()] for end in (min, max)]
    axes.fill_between(at, *ends, color=look["color"], alpha=0.15)


def caps_of(stream: Stream) -> dict[str, tuple[str, int]]:
    """By label, the objective and its rank cap; of those that were run with more than one."""
    found = {
        label: (method.name, ALONE if method.cop is None else method.cop.rank or ALONE)
        for label, method in stream.methods.items()
        if isinstance(method, Descent)
    }
    names = [name for name, cap in found.values() if cap != ALONE]
    return {label: (name, cap) for label, (name, cap) in found.items() if names.count(name) > 1}


def main(given: Sequence[str] | None = None) -> None:
    """Read the runs and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(given)
    try:
        rows = [row for run in asked.runs for row in read_rows(run)]
        stream = Stream.load(asked.runs[0] / "experiment.toml")
    except LetheonError as error:
        parser.error(str(error))
    caps = caps_of(stream)
    name, drawn = ("ranks", lambda: ranks(rows, caps)) if caps else ("courses", lambda: courses(rows))
    asked.out.mkdir(parents=True, exist_ok=True)
    picture = svg(name, drawn, f"{stream.title}: {' and '.join(SHOWN.values())}").replace("currentColor", INK)
    write(asked.out / f"{name}.svg", picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).encode())
    kept = [{key: row[key] for key in KEPT if key in row} for row in rows]
    write(asked.out / "rows.json", ("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n").encode())


if __name__ == "__main__":
    main()
