"""From a row of a target to experiments, and from what they gave to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from letheon import config
from letheon.errors import ConfigError
from letheon.experiment import Experiment
from letheon.files import write, write_json
from letheon.reproduce.comparison import Comparison
from letheon.reproduce.page import as_markdown
from letheon.reproduce.targets import Recipe, Scale, Target


def experiment_of(target: Target, row: str, scale: Scale, *, recipe: Recipe, sets: Sequence[str]) -> Experiment:
    """The experiment of a row, with what was set on the command line; seeds follow from it by ``replace``.

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
    return replace(config.build(Experiment, table, where), title=f"{target.rows[row]}, {scale} scale")


def experiments_of(first: Experiment, recipe: Recipe, *, seeds: int, sets: Sequence[str]) -> list[Experiment]:
    """The runs of a row: one for each seed and, where the row is a mean over classes, each class.

    Args:
        first: as ``experiment_of`` gives it.
        recipe: of the row.
        seeds: how many, from that of ``first`` on.
        sets: as on the command line; a class, or a whole request, that is set there is the only one that goes.
    """
    by_hand = {text.partition("=")[0].strip() for text in sets} & {"request", "request.label", "request.scope"}
    labels = [first.request.label] if by_hand or not recipe.labels else recipe.labels
    return [
        replace(first, seed=first.seed + i, request=replace(first.request, label=label))
        for i in range(seeds)
        for label in labels
    ]


def run_folder(out: Path, experiment: Experiment) -> Path:
    """By task, request, seed and digest: targets that run the same experiment share its folder."""
    kind = f"{experiment.task.name}-{experiment.request.scope}"
    return out / "runs" / f"{kind}-seed{experiment.seed}-{experiment.digest[:8]}"


def keep(found: Comparison, out: Path) -> Path:
    """Write ``TARGET-ROW-SCALE.md`` and ``.json`` to ``out``; returns the path of the Markdown."""
    path = out / f"{found.target}-{found.row}-{found.scale}.md"
    write_json(path.with_suffix(".json"), asdict(found))
    write(path, as_markdown(found).encode())
    return path
