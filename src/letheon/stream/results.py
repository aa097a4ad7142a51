"""From a stream to numbers: what is known after each request, what the model is still good for, what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from letheon.errors import DataError
from letheon.methods.retrain import Retrain
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.text.forget_quality import forget_quality
from letheon.metrics.text.relapse import Matrix, together
from letheon.metrics.text.retention import item_retention, resurfacing, signed_retention
from letheon.metrics.text.scores import Scores
from letheon.metrics.text.truth_ratio import truth_ratios
from letheon.metrics.text.utility import model_utility
from letheon.results import stored, total
from letheon.stream.life import Served, StreamRun
from letheon.text.exam import Exam, Row

FORGET = ("rouge", "es", "es_openunlearning", "em", "probability", "degenerate")
RATIOS = ("truth_ratio", "kr", "kr_signed")
"""Those that need false answers."""
TITLES: Mapping[str, str] = {
    "rouge": "FR",
    "es": "ES",
    "es_openunlearning": "ES (OU)",
    "em": "EM",
    "probability": "P",
    "degenerate": "degenerate",
    "truth_ratio": "TR",
    "kr": "KR",
    "kr_signed": "KR signed",
}
"""What tables call them; all in per cent. FR is ROUGE-L recall on the texts to forget, and ES by the strict rule."""


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
        return FORGET + (RATIOS if "log_ratio" in self.run.origin_exam.sets["forget1"] else ())

    def utility(self, exam: Exam) -> Measurement:
        """Model utility: the harmonic mean over the task's sets and scores, in per cent."""
        task = self.run.stream.texts
        needs = {name: tuple(task.utility(name)) for name in task.questions()}
        sets = {
            name: {score: scored(exam.sets[name], score, "true") for score in names} for name, names in needs.items()
        }
        return model_utility(sets, needs=needs).value

    def so_far(self, exam: Exam, metric: str, k: int) -> Measurement:
        """A score on all texts of the first k requests, each counting once: COP's convention."""
        return together([scored(exam.sets[f"forget{j}"], metric) for j in range(1, k + 1)]).measured()

    def rows(self) -> list[dict[str, Any]]:
        """One row for each model: Origin against each number of requests, then each method after each request."""
        found = [self._row("origin", self.run.origin_exam, k, f"{k}") for k in range(1, self.count + 1)]
        for label, served in self.run.served.items():
            first = self.count - len(served.exams)
            for k, exam in enumerate(served.exams, first + 1):
                found.append(self._row(label, exam, k, f"{k}") | self._cost(served, k - first))
            if served.continued_exam:
                found.append(self._row(label, served.continued_exam, self.count, "continued"))
        return found

    def _row(self, label: str, exam: Exam, k: int, after: str) -> dict[str, Any]:
        row: dict[str, Any] = {
            "method": label,
            "seed": self.run.stream.seed,
            "run": self.run.stream.digest,
            "after": after,
            "requests": k,
        }
        row |= self.utility(exam).fields("mu")
        for metric in self.metrics:
            measured = self.so_far(exam, metric, k)
            row |= measured.fields(metric) | {"n_forget": measured.n}
        return row

    def _cost(self, served: Served, k: int) -> dict[str, Any]:
        outcome = served.outcomes[k - 1]
        cost = total(outcome.costs)
        return {
            "seconds": cost.seconds,
            "flops": cost.flops,
            "memory_bytes": stored(outcome),
            "diverged": outcome.diverged or None,
        }

    def matrix(self, label: str, metric: str) -> Matrix:
        """m[k][j] of a method: the score on request j's texts after request k."""
        rows = [
            tuple(scored(exam.sets[f"forget{j}"], metric) for j in range(1, k + 1))
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
        row = tuple(scored(exam.sets[f"forget{j}"], metric) for j in range(1, self.count + 1))
        return self.matrix(label, metric).after_training(row)

    def reference(self, label: str) -> dict[str, Any]:
        """Against Retrain: forget quality after the last request and, after continued training, resurfacing."""
        if self.retrain is None or "kr" not in self.metrics:
            return {}
        theirs, ours = self.run.served[self.retrain], self.run.served[label]
        quality = forget_quality(self._ratios(ours.exams[-1]), self._ratios(theirs.exams[-1]))
        found = quality.distance.fields("ks") | {"log10_fq": _or_none(quality.log10_p)}
        if ours.continued_exam and theirs.continued_exam:
            rates = [self._ratios(exam) for exam in (ours.continued_exam, theirs.continued_exam, self.run.origin_exam)]
            measured = resurfacing([rates[0]], [rates[1]], rates[2])
            reason = measured.value.reason if isinstance(measured.value, Undefined) else None
            found |= measured.fields("rr") | {"rr_reason": reason}
        return found

    def _ratios(self, exam: Exam) -> Scores:
        return together([exam.sets[f"forget{j}"]["log_ratio"] for j in range(1, self.count + 1)])

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
        return {"rows": self.rows(), "methods": methods, "versions": sorted(_definitions(self.run.origin_exam))}


def scored(row: Row, metric: str, form: str = "closer") -> Scores:
    """One of the scores of a set, also those that are made of others.

    Raises:
        DataError: the set has no false answers, and the score needs them.
    """
    if metric in row:
        return row[metric]
    if "log_ratio" not in row:
        raise DataError(f"{metric}: needs false answers, and these questions have none")
    ratios = row["log_ratio"]
    if metric == "truth_ratio":
        return truth_ratios(ratios, "true" if form == "true" else "closer")
    return item_retention(ratios) if metric == "kr" else signed_retention(ratios)


def _cells(cells: Sequence[Sequence[Measurement]]) -> list[list[dict[str, Any]]]:
    return [[cell.fields("value") for cell in row] for row in cells]


def _or_none(value: float | Undefined) -> float | None:
    return None if isinstance(value, Undefined) else value


def _definitions(exam: Exam) -> set[str]:
    return {scores.definition for row in exam.sets.values() for scores in row.values()}
