"""Figures of streams over several seeds: after each request, by COP's rank cap, and utility against forgetting.

    python experiments/stream_figures.py runs/tofu-0 runs/tofu-1 runs/tofu-2 --out docs/results/tofu

Takes finished runs of one experiment that differ in the seed. Writes ``courses.svg``; where an objective was run with
several rank caps ``ranks.svg`` instead, with several learning rates ``fronts.svg``, and then prints how COP compares
with the objective alone at equal forgetting; and ``rows.json``, the numbers behind them. Utility is of the first set.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
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
FORGOTTEN = {"em": "EM", "es": "ES"}


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


@dataclass(frozen=True)
class Step:
    """One objective at one learning rate, with COP or alone."""

    base: str
    held: bool
    lr: float


def fronts(rows: Sequence[Row], steps: Mapping[str, Step]) -> Figure:
    """Utility against what is left of the forgotten texts, after the last request: a line over the learning rates."""
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    found = [row for row in rows if row["after"] == f"{max(row['requests'] for row in rows)}"]
    bases = list(dict.fromkeys(step.base for step in steps.values()))
    for axes, (metric, what) in zip(figure.subplots(1, len(FORGOTTEN)), FORGOTTEN.items(), strict=True):
        for at, base in enumerate(bases):
            for held in (True, False):
                own = sorted((s.lr, label) for label, s in steps.items() if (s.base, s.held) == (base, held))
                each = [[(r[metric], r["mu_first"]) for r in found if r["method"] == label] for _, label in own]
                look = {"color": COLOURS[at], "marker": MARKERS[at], "linestyle": "-" if held else DASHES[1]}
                look |= {"markerfacecolor": COLOURS[at] if held else "none", "markersize": 4.5}
                axes.plot(*_means(each), **look, label=f"{base}+cop" if held else base)
                points = zip(*chain.from_iterable(each), strict=True)
                axes.plot(*points, ".", color=COLOURS[at], alpha=0.35, markersize=3)
        widest = 1.1 * max(row[metric] for row in found if row["method"] in steps)
        axes.set(ylabel=SHOWN["mu_first"], xlim=(-0.02 * widest, widest), ylim=(-2, 102))
        (x,), (y,) = _means([[(row[metric], row["mu_first"]) for row in found if row["method"] == "origin"]])
        axes.set_xlabel(f"{what} on the texts to forget (%); Origin: {x:.0f}, utility {y:.0f}")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=6)
    return figure


def _means(each: Sequence[Sequence[tuple[float, float]]]) -> tuple[list[float], list[float]]:
    middles = [[sum(values) / len(values) for values in zip(*points, strict=True)] for points in each]
    return [x for x, _ in middles], [y for _, y in middles]


def gains(rows: Sequence[Row], steps: Mapping[str, Step]) -> str:
    """COP's utility less that of the objective alone where this forgets as much: Markdown, mean [min, max] over seeds.

    The objective's utility is read off the straight lines between its learning rates, seed by seed; beyond the last of
    them there is nothing to compare with.
    """
    last = f"{max(row['requests'] for row in rows)}"
    at = {(row["method"], row["seed"]): row for row in rows if row["after"] == last}
    seeds = sorted({seed for _, seed in at})
    lines = ["| | lr | utility | EM | ES | gain at equal EM | gain at equal ES |", "|---|---|---|---|---|---|---|"]
    for label, step in sorted(steps.items(), key=lambda item: (item[1].base, item[1].lr)):
        if step.held:
            own = [at[label, seed] for seed in seeds]
            alone = [name for name, other in steps.items() if other.base == step.base and not other.held]
            cells = [_told([row[score] for row in own]) for score in ("mu_first", "em", "es")]
            for metric in FORGOTTEN:
                others = [[at[name, seed] for name in alone] for seed in seeds]
                curves = [sorted((row[metric], row["mu_first"]) for row in among) for among in others]
                against = [_between(curve, row[metric]) for curve, row in zip(curves, own, strict=True)]
                found = [row["mu_first"] - y for row, y in zip(own, against, strict=True) if y is not None]
                cells.append(_told(found) + (f" ({len(found)} of {len(own)})" if len(found) < len(own) else ""))
            lines.append(f"| {step.base}+cop | {step.lr:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _told(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.1f} [{min(values):.1f}, {max(values):.1f}]" if values else "–"


def _between(curve: Sequence[tuple[float, float]], x: float) -> float | None:
    for (left, low), (right, high) in pairwise(curve):
        if left <= x <= right:
            return low + (high - low) * (x - left) / (right - left) if right > left else (low + high) / 2
    return None


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
    names = [name for name, cap in set(found.values()) if cap != ALONE]
    return {label: (name, cap) for label, (name, cap) in found.items() if names.count(name) > 1}


def steps_of(stream: Stream) -> dict[str, Step]:
    """By label, the objective and its learning rate; of those that were run with more than one."""
    found = {
        label: Step(method.name, method.cop is not None, method.tuning.lr)
        for label, method in stream.methods.items()
        if isinstance(method, Descent)
    }
    groups = [(step.base, step.held) for step in set(found.values())]
    return {label: step for label, step in found.items() if groups.count((step.base, step.held)) > 1}


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
    caps, steps = caps_of(stream), steps_of(stream)
    name, drawn = "courses", partial(courses, rows)
    if steps:
        name, drawn = "fronts", partial(fronts, rows, steps)
        print(gains(rows, steps))
    elif caps:
        name, drawn = "ranks", partial(ranks, rows, caps)
    asked.out.mkdir(parents=True, exist_ok=True)
    picture = svg(name, drawn, f"{stream.title}: {' and '.join(SHOWN.values())}").replace("currentColor", INK)
    write(asked.out / f"{name}.svg", picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).encode())
    kept = [{key: row[key] for key in KEPT if key in row} for row in rows]
    write(asked.out / "rows.json", ("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n").encode())


if __name__ == "__main__":
    main()
