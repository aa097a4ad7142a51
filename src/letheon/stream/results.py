"""From a stream to numbers: what is known after each request, what the model is still good for, what comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from letheon import cop
from letheon.methods.descent import Descent
from letheon.methods.retrain import Retrain
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.text.forget_quality import forget_quality
from letheon.metrics.text.mia import membership, reference_scores
from letheon.metrics.text.of_ratios import RATIOS, known, of_ratios
from letheon.metrics.text.relapse import Matrix, together
from letheon.metrics.text.retention import item_retention, resurfacing
from letheon.metrics.text.scores import Scores
from letheon.metrics.text.truth_ratio import Form
from letheon.metrics.text.utility import Utility, model_utility
from letheon.results import stored, total
from letheon.stream.life import StreamRun
from letheon.tasks.text import FORGET
from letheon.text.exam import Exam, Row, groups

SCORES = ("rouge", "es", "es_openunlearning", "em", "probability", "degenerate")
APART = ("rouge", "probability", "em", "mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus")
"""Scores of what is reported beside the table."""
CONTINUED = "continued"
TITLES: Mapping[str, str] = {
    "rouge": "FR",
    "es": "ES",
    "es_openunlearning": "ES (OU)",
    "em": "EM",
    "probability": "P",
    "degenerate": "degenerate",
    "truth_ratio": "TR",
    "truth_ratio_arithmetic": "TR arithmetic",
    "truth_ratio_share": "TR P/(P+P̄)",
    "kr": "KR",
    "kr_signed": "KR signed",
    "kr_original": "KR original",
    "above_one": "R above 1",
    "mia_loss": "LOSS",
    "mia_zlib": "zlib",
    "mia_min_k": "Min-K",
    "mia_min_k_plus_plus": "Min-K++",
    "auc_loss": "AUC of LOSS",
    "auc_zlib": "AUC of zlib",
    "auc_min_k": "AUC of Min-K",
    "auc_min_k_plus_plus": "AUC of Min-K++",
    "auc_reference": "AUC of LOSS less Retrain's",
}
"""What tables call them; all but those of membership inference in per cent.

