"""The diagnostics of one model, as plain data: one function for each, by the name of its section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from letheon import tree
from letheon.diagnostics.connectivity import Barrier, barrier, mixed, path, per_distance
from letheon.diagnostics.drives import Course, Drives
from letheon.diagnostics.features import Basis, dispersion, explained, principal, relative_dispersion
from letheon.diagnostics.material import Material, Sight, Subject
from letheon.diagnostics.membership import FALSE_POSITIVES, attack, confidence
from letheon.diagnostics.probe import CHANCE, probe
from letheon.diagnostics.relearn import RELEARNT, budget
from letheon.diagnostics.rollback import rollback
from letheon.metrics.interval import Floats
from letheon.metrics.measurement import Measurement, Undefined
from letheon.phase import State
from letheon.pipeline import Run
from letheon.request import Part
from letheon.training import has_batch_norm

Row = dict[str, Any]
RECOVERED = 0.95
"""A model has recovered when KR reaches this share of Origin's."""
SHOWN = 150
"""Projected samples of each kind that are kept for the picture."""


@dataclass(frozen=True)
class Suite:
    """How far diagnostics go.

    Attributes:
        rollback_rounds: of continued training over which RT is taken.
        recovery_rounds: at most so many rounds on all data for the recovered model of LMC.
        relearn_rounds: at most so many rounds, and so many single steps, on the data to forget.
        points: on the straight path of LMC.
        samples: at most so many retained and test samples; the data to forget are always taken whole.
    """

    rollback_rounds: int = 5
    recovery_rounds: int = 50
    relearn_rounds: int = 20
    points: int = 21
    samples: int = 1000


def told(name: str, value: Measurement) -> Row:
    """As the fields ``name``, ``name_low``, ``name_high``, ``name_n`` and ``name_reason``; undefined is null."""
    reason = value.value.reason if isinstance(value.value, Undefined) else None
    return value.fields(name) | {f"{name}_n": value.n, f"{name}_reason": reason}


