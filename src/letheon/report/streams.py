"""A stream of requests for people: tables for terminals and Markdown, figures, one HTML file."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from letheon import config, tree
from letheon.files import write, write_json
from letheon.report.drawing import DASHES, FAINT, INK, MAIN, MARKERS, OTHERS, svg
from letheon.report.html import ENVIRONMENT
from letheon.report.toml import as_toml
from letheon.report.words import amount, spread
from letheon.stream.life import StreamRun, module_of
from letheon.stream.results import CONTINUED, TITLES, StreamResults
from letheon.text.language import save_model

Row = Mapping[str, Any]
SHOWN = ("rouge", "es", "em", "truth_ratio", "kr")
"""Scores of the table; all are in results.json."""
WITHOUT_RATIOS = ("rouge", "es", "em", "probability")
"""The same where the questions have no false answers."""
LEFT_OUT = ("probability", "em")
"""Scores of what is asked apart that only results.json has."""
DOES_NOT_SHOW = (
    "These are answers to the questions that were asked, in the words they were asked in. Other words, other "
    "languages, attacks on the prompt, fine-tuning or a look into the weights can bring back what these numbers do not "
    "show.",
    "ES and EM are teacher-forced: the true beginning of the answer is given. FR is what the model writes by itself.",
    "TR and KR compare answers of equal shape and are not monotone: a model that prefers false answers scores like "
    "one that still knows.",
    "Utility is measured on the task's own questions. What else the model could do before was not looked at.",
    "Intervals are at the 95 % level and cover the draw of questions, not the seed: one run is one seed.",
    "Whoever ran this also measured it. Nobody else has checked the numbers.",
)


def write_artefacts(run: StreamRun, *, models: bool = True) -> Path:
    """Write results, tables, models and report into the run's folder; returns the report's path."""
    results = StreamResults(run)
    content = results.content()
    write_json(run.folder / "results.json", content)
    write(run.folder / "table.csv", as_csv(content["rows"]).encode())
    write(run.folder / "experiment.toml", as_toml(config.plain(run.stream)).encode())
    if models:
        _write_models(run)
    path = run.folder / "report.html"
    write(path, html(results, content).encode())
    return path


def _write_models(run: StreamRun) -> None:
    """The last model of each method as a folder that transformers loads; those between are in the stages."""
    task, finals = run.stream.texts, {"origin": run.origin.state}
    finals |= {label: (served.continued or served.outcomes[-1]).state for label, served in run.served.items()}
    for label, state in finals.items():
        folder = run.folder / "models" / "".join(c if c.isalnum() or c in "-_+=." else "_" for c in label)
        mark, digest = folder / "letheon.sha256", tree.digest(state.params | state.buffers)
        if mark.is_file() and mark.read_text().strip() == digest:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        module = module_of(run, state)
        save_model(folder, module.lm, task.encoder.tokenizer)
        write(mark, f"{digest}\n".encode())


def _shown(rows: Sequence[Row]) -> Sequence[str]:
    return SHOWN if "truth_ratio" in rows[0] else WITHOUT_RATIOS


def as_text(rows: Sequence[Row]) -> Table:
    """After each request: forgetting over all texts so far, and utility."""
    names = _shown(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("method", "after", *(f"{TITLES[name]} %" for name in names), "MU %"):
        table.add_column(name, overflow="fold")
    for row in rows:
        cells = [spread(row[n], row[f"{n}_low"], row[f"{n}_high"], 1) for n in (*names, "mu")]
        table.add_row(row["method"], _after(row), *cells)
    return table


def _after(row: Row) -> str:
    if row["after"] == CONTINUED:
        return CONTINUED
    return f"request {row['after']}" if row["method"] != "origin" else f"(of {row['after']})"


def as_markdown(rows: Sequence[Row]) -> str:
    """The same table in Markdown."""
    names = _shown(rows)
    head = ["method", "after", *(f"{TITLES[name]} %" for name in names), "MU %"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for row in rows:
        cells = [spread(row[n], row[f"{n}_low"], row[f"{n}_high"], 1) for n in (*names, "mu")]
        lines.append(f"| {row['method']} | {_after(row)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def apart(rows: Sequence[Row]) -> list[list[str]]:
    """What was asked beside the table's questions: a line a group, a column for each model after the last request.

    The first line holds the heads.
    """
    last = max((row["requests"] for row in rows), default=0)
    shown = [row for row in rows if row["requests"] == last and row["score"] not in LEFT_OUT]
    models = list(dict.fromkeys((row["method"], row["after"]) for row in shown))
    names = [method if after != CONTINUED else f"{method}, {CONTINUED}" for method, after in models]
    lines: dict[tuple[str, str, str], dict[tuple[str, str], str]] = {}
    for row in shown:
        line = lines.setdefault((row["set"], row["group"], row["score"]), {})
        places = 1 if row["score"] in SHOWN else 3
        line[row["method"], row["after"]] = spread(row["value"], row["value_low"], row["value_high"], places)
    found = [
        [name, group or "all", f"{TITLES[score]}{' %' if score in SHOWN else ''}", *(line[at] for at in models)]
        for (name, group, score), line in lines.items()
    ]
    return [["questions", "of them", "score", *names], *found]


def apart_as_text(rows: Sequence[Row]) -> Table:
    """The same for a terminal."""
    head, *lines = apart(rows)
    table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False)
    for line in lines:
        table.add_row(*line)
    return table


def as_csv(rows: Sequence[Row]) -> str:
    """All numbers, a row each."""
    out = StringIO()
    fields = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, fields, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def html(results: StreamResults, content: Mapping[str, Any]) -> str:
    """The page: one file, no network."""
    run, rows = results.run, content["rows"]
    names = _shown(rows)
    methods = content["methods"]
    return ENVIRONMENT.get_template("stream.html.j2").render(
        title=run.stream.title or "A stream of requests",
        digest=run.stream.digest,
        seed=run.stream.seed,
        sizes=[len(request.samples) for request in run.stream.requests],
        table=[[row["method"], _after(row), *_cells(row, (*names, "mu"))] for row in rows],
        apart=apart(content["apart"]) if content["apart"] else [],
        heads=["method", "after", *(f"{TITLES[name]} %" for name in names), "MU %"],
        figures=[
            (_figure(results, rows, "mu", "MU: model utility (%)"), UTILITY),
            (_figure(results, rows, "em", "EM: tokens memorised (%)"), MEMORISED),
        ],
        matrices=[(label, _matrix(methods[label]["matrix"]["em"])) for label in methods],
        relapses=[(label, _changes(methods[label], "em")) for label in methods],
        references=[(label, _reference(methods[label]["reference"])) for label in methods],
        costs=[_cost(row) for row in rows if "seconds" in row],
        limits=DOES_NOT_SHOW,
        experiment=as_toml(config.plain(run.stream)),
        definitions=content["versions"],
    )


UTILITY = (
    "Model utility after each request. Dashed: the objective alone; solid: with COP. Dotted: before the first request."
)
MEMORISED = "Exact memorisation over the texts of all requests so far: lower is more forgotten, down to the reference."


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    return [spread(row[n], row[f"{n}_low"], row[f"{n}_high"], 1) for n in names]


def _matrix(rows: Sequence[Sequence[Row]]) -> list[list[str]]:
    return [[spread(cell["value"], None, None, 1) for cell in row] for row in rows]


def _changes(method: Mapping[str, Any], metric: str) -> dict[str, list[str]]:
    return {
        kind: [spread(cell["value"], cell["value_low"], cell["value_high"], 1) for cell in method[kind][metric]]
        for kind in ("relapse", "after_training")
    }


def _reference(found: Row) -> str:
    if not found:
        return ""
    quality = "–" if found["log10_fq"] is None else f"10^{found['log10_fq']:.1f}"
    text = f"forget quality p = {quality} (KS distance {spread(found['ks'], found['ks_low'], found['ks_high'], 2)})"
    if "rr" not in found:
        return text
    rate = spread(found["rr"], found["rr_low"], found["rr_high"], 1) if found["rr"] is not None else found["rr_reason"]
    return f"{text}; resurfacing rate {rate}"


def _cost(row: Row) -> tuple[str, str, str, str, str]:
    return (
        row["method"],
        _after(row),
        amount(row["seconds"]),
        amount(row["flops"] / 1e9),
        amount(row["memory_bytes"] / 1e6),
    )


def _figure(results: StreamResults, rows: Sequence[Row], metric: str, what: str) -> Markup:
    return Markup(svg(metric, lambda: _courses(results, rows, metric, what), f"{what} after each request"))


def _courses(results: StreamResults, rows: Sequence[Row], metric: str, what: str) -> Figure:
    """A number after each request, one line a method."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    axes = figure.subplots()
    bases = list(dict.fromkeys(label.partition("+")[0] for label in results.streams()))
    for label in results.streams():
        _line(axes, [r for r in rows if r["method"] == label], metric, label, bases.index(label.partition("+")[0]))
    if results.retrain:
        _level(axes, [r for r in rows if r["method"] == results.retrain], metric, "Retrain", INK)
    _level(axes, [r for r in rows if r["method"] == "origin"][-1:], metric, "Origin", FAINT)
    axes.set(xlabel="after request", ylabel=what, xticks=range(1, results.count + 1), ylim=(-2, 102))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=6)
    return figure


def _line(axes: Axes, rows: Sequence[Row], metric: str, label: str, at: int) -> None:
    points = [(row["requests"], row[metric]) for row in rows if row["after"] != CONTINUED and row[metric] is not None]
    color = (MAIN, *OTHERS)[at % (len(OTHERS) + 1)]
    held = "+" in label
    dashes = "-" if held else DASHES[1]
    face = color if held else "none"
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=color,
        linestyle=dashes,
        marker=MARKERS[at % len(MARKERS)],
        markerfacecolor=face,
        label=label,
    )


def _level(axes: Axes, rows: Sequence[Row], metric: str, name: str, color: str) -> None:
    values = [row[metric] for row in rows if row[metric] is not None]
    if values:
        axes.axhline(values[0], color=color, linestyle=DASHES[2], label=name, zorder=1)
