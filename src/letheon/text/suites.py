"""Examinations of a model in a folder: the benchmarks' own sets, whoever made the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from letheon import tree
from letheon.errors import ConfigError
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.text import openunlearning as field
from letheon.metrics.text.forget_quality import forget_quality
from letheon.metrics.text.mia import membership, reference_scores
from letheon.metrics.text.of_ratios import ABOUT_TRUTH, known, of_ratios
from letheon.metrics.text.scores import Scores
from letheon.metrics.text.utility import TOFU, model_utility
from letheon.runtimes.alone import threads as using
from letheon.tasks.base import params_of
from letheon.tasks.rwku import Rwku
from letheon.tasks.text import FORGET, Questions, TextTask
from letheon.tasks.tofu import Forgotten, Tofu, held_out, spread
from letheon.text.encoding import Template, best
from letheon.text.exam import Exam, digest, examine, groups, read_exam, write_exam
from letheon.text.language import LanguageModel, loaded, read_model


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Where a suite's questions come from.

    Attributes:
        task: one request for what is to be forgotten, from ``--forget`` and ``--items``.
        forget: of ``--forget``, if none is given.
        tokens: of a written answer, at most, if no number is given.
        texts: for ``--forget``, texts that are only read, where the task has none: those to forget and others that no
            model was trained on, by the names of ``MEMBERSHIP``; empty where they are not at hand.
    """

    task: Callable[[str, int | None], TextTask]
    forget: str
    tokens: int
    texts: Callable[[str], Mapping[str, Questions]] = lambda forget: {}


def _tofu(forget: str, items: int | None) -> TextTask:
    if forget not in get_args(Forgotten):
        raise ConfigError(f"--forget {forget}: unknown; use {', '.join(get_args(Forgotten))}")
    return Tofu(forget=forget, parts=1, items=items)  # type: ignore[arg-type]


def _tofu_texts(forget: str) -> Mapping[str, Questions]:
    task, unseen = Tofu(forget=forget, parts=1), held_out(forget)  # type: ignore[arg-type]
    if not unseen:
        return {}
    learnt = task.learnt()
    sides = [{str(i): learnt[i] for i in task.requests()[0]}, {str(i): pair for i, pair in enumerate(unseen)}]
    return {name: Questions(pairs, reply="none") for name, pairs in zip(MEMBERSHIP, sides, strict=True)}


def _rwku(forget: str, items: int | None) -> TextTask:
    if not forget.isdigit() or not 1 <= int(forget) <= MOST:
        raise ConfigError(f"--forget {forget}: of RWKU a number of people is wanted, 1 to {MOST}: the first so many")
    return Rwku(parts=1, subjects=int(forget), items=items)


MEMBERSHIP = ("forget_mia", "holdout_mia")
"""Sets of TOFU's texts for membership inference."""
MOST = 170
"""People of RWKU who can be the ones to forget: the other 30 are asked about to see what is kept."""
BENCHMARKS: Mapping[str, Benchmark] = {
    "tofu": Benchmark(_tofu, "forget05", 200, _tofu_texts),
    "rwku": Benchmark(_rwku, "5", 30),
}


@dataclass(frozen=True, slots=True)
class Suite:
    """What to ask, and how.

    Attributes:
        name: of ``BENCHMARKS``.
        forget: what is to be forgotten: of TOFU which rows, of RWKU how many people; None: the benchmark's default.
        items: questions of each set, evenly spread; None: all.
        template: ``chat`` or ``plain``, as the model was trained; None: chat if the tokenizer has a template.
        tokens: of a written answer, at most; None: the benchmark's default.
    """

    name: str = "tofu"
    forget: str | None = None
    items: int | None = None
    template: str | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.name not in BENCHMARKS:
            raise ConfigError(f"--suite {self.name}: unknown; use {' or '.join(BENCHMARKS)}")
        if self.template not in (None, *get_args(Template)):
            raise ConfigError(f"--template {self.template}: use {' or '.join(get_args(Template))}")
        _ = self.task  # refuses what it cannot be

    @property
    def task(self) -> TextTask:
        """The benchmark with one request."""
        benchmark = BENCHMARKS[self.name]
        return benchmark.task(self.part, self.items)

    @property
    def part(self) -> str:
        """What is to be forgotten."""
        return BENCHMARKS[self.name].forget if self.forget is None else self.forget

    @property
    def most(self) -> int:
        """Tokens of a written answer, at most."""
        return BENCHMARKS[self.name].tokens if self.tokens is None else self.tokens

    def sets(self) -> dict[str, Questions]:
        """What is asked of what is to be forgotten, texts that are only read, and the sets of utility."""
        task = self.task
        asked = {**task.asked()[0], **BENCHMARKS[self.name].texts(self.part)}
        chosen = {name: replace(found, pairs=spread(found.pairs, self.items)) for name, found in asked.items()}
        return {**chosen, **task.questions()}


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
    """Examine the model in a folder, and the reference; what ``out`` holds of this very model is not made again.

    A reference that is a JSON file is one of OpenUnlearning's results: its truth ratios give forget quality.
    """
    told = _read_reference(suite, Path(reference)) if reference and reference.endswith(".json") else None
    with using(threads):
        ours = _examined(suite, model, device, out)
        if reference and told is None:
            told = _examined(suite, reference, device, out and out.with_suffix(".reference.json"))
    return Evaluated(ours, told)


