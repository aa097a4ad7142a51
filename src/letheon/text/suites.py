"""Examinations of a model in a folder: the benchmarks' own sets, whoever made the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from letheon import tree
from letheon.errors import ConfigError
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.text import openunlearning as field
from letheon.metrics.text.forget_quality import forget_quality
from letheon.metrics.text.retention import item_retention, signed_retention
from letheon.metrics.text.scores import Scores
from letheon.metrics.text.truth_ratio import truth_ratios
from letheon.metrics.text.utility import TOFU, model_utility
from letheon.runtimes.alone import threads as using
from letheon.tasks.base import params_of
from letheon.tasks.text import Questions
from letheon.tasks.tofu import Forgotten, Tofu, spread
from letheon.text.encoding import Encoder, Template
from letheon.text.exam import Exam, digest, examine, read_exam, write_exam
from letheon.text.language import LanguageModel, loaded, read_model

FORGET = "forget"


@dataclass(frozen=True, slots=True)
class Suite:
    """What to ask, and how.

    Attributes:
        name: ``tofu``.
        forget: which rows are the ones to forget.
        items: questions of each set, evenly spread; None: all.
        template: ``chat`` or ``plain``: as the model was trained.
        tokens: of a written answer, at most.
    """

    name: str = "tofu"
    forget: str = "forget05"
    items: int | None = None
    template: str = "chat"
    tokens: int = 200

    def __post_init__(self) -> None:
        if self.name != "tofu":
            raise ConfigError(f"--suite {self.name}: unknown; use tofu")
        if self.forget not in get_args(Forgotten):
            raise ConfigError(f"--forget {self.forget}: unknown; use {', '.join(get_args(Forgotten))}")
        if self.template not in get_args(Template):
            raise ConfigError(f"--template {self.template}: use {' or '.join(get_args(Template))}")

    def sets(self) -> dict[str, Questions]:
        """The texts to forget, and the sets of utility."""
        task = Tofu(forget=self.forget, parts=1, items=self.items)  # type: ignore[arg-type]
        learnt = task.learnt()
        asked = {str(i): learnt[i] for i in task.requests()[0]}
        return {FORGET: Questions(spread(asked, self.items)), **task.questions()}


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model's examination, and the reference's if one was named."""

    exam: Exam
    reference: Exam | None


def evaluate(
    suite: Suite,
    model: str,
    *,
    reference: str | None = None,
    out: Path | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> Evaluated:
    """Examine the model in a folder, and the reference; what ``out`` holds of this very model is not made again."""
    with using(threads):
        ours = _examined(suite, model, device, out)
        theirs = _examined(suite, reference, device, out and out.with_suffix(".reference.json")) if reference else None
    return Evaluated(ours, theirs)


def _examined(suite: Suite, model: str, device: str, out: Path | None) -> Exam:
    module = LanguageModel(read_model(model)).to(device)
    sets = suite.sets()
    identity = {
        "model": tree.digest(params_of(module)),
        "questions": digest(sets, new=suite.tokens),
        "template": suite.template,
    }
    found = read_exam(out, identity) if out else None
    if found is None:
        encoder = Encoder(loaded(model), suite.template)  # type: ignore[arg-type]
        found = examine(module, encoder, sets, new=suite.tokens, identity=identity)
        if out:
            write_exam(out, found)
    return found


def scores(exam: Exam) -> dict[str, dict[str, Scores]]:
    """All scores by set: as examined, and what is made of truth ratios."""
    found = {name: dict(row) for name, row in exam.sets.items()}
    for name, row in found.items():
        ratios = row.pop("log_ratio", None)
        if ratios is None:
            continue
        row["truth_ratio"] = truth_ratios(ratios, "closer" if name == FORGET else "true")
        if name == FORGET:
            row |= {"kr": item_retention(ratios), "kr_signed": signed_retention(ratios)}
    return found


def utility(exam: Exam) -> Measurement:
    """Model utility over TOFU's nine numbers, in per cent."""
    found = scores(exam)
    return model_utility({name: {score: found[name][score] for score in needs} for name, needs in TOFU.items()}).value


def content(told: Evaluated, suite: Suite) -> dict[str, Any]:
    """As plain data: every score with its interval, n and definition."""
    found = scores(told.exam)
    rows = [_row(name, score, x.measured(), x.definition) for name, row in found.items() for score, x in row.items()]
    rows.append(_row("all", "model_utility", utility(told.exam), "model_utility"))
    if told.reference:
        quality = forget_quality(_ratios(told.exam), _ratios(told.reference))
        rows.append(_row(FORGET, "ks_distance", quality.distance, "forget_quality"))
        value = quality.log10_p
        measured = Measurement(value, None, None, quality.distance.n)
        rows.append(_row(FORGET, "log10_forget_quality", measured, "forget_quality"))
    return {"suite": suite.name, "forget": suite.forget, "identity": dict(told.exam.identity), "scores": rows}


def _row(name: str, score: str, measured: Measurement, definition: str) -> dict[str, Any]:
    why = measured.value.reason if isinstance(measured.value, Undefined) else ""
    told = {"set": name, "score": score, **measured.fields("value"), "n": measured.n}
    return told | {"definition": definition, "why": why}


def _ratios(exam: Exam) -> Scores:
    return exam.sets[FORGET]["log_ratio"]


def write_openunlearning(path: Path, told: Evaluated) -> None:
    """The scores in OpenUnlearning's layout, by its names and rules (extraction strength never 0)."""
    found, exam = scores(told.exam), told.exam.sets[FORGET]
    metrics: dict[str, tuple[Scores, str]] = {
        "forget_Q_A_Prob": (found[FORGET]["probability"], "prob"),
        "forget_Q_A_ROUGE": (found[FORGET]["rouge"], "rougeL_recall"),
        "forget_truth_ratio": (found[FORGET]["truth_ratio"], "score"),
        "exact_memorization": (exam["em"], "score"),
        "extraction_strength": (exam["es_openunlearning"], "score"),
    }
    for name, (prob, rouge, ratio) in field.UTILITY.items():
        metrics |= {
            prob: (found[name]["probability"], "prob"),
            rouge: (found[name]["rouge"], "rougeL_recall"),
            ratio: (found[name]["truth_ratio"], "score"),
        }
    measured = utility(told.exam).value
    aggregates: Mapping[str, Any] = {
        "model_utility": measured if isinstance(measured, Undefined) else measured / 100.0,
    }
    if told.reference:
        aggregates = {**aggregates, "forget_quality": forget_quality(_ratios(told.exam), _ratios(told.reference)).p}
    field.write(path, metrics, aggregates=aggregates, identity=told.exam.identity)
