"""OpenUnlearning's result file (``TOFU_EVAL.json``), read and written: ``agg_value``, ``value_by_index`` by metric.

Its own files do not say which model and data they are of, and are reused by path. Ours have the same layout with two
more keys: ``letheon``, which says it, and ``sha256``, a checksum. A file is reused only for what it says it is of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from letheon.errors import DataError
from letheon.files import read_sealed, write_sealed
from letheon.metrics.measurement import Undefined
from letheon.metrics.text import VERSIONS, definition
from letheon.metrics.text.logs import is_number, parsed, refuse
from letheon.metrics.text.scores import Scores, Unit, Value, named
from letheon.metrics.text.truth_ratio import log_truth_ratios

OURS = "letheon"
UNDEFINED = "undefined"
"""Beside a null of ours: why there is no value."""
Identity = Mapping[str, str]
"""What an evaluation is of: digests of model, data, tokenizer and settings, by name."""
FORGET = ("forget_Q_A_Prob", "forget_Q_A_PARA_Prob", "forget_Q_A_PERT_Prob", "forget_Q_A_ROUGE", "forget_truth_ratio")
UTILITY = {
    "retain": ("retain_Q_A_Prob", "retain_Q_A_ROUGE", "retain_Truth_Ratio"),
    "real_authors": ("ra_Q_A_Prob_normalised", "ra_Q_A_ROUGE", "ra_Truth_Ratio"),
    "world_facts": ("wf_Q_A_Prob_normalised", "wf_Q_A_ROUGE", "wf_Truth_Ratio"),
}
"""Its names of probability, ROUGE and truth ratio of each set."""


@dataclass(frozen=True, slots=True)
class Result:
    """One metric: its aggregate, and the fields of each item. Items that OpenUnlearning gave no value are None."""

    aggregate: Value
    items: Mapping[str, Mapping[str, Any] | None]

    def values(self, field: str) -> dict[str, Any]:
        """A field of each item, keyed by item: a missing one does not move those after it."""
        return {item: _value(row, field) for item, row in self.items.items()}

    def scores(self, name: str, field: str, *, unit: Unit = "share") -> Scores:
        """A field as scores of one of our definitions, by its full name."""
        return Scores(name, self.values(field), unit)


def read(
    path: Path, *, needs: Mapping[str, Collection[str] | None], identity: Identity | None = None
) -> dict[str, Result]:
    """The metrics of a result file.

    Args:
        path: the file, ours or OpenUnlearning's.
        needs: the metrics that must be there, by its names, and the items that each must have; None for any items.
        identity: what the file must be of. None takes it for what the caller says it is, as with a foreign reference.

    Raises:
        DataError: half-written, incomplete (what is missing is named), or of something else.
        JournalError: ours, and altered after it was written.
    """
    content = parsed(path)
    if OURS in content:
        content = read_sealed(path)
    refuse_stale(path, content.get(OURS), identity)
    problems = [problem for name, items in needs.items() for problem in _problems(content.get(name), items, name)]
    refuse(path, problems)
    return {name: _result(value) for name, value in content.items() if isinstance(value, dict) and "agg_value" in value}


def write(
    path: Path, metrics: Mapping[str, tuple[Scores, str]], *, aggregates: Mapping[str, Value], identity: Identity
) -> None:
    """A file that OpenUnlearning's tools read, whole or not at all.

    Args:
        path: the file.
        metrics: by its names: the scores, and the field that its items hold (``prob``, ``rougeL_recall``, ``score``).
            The aggregate is the mean of the items that have a value.
        aggregates: numbers without items (``model_utility``, ``forget_quality``).
        identity: what the evaluation is of.
    """
    if not identity:
        raise ValueError("an evaluation that does not say what it is of cannot be told from a stale one")
    content: dict[str, Any] = {name: _told("agg_value", value) for name, value in aggregates.items()}
    for name, (scores, field) in metrics.items():
        items = {item: _told(field, value) for item, value in scores.values.items()}
        content[name] = _told("agg_value", scores.mean()) | {"value_by_index": items}
    definitions = {name: scores.definition for name, (scores, _) in metrics.items()}
    write_sealed(path, content | {OURS: {"identity": dict(identity), "definitions": definitions}})


def log_ratios(true: Result, false: Result) -> Scores:
    """Log truth ratios from ``…_PARA_Prob`` and ``…_PERT_Prob``: geometric, over the paraphrase."""
    return log_truth_ratios(true.values("avg_loss"), false.values("avg_loss"))


def _told(field: str, value: Value) -> dict[str, Any]:
    if isinstance(value, Undefined):
        return {field: None, UNDEFINED: value.reason, "status": value.status}
    return {field: value}


def refuse_stale(path: Path, found: Any, identity: Identity | None) -> None:
    """Raises ``DataError`` with what differs, unless a file is of what it must be of and by today's definitions."""
    if identity is None:
        return
    if not isinstance(found, dict) or not isinstance(found.get("identity"), dict):
        raise DataError(
            f"{path}: does not say which model and data it is of; evaluate again, or name it as a reference"
        )
    theirs = found["identity"]
    differing = [
        f"{name} is {theirs.get(name)}, wanted {identity.get(name)}"
        for name in sorted(theirs.keys() | identity.keys())
        if theirs.get(name) != identity.get(name)
    ]
    differing += [f"{metric} is by {told}" for metric, told in found.get("definitions", {}).items() if _is_old(told)]
    if differing:
        raise DataError(f"{path}: stale, evaluate again: {'; '.join(differing)}")


def _is_old(told: str) -> bool:
    name, _, form = told.partition("/")
    return name not in VERSIONS or definition(name, form.partition(":")[2]) != told


def _problems(found: Any, items: Collection[str] | None, name: str) -> list[str]:
    if not isinstance(found, dict):
        return [f"{name} is missing"]
    if not is_number(found.get("agg_value")) and UNDEFINED not in found:
        return [f"{name} has no aggregate"]
    rows = found.get("value_by_index")
    if items is None:
        return []
    if not isinstance(rows, dict):
        return [f"{name} has no items"]
    lacking = [item for item in items if rows.get(item) is None]
    return [f"{name} lacks items {named(lacking)}"] if lacking else []


def _result(value: Mapping[str, Any]) -> Result:
    rows = value.get("value_by_index")
    aggregate = _value(value, "agg_value")
    return Result(Undefined("the aggregate is a list") if isinstance(aggregate, list) else aggregate, rows or {})


def _value(row: Mapping[str, Any] | None, field: str) -> Value | list[Value]:
    fields = row or {}
    found = fields.get(field)
    if isinstance(found, list) and found and all(is_number(v) for v in found):
        return [float(v) for v in found]
    if is_number(found):
        return float(found)
    return Undefined(fields.get(UNDEFINED, f"the file has no {field}"), fields.get("status", "undefined"))