def _read_reference(suite: Suite, path: Path) -> Exam:
    if suite.name != "tofu":
        raise ConfigError(f"--reference {path}: a result file is of use for tofu only; name a model's folder")
    names = ("forget_Q_A_PARA_Prob", "forget_Q_A_PERT_Prob")
    found = field.read(path, needs=dict.fromkeys(names))
    return Exam({FORGET: {"log_ratio": field.log_ratios(*(found[name] for name in names))}}, {"file": path.name})


def _examined(suite: Suite, model: str, device: str, out: Path | None) -> Exam:
    module, encoder = LanguageModel(read_model(model)).to(device), best(loaded(model), suite.template)
    sets = suite.sets()
    identity = {
        "model": tree.digest(params_of(module)),
        "questions": digest(sets, new=suite.most),
        "template": encoder.template,
    }
    found = read_exam(out, identity) if out else None
    if found is None:
        found = examine(module, encoder, sets, new=suite.most, identity=identity)
        if out:
            write_exam(out, found)
    return found


def scores(exam: Exam) -> dict[str, dict[str, Scores]]:
    """All scores by set: as examined, and what is made of truth ratios."""
    found = {name: dict(row) for name, row in exam.sets.items()}
    for name, row in found.items():
        names = [made for made in known(row) if name == FORGET or made in ABOUT_TRUTH]
        row |= {made: of_ratios(row, made, "closer" if name == FORGET else "true") for made in names}
        for source in [score for score in row if score.startswith("log_ratio")]:
            del row[source]
    return found


def utility(exam: Exam, needs: Mapping[str, tuple[str, ...]] = TOFU) -> Measurement:
    """Model utility over the scores that the suite's task names, by default TOFU's nine, in per cent."""
    found = scores(exam)
    sets = {name: {score: found[name][score] for score in needed} for name, needed in needs.items()}
    return model_utility(sets, needs=needs).value


def content(told: Evaluated, suite: Suite) -> dict[str, Any]:
    """As plain data: every score with its interval, n and definition."""
    found, task = scores(told.exam), suite.task
    rows = []
    for name, row in sorted(found.items()):  # one order, whether examined now or read from a file
        for score, values in sorted(row.items()):
            rows.append(_row(name, score, values.measured(), values.definition))
            parts = groups(values).items()
            rows += [_row(f"{name}: {group}", score, part.measured(), part.definition) for group, part in parts]
    if names := task.membership or (MEMBERSHIP if MEMBERSHIP[0] in found else None):
        rows += [_row("membership", *row, "membership") for row in areas(names, told)]
    rows.append(_row("all", "model_utility", utility(told.exam, task.needs()), "model_utility"))
    if told.reference and "log_ratio" in told.exam.sets[FORGET]:
        quality = forget_quality(_ratios(told.exam), _ratios(told.reference))
        rows.append(_row(FORGET, "ks_distance", quality.distance, "forget_quality"))
        value = quality.log10_p
        measured = Measurement(value, None, None, quality.distance.n)
        rows.append(_row(FORGET, "log10_forget_quality", measured, "forget_quality"))
    return {"suite": suite.name, "forget": suite.part, "identity": dict(told.exam.identity), "scores": rows}


def areas(names: tuple[str, str], told: Evaluated) -> Iterator[tuple[str, Measurement]]:
    """AUC of every membership score, and with a reference of the loss less the reference's."""
    ours, unseen = (told.exam.sets[name] for name in names)
    for score in sorted(score for score in ours if score.startswith("mia_")):  # whether examined now or read
        yield f"auc_{score.removeprefix('mia_')}", membership(ours[score], unseen[score]).auc
    if told.reference and names[0] in told.reference.sets:
        sides = [reference_scores(told.exam.sets[n]["mia_loss"], told.reference.sets[n]["mia_loss"]) for n in names]
        yield "auc_reference", membership(*sides).auc


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
