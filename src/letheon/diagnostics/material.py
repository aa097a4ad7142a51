"""What diagnostics look at: models, data, and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from letheon import tree
from letheon.adapter import penultimate
from letheon.client import LARGEST_LOSS, load
from letheon.data import Data, concat
from letheon.methods.noise import gaussian_like
from letheon.metrics.interval import Floats
from letheon.phase import State, seed_of
from letheon.pipeline import Run
from letheon.request import free
from letheon.tasks.base import Task
from letheon.tasks.population import Population
from letheon.training import recalibrate

CHUNK = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model to diagnose.

    Attributes:
        label: of its method, or what it is.
        kind: ``origin``; ``method``, Retrain among them; or ``noise``, a random step from Origin, tensor by tensor as
            long as that of the method of interest: what mere distance does.
        origin: w_ori, the model that it started from.
        state: w_un, with which continued training begins: after the last request, if there are several.
        diverged: empty, or why there is no model to speak of.
    """

    label: str
    kind: Literal["origin", "method", "noise"]
    origin: State
    state: State
    diverged: str = ""


def subjects(run: Run) -> list[Subject]:
    """Origin, the methods of a run with Retrain first, and noise as long as the step of the method of interest."""
    origin = run.origin.state
    found = [Subject("origin", "origin", origin, origin)]
    for label, outcome in run.unlearned.items():
        outcomes = [outcome, *run.later.get(label, ()), run.continued[label]]
        diverged = next((each.diverged for each in outcomes if each.diverged), "")
        found.append(Subject(label, "method", run.origin_of(label).state, outcomes[-2].state, diverged))
    main = run.main
    start = run.origin_of(main).state
    step = tree.sub(next(each for each in found if each.label == main).state.params, start.params)
    noise = gaussian_like(step, 1.0, seed_of(f"{run.experiment.seed}|diagnostics|noise"))
    away = State(tree.add(start.params, noise), start.buffers)
    return [*found, Subject(f"noise as far as {main}", "noise", start, away)]


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """The data, drawn once for all models.

    Attributes:
        forget: D_u, all of it; of the first request, if there are several.
        beside: as many retained training samples as D_u has, for the principal components.
        retained: training samples that no request covers.
        test: clean test images; at class level of the retained classes.
        strangers: non-members: triggered held-out images if D_u carries a trigger, or an attack would find the trigger
            and not the membership; else clean test images with the labels of D_u.
        clean, triggered: the same held-out images without and with the trigger; None without a trigger.
    """

    forget: Data
    beside: Data
    retained: Data
    test: Data
    strangers: Data
    clean: Tensor | None
    triggered: Tensor | None


def material(population: Population, *, samples: int) -> Material:
    """The data of a run; all but D_u and the non-members are thinned out evenly to at most ``samples``."""
    held = sorted(population.clients.items())
    forget = concat([data.take(population.covered(name)) for name, data in held])
    retained = concat([data.take(free(population.requests, name, data)) for name, data in held])
    test, marked = population.test, population.triggered_test
    kept = test.take(~torch.isin(test.targets, torch.tensor(sorted(population.labels), dtype=test.targets.dtype)))
    strangers = marked if marked is not None else test.take(torch.isin(test.targets, forget.targets))
    shown = thinned(marked, samples) if marked is not None else None
    return Material(
        forget=forget,
        beside=thinned(retained, len(forget)),
        retained=thinned(retained, samples),
        test=thinned(kept, samples),
        strangers=strangers,
        clean=_with_ids(test, shown.ids).inputs if shown is not None else None,
        triggered=shown.inputs if shown is not None else None,
    )


def _with_ids(data: Data, ids: Tensor) -> Data:
    """The samples with these ids, in their order; ids may repeat."""
    order = data.ids.argsort()
    return data.take(order[torch.searchsorted(data.ids[order], ids)])


def thinned(data: Data, most: int) -> Data:
    """At most ``most`` samples, evenly spread over the data."""
    return data if len(data) <= most else data.take(torch.arange(most) * len(data) // most)


class Sight:
    """Looks at one model after another, without a federation: measuring is nobody's work and is not metered."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._module = task.prototype()

    def correct(self, state: State, data: Data) -> int:
        """Right answers."""
        return int(self._task.correct(self.outputs(state, data.inputs), data.targets).sum())

    def losses(self, state: State, data: Data, *, statistics: Tensor | None = None) -> Floats:
        """``(n,)`` loss of each sample, in nats; a model far gone is very bad, not NaN.

        With ``statistics``, BatchNorm's running statistics are those of these inputs.
        """
        outputs = self.outputs(state, data.inputs, statistics=statistics)
        pairs = zip(outputs.split(1), data.targets.split(1), strict=True)
        found = np.array([self._task.loss(*pair).item() for pair in pairs])
        finite: Floats = np.nan_to_num(found, nan=LARGEST_LOSS, posinf=LARGEST_LOSS, neginf=-LARGEST_LOSS)
        return finite

    @torch.no_grad()
    def outputs(self, state: State, inputs: Tensor, *, statistics: Tensor | None = None) -> Tensor:
        """``(n, …)`` what the model answers, in evaluation mode."""
        load(self._module, state.params, state.buffers)
        if statistics is not None:
            recalibrate(self._module, statistics)
        self._module.eval()
        return torch.cat([self._module(part) for part in inputs.split(CHUNK)])

    def features(self, state: State, inputs: Tensor) -> Floats:
        """``(n, d)`` penultimate features in float64."""
        load(self._module, state.params, state.buffers)
        found: Floats = penultimate(self._module, self._task.head, inputs).double().numpy()
        return found