@dataclass(frozen=True, eq=False)
class Measures:
    """Measures the models of one run, one at a time."""

    run: Run
    suite: Suite
    material: Material
    sight: Sight
    drives: Drives

    @property
    def by_section(self) -> dict[str, Callable[[Subject], Row]]:
        """Each diagnostic by the name of its section."""
        return {
            "rollback": self.rollback,
            "connectivity": self.connectivity,
            "features": self.features,
            "relearning": self.relearning,
            "membership": self.membership,
            "probe": self.probe,
        }

    def rollback(self, subject: Subject) -> Row:
        """RT per round, its mean, and by layer; where rounds were done again, whether as in the run."""
        is_still = tree.digest(subject.state.params) == tree.digest(subject.origin.params)
        rounds = 1 if is_still else self.suite.rollback_rounds  # RT is undefined whatever comes next
        states = self.drives.continued(subject.state, rounds)
        found = rollback([state.params for state in states], subject.origin.params, self.run.experiment.task.layers)
        differs = self.drives.differs(subject.label, states) if subject.kind == "method" else None
        return told("rt", found.mean) | {
            "rounds": [_plain(value) for value in found.rounds],
            "layers": {layer: [_plain(value) for value in course] for layer, course in found.layers.items()},
            "redriven": None if subject.kind != "method" else differs is None,
            "differs_in_round": differs,
        }

    def connectivity(self, subject: Subject) -> Row:
        """The straight path from w_un to w_rec: barriers of three losses, with stale and with fresh BatchNorm."""
        kr = self._kr_origin(subject)
        course = self._course(subject, "all", RECOVERED, self.suite.recovery_rounds)
        distance = tree.norm(tree.sub(subject.state.params, course.state.params))
        at, ends = path(self.suite.points), (subject.state, course.state)
        barriers = self._barriers(*ends, at)
        row = told("recovery_rounds", self._budget(course.correct, kr, RECOVERED, "rounds"))
        row |= told("barrier", barriers["forget"].height)
        row |= told("barrier_per_distance", per_distance(barriers["forget"].height, distance))
        row |= told("barrier_retained", barriers["retained"].height) | told("barrier_test", barriers["test"].height)
        row |= {
            "distance": distance,
            "kr_recovered": self._share(course.correct[-1]),
            "course": [self._share(count) for count in course.correct],
            "path": at.tolist(),
            "losses": {name: list(found.losses) for name, found in barriers.items()},
            "at": {name: found.at for name, found in barriers.items()},
        }
        return row | self._recalibrated(*ends, at)

    def _barriers(self, first: State, second: State, at: Floats, **how: Any) -> dict[str, Barrier]:
        sets = {"forget": self.material.forget, "retained": self.material.retained, "test": self.material.test}
        models = [mixed(first, second, float(a)) for a in at]
        return {
            name: barrier(np.stack([self.sight.losses(model, data, **how) for model in models]), at)
            for name, data in sets.items()
        }

    def _recalibrated(self, first: State, second: State, at: Floats) -> Row:
        if not has_batch_norm(self.run.experiment.task.prototype()):
            nothing = Measurement(Undefined("the model has no BatchNorm"), None, None, len(self.material.forget))
            return told("barrier_recalibrated", nothing) | {"losses_recalibrated": None}
        barriers = self._barriers(first, second, at, statistics=self.material.retained.inputs)
        losses = {name: list(found.losses) for name, found in barriers.items()}
        return told("barrier_recalibrated", barriers["forget"].height) | {"losses_recalibrated": losses}

    def features(self, subject: Subject) -> Row:
        """FD, its ratio to the retained test features, and the first two principal components."""
        forget = self.sight.features(subject.state, self.material.forget.inputs)
        beside = self.sight.features(subject.state, self.material.beside.inputs)
        test = self.sight.features(subject.state, self.material.test.inputs)
        row = told("fd", dispersion(forget)) | told("fd_relative", relative_dispersion(forget, test))
        for name, basis in (("own", principal(np.concatenate([forget, beside]))), ("common", self._common(subject))):
            row |= _projected(name, basis, forget, beside)
        return row

    def _common(self, subject: Subject) -> Basis | Undefined:
        """The axes of the model before the request, in which all models can be seen alike."""
        inputs = (self.material.forget.inputs, self.material.beside.inputs)
        return principal(np.concatenate([self.sight.features(subject.origin, part) for part in inputs]))

    def relearning(self, subject: Subject) -> Row:
        """Rounds, and single steps, of training on the data to forget until half of the knowledge is back."""
        kr, limit = self._kr_origin(subject), self.suite.relearn_rounds
        rounds = self._course(subject, "forget", RELEARNT, limit)
        steps = self._course(subject, "forget", RELEARNT, limit, steps=1)
        row = told("relearn_rounds", self._budget(rounds.correct, kr, RELEARNT, "rounds"))
        row |= told("relearn_steps", self._budget(steps.correct, kr, RELEARNT, "steps"))
        courses = {"rounds": rounds, "steps": steps}
        return row | {"courses": {name: [self._share(c) for c in course.correct] for name, course in courses.items()}}

    def membership(self, subject: Subject) -> Row:
        """Confidence attack: D_u against images that the model never saw."""
        members, others = (
            confidence(self.sight.outputs(subject.state, data.inputs), data.targets)
            for data in (self.material.forget, self.material.strangers)
        )
        found = attack(members, others)
        row = told("auc", found.auc) | {"n_non_members": len(others)}
        for rate, value in zip(FALSE_POSITIVES, found.tpr, strict=True):
            row |= told(f"tpr_at_{rate:g}", value)
        return row

    def probe(self, subject: Subject) -> Row:
        """Logistic regression from features to whether the trigger is there."""
        if self.material.clean is None or self.material.triggered is None:
            nothing = Measurement(Undefined("the data to forget carry no trigger"), None, None, 0)
            return told("accuracy", nothing) | told("auc", nothing) | {"chance": CHANCE, "n_train": 0}
        clean, triggered = (
            self.sight.features(subject.state, inputs) for inputs in (self.material.clean, self.material.triggered)
        )
        found = probe(clean, triggered, seed=self.run.experiment.seed)
        return told("accuracy", found.accuracy) | told("auc", found.auc) | {"chance": CHANCE, "n_train": found.n_train}

    def _course(self, subject: Subject, part: Part, share: float, limit: int, *, steps: int | None = None) -> Course:
        data, local = self.material.forget, self.drives.local
        enough = share * self._kr_origin(subject) / 100.0 * len(data)
        return self.drives.until(
            subject.state,
            part,
            local if steps is None else replace(local, steps=steps),
            limit=limit,
            knows=lambda state: self.sight.correct(state, data),
            enough=enough,
        )

    def _budget(self, correct: Sequence[int], kr: float, share: float, unit: str) -> Measurement:
        return budget(correct, len(self.material.forget), kr_origin=kr, share=share, unit=unit)

    def _kr_origin(self, subject: Subject) -> float:
        return self._share(self.sight.correct(subject.origin, self.material.forget))

    def _share(self, correct: int) -> float:
        return 100.0 * correct / len(self.material.forget)


def _plain(value: float | Undefined) -> float | None:
    return None if isinstance(value, Undefined) else value


def _projected(name: str, basis: Basis | Undefined, forget: Floats, beside: Floats) -> Row:
    """What the basis ``name`` explains of D_u and the retained samples together and of D_u alone, and a picture."""
    both = np.concatenate([forget, beside])
    if isinstance(basis, Undefined):
        nothing = Measurement(basis, None, None, len(both))
        return told(f"explained_{name}", nothing) | told(f"explained_{name}_forget", nothing) | {f"points_{name}": None}
    row = told(f"explained_{name}", explained(basis, both)) | told(f"explained_{name}_forget", explained(basis, forget))
    points = {kind: _shown(basis.project(set_)) for kind, set_ in (("forget", forget), ("retained", beside))}
    return row | {f"points_{name}": points}


def _shown(points: Floats) -> list[list[float]]:
    """At most ``SHOWN`` points, evenly chosen and then sorted: their order says nothing about whose they are."""
    chosen = points[np.arange(min(SHOWN, len(points))) * len(points) // min(SHOWN, len(points))]
    return sorted([float(f"{value:.4g}") for value in point] for point in chosen)
