"""TOFU's own evaluation logs, read whole or not at all: what is missing is named, and nothing is made of the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from letheon.errors import DataError
from letheon.metrics.text import definition
from letheon.metrics.text.probability import option_probabilities, probabilities
from letheon.metrics.text.scores import Scores, named
from letheon.metrics.text.truth_ratio import Mean, Truth, log_truth_ratios, truth_ratios

SETS = {
    "retain": "eval_log.json",
    "real_authors": "eval_real_author_wo_options.json",
    "world_facts": "eval_real_world_wo_options.json",
    "forget": "eval_log_forget.json",
}
"""What TOFU calls each set."""
NUMBERS = ("avg_gt_loss", "avg_paraphrased_loss", "rougeL_recall")
LISTS = ("average_perturb_loss",)
FIELDS = (*NUMBERS, *LISTS, "generated_text")
PROBLEMS = 8
"""So many problems of a file are told; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What the model was asked, what it wrote, and what was right."""

    prompt: str
    generation: str
    reference: str


@dataclass(frozen=True, slots=True)
class Answers:
    """One set of a TOFU log, by item: length-normalised losses in nats.

    Attributes:
        loss: of the answer.
        paraphrase_loss: of its paraphrase; of the answer again where no paraphrase exists (real authors, world facts).
        false_losses: of the perturbed answers.
        rouge: ROUGE-L recall as logged.
        texts: named, since the log's own triples have been misread.
    """

    loss: Mapping[str, float]
    paraphrase_loss: Mapping[str, float]
    false_losses: Mapping[str, Sequence[float]]
    rouge: Mapping[str, float]
    texts: Mapping[str, Generation]

    def log_ratios(self, *, mean: Mean = "geometric", truth: Truth = "paraphrase") -> Scores:
        """Log truth ratios; ``truth`` is what the denominator holds."""
        losses = self.paraphrase_loss if truth == "paraphrase" else self.loss
        return log_truth_ratios(losses, self.false_losses, mean=mean, truth=truth)

    def rouges(self) -> Scores:
        """ROUGE-L recall as logged."""
        return Scores(definition("rouge_l_recall"), self.rouge)


def utility_sets(log: Mapping[str, Answers], *, mean: Mean = "geometric") -> dict[str, dict[str, Scores]]:
    """What model utility is the mean of: probability among the options everywhere but on the retain set."""
    return {
        name: {
            "probability": probabilities(log[name].loss)
            if name == "retain"
            else option_probabilities(log[name].loss, log[name].false_losses),
            "rouge": log[name].rouges(),
            "truth_ratio": truth_ratios(log[name].log_ratios(mean=mean), "true"),
        }
        for name in SETS
        if name != "forget"
    }


def read_tofu(path: Path, *, sizes: Mapping[str, int] | None = None) -> dict[str, Answers]:
    """The four sets of an ``eval_log_aggregated.json``.

    Args:
        path: the file.
        sizes: how many items each set must have, by our names of ``SETS``; a log of a run that was killed has fewer.

    Raises:
        DataError: it is half-written, or sets, fields, items or numbers are missing. All of them are named.
    """
    content = parsed(path)
    problems: list[str] = []
    for name, theirs in SETS.items():
        found = content.get(theirs)
        problems += _problems(found, (sizes or {}).get(name), f"{name} ({theirs})")
    refuse(path, problems)
    return {name: _answers(content[theirs]) for name, theirs in SETS.items()}


def parsed(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        DataError: there is none, or it breaks off.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise DataError(f"{path}: half-written or no JSON ({error}); evaluate again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, an object is wanted")
    return content


def refuse(path: Path, problems: Sequence[str]) -> None:
    """Raises ``DataError`` with all that is wrong with a file, if anything is."""
    if problems:
        rest = f"; and {len(problems) - PROBLEMS} more" if len(problems) > PROBLEMS else ""
        raise DataError(f"{path}: incomplete, evaluate again: {'; '.join(problems[:PROBLEMS])}{rest}")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number, truth values aside."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _problems(found: Any, size: int | None, name: str) -> list[str]:
    if not isinstance(found, dict):
        return [f"{name} is missing"]
    missing = [field for field in FIELDS if not isinstance(found.get(field), dict)]
    if missing:
        return [f"{name} lacks {', '.join(missing)}"]
    problems = []
    items: set[str] = set().union(*(found[field] for field in FIELDS))
    if len(items) != (len(items) if size is None else size) or not items:
        problems.append(f"{name} has {len(items)} items, {size or 'some'} are wanted")
    for field in FIELDS:
        problems += _of(name, field, "misses", items - found[field].keys())
    for field in NUMBERS:
        problems += _of(name, field, "is no number for", (i for i, v in found[field].items() if not is_number(v)))
    for field in LISTS:
        usual = max((len(v) for v in found[field].values() if isinstance(v, list)), default=0)
        problems += _of(
            name, field, f"is not {usual} numbers for", (i for i, v in found[field].items() if not _is_row(v, usual))
        )
    texts = found["generated_text"].items()
    problems += _of(
        name, "generated_text", "is not prompt, generation, answer for", (i for i, v in texts if not _is_told(v))
    )
    return problems


def _of(name: str, field: str, verb: str, items: Iterable[str]) -> list[str]:
    found = list(items)
    return [f"{name}: {field} {verb} {named(found)}"] if found else []


def _is_row(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length > 0 and all(is_number(v) for v in value)


def _is_told(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(text, str) for text in value)


def _answers(found: Mapping[str, Any]) -> Answers:
    return Answers(
        loss=found["avg_gt_loss"],
        paraphrase_loss=found["avg_paraphrased_loss"],
        false_losses=found["average_perturb_loss"],
        rouge=found["rougeL_recall"],
        texts={item: Generation(*texts) for item, texts in found["generated_text"].items()},
    )
