"""All diagnostics of a finished run, and the file that keeps them: ``RUN/diagnostics.json``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from letheon import tree
from letheon.diagnostics import VERSIONS
from letheon.diagnostics.drives import drives
from letheon.diagnostics.material import Sight, Subject, material, subjects
from letheon.diagnostics.measures import Measures, Row, Suite
from letheon.errors import ConfigError, Diverged, JournalError
from letheon.files import read_sealed, write_sealed
from letheon.folder import versions
from letheon.pipeline import Run

log = logging.getLogger(__name__)

FILE = "diagnostics.json"
SHORT: dict[str, str] = {
    "rt": "rollback",
    "lmc": "connectivity",
    "fd": "features",
    "relearn": "relearning",
    "mia": "membership",
    "probe": "probe",
}
"""The paper's letters, or a word, for each section."""
Found = dict[str, Any]


def sections(names: str) -> list[str]:
    """The sections that a list such as ``rt,lmc`` names, in their own order; all if it is empty.

    Raises:
        ConfigError: a name that none has.
    """
    asked = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in asked if name not in SHORT and name not in VERSIONS]
    if unknown:
        raise ConfigError(f"diagnostics: unknown {unknown[0]!r}; use some of {', '.join(SHORT)}")
    wanted = {SHORT.get(name, name) for name in asked}
    return [name for name in VERSIONS if name in wanted or not wanted]


def diagnose(
    run: Run,
    only: Sequence[str] = tuple(VERSIONS),
    *,
    suite: Suite | None = None,
    workers: int | None = None,
    heard: Callable[[str, str], None] | None = None,
) -> Found:
    """Measure every model of a run: Origin, each method's at the end of unlearning, and a norm-matched random step.

    What the run has not stored is trained again, in this process and beside the run's folder. Neither the number of
    workers nor which sections are asked for changes a number.

    Args:
        run: a finished run.
        only: names of sections.
        suite: how far they go.
        workers: clients trained at a time.
        heard: called with the section and the label of the model that is next.
    """
    with drives(run, workers=workers) as driven:
        suite = suite or Suite()
        seen = material(run.population, samples=suite.samples)
        measures = Measures(run, suite, seen, Sight(run.experiment.task), driven)
        return about(run) | {"sections": {name: _section(measures, name, heard) for name in only}}


def _section(measures: Measures, name: str, heard: Callable[[str, str], None] | None) -> Found:
    rows = {}
    for subject in _shown(measures.run, name):
        log.info("diagnostics: %s of %s", name, subject.label)
        if heard:
            heard(name, subject.label)
        rows[subject.label] = _row(measures.by_section[name], subject)
    return {"definition": VERSIONS[name], "settings": asdict(measures.suite), "rows": rows}


def _shown(run: Run, section: str) -> list[Subject]:
    """The models of a section; a probe reads much off features that nobody has trained, so these are beside it."""
    fresh = run.experiment.task.init(run.experiment.seed)
    untrained = [Subject("untrained", "noise", fresh, fresh)] if section == "probe" else []
    return [*subjects(run), *untrained]


def _row(measure: Callable[[Subject], Row], subject: Subject) -> Row:
    """The row with ``undefined``: empty, or why nothing could be measured."""
    if subject.diverged:
        return {"undefined": f"collapsed: {subject.diverged}"}
    try:
        return measure(subject) | {"undefined": ""}
    except Diverged as error:
        return {"undefined": f"collapsed while it was trained further: {error}"}


def about(run: Run) -> Found:
    """What diagnostics belong to: the run, its models, and what the numbers depend on besides."""
    models = {subject.label: subject.state for subject in subjects(run)}
    return {
        "run": run.experiment.digest,
        "models": {label: tree.digest(state.params | state.buffers) for label, state in models.items()},
        "subjects": list(models),
        "main": run.main,
        "retrain": next(iter(run.unlearned)),
        "n_forget": run.population.forget_size,
        "versions": versions(),
    }


def keep(run: Run, found: Mapping[str, Any]) -> Path:
    """Write ``RUN/diagnostics.json``; what earlier calls found by the same code on the same models stays in it."""
    try:
        before = kept(run)
    except JournalError as error:
        log.warning("%s", error)
        before = None
    earlier = before["sections"] if before and before["versions"] == found["versions"] else {}
    path = run.folder / FILE
    write_sealed(path, {**found, "sections": earlier | found["sections"]})
    return path


def kept(run: Run) -> Found | None:
    """What ``keep`` wrote, without what this version defines otherwise; None if there is none for these models.

    Raises:
        JournalError: the file is damaged.
    """
    path = run.folder / FILE
    if not path.is_file():
        return None
    try:
        found = read_sealed(path)
        if (found["run"], found["models"]) != (run.experiment.digest, about(run)["models"]):
            log.warning("%s: belongs to other models; run `letheon diagnose` again", path)
            return None
        known = {name: part for name, part in found["sections"].items() if part["definition"] == VERSIONS.get(name)}
    except (JournalError, KeyError, TypeError) as error:
        raise JournalError(f"{path}: damaged ({error}); run `letheon diagnose` again, or remove it") from error
    return found | {"sections": known}
