"""A stream of requests for people: figures, one HTML file, models that transformers loads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from letheon import config, tree
from letheon.files import write, write_json
from letheon.report import stream_table
from letheon.report.drawing import DASHES, FAINT, INK, MAIN, MARKERS, OTHERS, svg
from letheon.report.html import ENVIRONMENT
from letheon.report.toml import as_toml
from letheon.report.words import amount, spread
from letheon.stream.life import StreamRun, module_of
from letheon.stream.results import CONTINUED, StreamResults
from letheon.text.language import save_model

Row = Mapping[str, Any]
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
    write(run.folder / "table.csv", stream_table.as_csv(content["rows"]).encode())
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


def html(results: StreamResults, content: Mapping[str, Any]) -> str:
    """The page: one file, no network."""
    run, rows = results.run, content["rows"]
    methods = content["methods"]
    return ENVIRONMENT.get_template("stream.html.j2").render(
        title=run.stream.title or "A stream of requests",
        digest=run.stream.digest,
        seed=run.stream.seed,
        sizes=[len(request.samples) for request in run.stream.requests],
        table=stream_table.lines(rows),
        apart=stream_table.apart(content["apart"]) if content["apart"] else [],
        heads=stream_table.heads(rows),
        broken=stream_table.broken(rows),
        figures=[
            (_figure(results, rows, "mu", "MU: model utility (%)"), UTILITY),
            (_figure(results, rows, "mu_first", f"MU of {rows[0]['first_set']} (%)"), "The same of this set alone."),
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


def _cost(row: Row) -> tuple[str, ...]:
    return (
        row["method"],
        f"request {row['after']}",
        amount(row["seconds"]),
        amount(row["flops"] / 1e9),
        amount(row["memory_bytes"] / 1e6),
        *(spread(row.get(name), None, None, 1) for name in ("free", "held")),
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
