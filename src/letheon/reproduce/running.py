"""From a row of a target to experiments, and from what they gave to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from letheon import config, registry
from letheon.errors import ConfigError
from letheon.experiment import Experiment
from letheon.files import write, write_json
from letheon.reproduce.comparison import Comparison
from letheon.reproduce.page import as_markdown
from letheon.reproduce.targets import Recipe, Scale, Target
from letheon.stream.experiment import Stream


def experiment_of(
    target: Target, row: str, scale: Scale, *, recipe: Recipe, sets: Sequence[str]
) -> Experiment | Stream:
    """The experiment of a row, or the stream if its task has texts, with what was set on the command line.

    Seeds follow from it by ``replace``.

    Raises:
        ConfigError: something that the row cannot do without is not installed, or a ``--set`` cannot be used.
    """
    if recipe.needs:
        raise ConfigError(
            f"{target.id}, row {row}: needs {', '.join(recipe.needs)}, which this installation does not have; "
            "`letheon reproduce --list` shows what can run"
        )
    table = dict(recipe.table)
    for text in sets:
        table = config.override(table, text)
    where = f"{target.id}, row {row}, {scale} scale"
    title = f"{target.rows[row]}, {scale} scale"
    task = table["task"] if isinstance(table["task"], str) else table["task"]["name"]
    if registry.entry("task", task).language:
        return replace(config.build(Stream, table, where), title=title)
    return replace(config.build(Experiment, table, where), title=title)


def experiments_of(
    first: Experiment | Stream, recipe: Recipe, *, seeds: int, sets: Sequence[str]
) -> list[Experiment] | list[Stream]:
    """The runs of a row: one for each seed and, where the row is a mean over classes, each class.

    Args:
        first: as ``experiment_of`` gives it.
        recipe: of the row.
        seeds: how many, from that of ``first`` on.
        sets: as on the command line; a class, or a whole request, that is set there is the only one that goes.
    """
    if isinstance(first, Stream):
        return [replace(first, seed=first.seed + i) for i in range(seeds)]
    by_hand = {text.partition("=")[0].strip() for text in sets} & {"request", "request.label", "request.scope"}
    labels = [first.request.label] if by_hand or not recipe.labels else recipe.labels
    return [
        replace(first, seed=first.seed + i, request=replace(first.request, label=label))
        for i in range(seeds)
        for label in labels
    ]


def run_folder(out: Path, experiment: Experiment | Stream) -> Path:
    """By task, request, seed and digest: targets that run the same experiment share its folder."""
    what = experiment.request.scope if isinstance(experiment, Experiment) else "stream"
    kind = f"{experiment.task.name}-{what}"
    return out / "runs" / f"{kind}-seed{experiment.seed}-{experiment.digest[:8]}"


def keep(found: Comparison, out: Path) -> Path:
    """Write ``TARGET-ROW-SCALE.md`` and ``.json`` to ``out``; returns the path of the Markdown."""
    path = out / f"{found.target}-{found.row}-{found.scale}.md"
    write_json(path.with_suffix(".json"), asdict(found))
    write(path, as_markdown(found).encode())
    return path


def check_device(experiment: Experiment | Stream) -> None:
    """Refuse a stream for a GPU where there is none, before a model is fetched for it.

    Raises:
        ConfigError: torch sees no GPU.
    """
    if isinstance(experiment, Stream) and experiment.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"{experiment.title}: needs a GPU (device = {experiment.device!r}), and torch sees none; take "
            "--scale small, or --set device=cpu with days of time"
        )