FR is ROUGE-L recall on the questions about what is to be forgotten, and ES by the strict rule.
"""


@dataclass(frozen=True, eq=False)
class StreamResults:
    """The numbers of one stream."""

    run: StreamRun

    @cached_property
    def retrain(self) -> str | None:
        """Label of the reference, if it was run."""
        return next((k for k, m in self.run.stream.methods.items() if isinstance(m, Retrain)), None)

    @cached_property
    def count(self) -> int:
        """Requests K."""
        return len(self.run.stream.requests)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Names of the scores that there are on texts to forget."""
        made = [set(known(exam.sets[f"{FORGET}1"])) for _, exam, _, _ in self.models()]
        return SCORES + tuple(name for name in RATIOS if all(name in names for names in made))

    def utility(self, exam: Exam, only: str | None = None) -> Measurement:
        """Model utility: the harmonic mean over the scores of the task's sets, or of one of them, in per cent."""
        return self._utility(exam, only).value

    def utilities(self) -> list[dict[str, Any]]:
        """What model utility is the mean of: for each model a row for each part."""
        return [
            {"method": label, "after": after, "part": part, **measured.fields("value"), "n": measured.n}
            for label, exam, _, after in self.models()
            for part, measured in self._utility(exam).parts.items()
        ]

    def _utility(self, exam: Exam, only: str | None = None) -> Utility:
        needs = {name: row for name, row in self.run.stream.texts.needs().items() if only in (None, name)}
        sets = {
            name: {score: scored(exam.sets[name], score, "true") for score in names} for name, names in needs.items()
        }
        return model_utility(sets, needs=needs)

    def so_far(self, exam: Exam, metric: str, k: int) -> Measurement:
        """A score on all texts of the first k requests, each counting once: COP's convention."""
        return self._together(exam, FORGET, metric, k).measured()

    def _together(self, exam: Exam, name: str, metric: str, k: int) -> Scores:
        """A score on the questions of one kind about the first k requests."""
        return together([scored(exam.sets[f"{name}{j}"], metric) for j in range(1, k + 1)])

    def rows(self) -> list[dict[str, Any]]:
        """One row for each model: Origin against each number of requests, then each method after each request."""
        found = []
        for label, exam, k, after in self.models():
            row = self._row(label, exam, k, after)
            served = self.run.served.get(label)
            if served and after != CONTINUED:
                row |= self._cost(label, k - (self.count - len(served.exams)))
            found.append(row)
        return found

    def models(self) -> Iterator[tuple[str, Exam, int, str]]:
        """Every examined model: label, examination, requests that it is held against, and after what."""
        for k in range(1, self.count + 1):
            yield "origin", self.run.origin_exam, k, f"{k}"
        for label, served in self.run.served.items():
            for k, exam in enumerate(served.exams, self.count - len(served.exams) + 1):
                yield label, exam, k, f"{k}"
            if served.continued_exam:
                yield label, served.continued_exam, self.count, CONTINUED

    def apart(self) -> list[dict[str, Any]]:
        """What is asked beside the table's questions, and groups of those, each score a row; empty if there is none."""
        return [row for model in self.models() for row in self._apart(*model)]

    def _apart(self, label: str, exam: Exam, k: int, after: str) -> Iterator[dict[str, Any]]:
        head = {"method": label, "after": after, "requests": k}
        task = self.run.stream.texts
        in_table = {FORGET, *task.needs()}
        for name in (*task.asked()[0], *task.questions()):
            fixed = name in task.questions()
            row = exam.sets[name if fixed else f"{name}1"]
            for score in (score for score in APART if score in row):
                found = exam.sets[name][score] if fixed else self._together(exam, name, score, k)
                parts = groups(found) | ({} if name in in_table else {"": found})
                for group, scores in parts.items():
                    yield head | _told(name, group, score, scores.measured())
        if task.membership and k == self.count:  # its bootstrap takes seconds
            yield from (head | row for row in self._membership(exam, k, *task.membership))

    def _membership(self, exam: Exam, k: int, forget: str, unseen: str) -> Iterator[dict[str, Any]]:
        """AUC of every score: 0.5, and texts to forget look like texts never seen; 1, like training data."""
        for score in sorted(exam.sets[f"{forget}1"]):
            if score.startswith("mia_"):
                ours, theirs = (self._together(exam, name, score, k) for name in (forget, unseen))
                yield _told("membership", "", f"auc_{score.removeprefix('mia_')}", membership(ours, theirs).auc)
        reference = self.run.served[self.retrain].exams[-1] if self.retrain else exam
        if reference is not exam:
            sides = [
                reference_scores(*(self._together(found, name, "mia_loss", k) for found in (exam, reference)))
                for name in (forget, unseen)
            ]
            yield _told("membership", "", "auc_reference", membership(*sides).auc)

    def _row(self, label: str, exam: Exam, k: int, after: str) -> dict[str, Any]:
        row: dict[str, Any] = {
            "method": label,
            "seed": self.run.stream.seed,
            "run": self.run.stream.digest,
            "after": after,
            "requests": k,
        }
        row |= self.utility(exam).fields("mu")
        # A small model may know nothing of the other sets, which makes the whole 0 whatever happens to it.
        first = next(iter(self.run.stream.texts.needs()))
        row |= self.utility(exam, first).fields("mu_first") | {"first_set": first}
        for metric in self.metrics:
            measured = self.so_far(exam, metric, k)
            row |= measured.fields(metric) | {"n_forget": measured.n}
        return row

    def _cost(self, label: str, k: int) -> dict[str, Any]:
        outcome, method = self.run.served[label].outcomes[k - 1], self.run.stream.methods[label]
        cost, kept = total(outcome.costs), dict[str, float]()
        if isinstance(method, Descent) and method.cop:
            bases = method.bases(outcome.state)
            kept = {"free": 100.0 * cop.least_free(bases), "held": 100.0 * cop.least_held(bases)}
        return kept | {
            "seconds": cost.seconds,
            "flops": cost.flops,
            "memory_bytes": stored(outcome),
            "diverged": outcome.diverged or None,
        }

    def matrix(self, label: str, metric: str) -> Matrix:
        """m[k][j] of a method: the score on request j's texts after request k."""
        rows = [
            tuple(scored(exam.sets[f"{FORGET}{j}"], metric) for j in range(1, k + 1))
            for k, exam in enumerate(self.run.served[label].exams, 1)
        ]
        return Matrix(tuple(rows))

    def streams(self) -> list[str]:
        """Labels of the methods that served request after request: all but Retrain."""
        return [label for label in self.run.served if label != self.retrain]

    def relapses(self, label: str, metric: str) -> list[Measurement]:
        """For each request but the last, how much later ones brought back, in points."""
        matrix = self.matrix(label, metric)
        return [matrix.relapse(j) for j in range(1, self.count)]

    def after_training(self, label: str, metric: str) -> list[Measurement]:
        """For each request, how much continued training brought back, in points; empty without any."""
        exam = self.run.served[label].continued_exam
        if exam is None:
            return []
        row = tuple(scored(exam.sets[f"{FORGET}{j}"], metric) for j in range(1, self.count + 1))
        return self.matrix(label, metric).after_training(row)

    def reference(self, label: str) -> dict[str, Any]:
        """Against Retrain: forget quality after the last request and, after continued training, resurfacing."""
        if self.retrain is None or "kr" not in self.metrics:
            return {}
        theirs, ours = self.run.served[self.retrain], self.run.served[label]
        quality = forget_quality(self._ratios(ours.exams[-1]), self._ratios(theirs.exams[-1]))
        found = quality.distance.fields("ks") | {"log10_fq": _or_none(quality.log10_p)}
        if ours.continued_exam and theirs.continued_exam:
            exams = (ours.continued_exam, theirs.continued_exam, self.run.origin_exam)
            method, retrain, origin = (item_retention(self._ratios(exam)) for exam in exams)
            measured = resurfacing([method], [retrain], origin)
            reason = measured.value.reason if isinstance(measured.value, Undefined) else None
            found |= measured.fields("rr") | {"rr_reason": reason}
        return found

    def _ratios(self, exam: Exam) -> Scores:
        return self._together(exam, FORGET, "log_ratio", self.count)

    def content(self) -> dict[str, Any]:
        """All of it as plain data, as ``results.json`` has it."""
        methods = {
            label: {
                "matrix": {m: _cells(self.matrix(label, m).cells()) for m in self.metrics},
                "relapse": {m: [x.fields("value") for x in self.relapses(label, m)] for m in self.metrics},
                "after_training": {m: [x.fields("value") for x in self.after_training(label, m)] for m in self.metrics},
                "reference": self.reference(label),
            }
            for label in self.streams()
        }
        versions = sorted(_definitions(self.run.origin_exam))
        told = {"rows": self.rows(), "utility": self.utilities(), "apart": self.apart()}
        return {**told, "methods": methods, "versions": versions}


def scored(row: Row, metric: str, form: Form = "closer") -> Scores:
    """One of the scores of a set, also those that are made of others."""
    return row[metric] if metric in row else of_ratios(row, metric, form)


def _told(name: str, group: str, score: str, measured: Measurement) -> dict[str, Any]:
    return {"set": name, "group": group, "score": score, **measured.fields("value"), "n": measured.n}


def _cells(cells: Sequence[Sequence[Measurement]]) -> list[list[dict[str, Any]]]:
    return [[cell.fields("value") for cell in row] for row in cells]


def _or_none(value: float | Undefined) -> float | None:
    return None if isinstance(value, Undefined) else value


def _definitions(exam: Exam) -> set[str]:
    return {scores.definition for row in exam.sets.values() for scores in row.values()}
