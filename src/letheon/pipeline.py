"""The main job: train, admit the request, unlearn with each method, continue, evaluate against Retrain."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from letheon import config
from letheon.client import Client
from letheon.cohort import Sampled
from letheon.curve import Evaluator
from letheon.errors import ConfigError, JournalError, LetheonError
from letheon.experiment import Experiment
from letheon.files import read_sealed, write_json, write_sealed
from letheon.folder import EXPERIMENT, claim, data_digest, described, read, recorded_cache, stages, versions
from letheon.life import (
    continued_phases,
    has_own_training,
    own_training,
    owners,
    seen_by,
    stage_folder,
    training_phases,
    unlearning,
)
from letheon.methods.base import Method
from letheon.methods.retrain import Retrain
from letheon.middleware import Excluding
from letheon.phase import Phase, State
from letheon.request import Request, free
from letheon.runtimes.inprocess import InProcess
from letheon.shelf import Listener as Listener
from letheon.shelf import Shelf, Stack
from letheon.shelf import Silent as Silent
from letheon.stage import Outcome, finished
from letheon.tasks.population import Population
from letheon.work import Runtime

log = logging.getLogger(__name__)

KNOWN = "requests.json"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What a run leaves behind.

    Attributes:
        experiment: what was run.
        folder: where everything lies.
        population: clients, request and test sets.
        origin: the model before the request.
        unlearned: by method label, the model after unlearning.
        continued: by method label, the model after continued training.
        trained: the models before the request of those methods that train their own.
        later: by method label, the models after each further request.
        known: by method label, the KR (per cent) of every request, as ``Population.views`` lists them, after each
            request and, last, after continued training; of ``origin``, before the first. Empty with one request only.
    """

    experiment: Experiment
    folder: Path
    population: Population
    origin: Outcome
    unlearned: Mapping[str, Outcome]
    continued: Mapping[str, Outcome]
    trained: Mapping[str, Outcome] = field(default_factory=dict)
    later: Mapping[str, tuple[Outcome, ...]] = field(default_factory=dict)
    known: Mapping[str, list[list[float]]] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """Label of the method of interest: of the first that is listed and not Retrain, if there is one."""
        asked = (self.experiment.method, *self.experiment.compare)
        if all(isinstance(method, Retrain) for method in asked):
            return next(iter(self.experiment.methods))
        return next(label for label, method in self.experiment.methods.items() if not isinstance(method, Retrain))

    def diverged(self, label: str) -> str:
        """Empty, or why the method ended early: serving some request, or in continued training."""
        outcomes = (self.unlearned[label], *self.later.get(label, ()), self.continued[label])
        return next((outcome.diverged for outcome in outcomes if outcome.diverged), "")

    def origin_of(self, label: str) -> Outcome:
        """The model that the method started from."""
        return self.trained.get(label, self.origin)


def run(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    cache: Path | None = None,
    workers: int | None = None,
    listener: Listener | None = None,
    runtime: Runtime | None = None,
) -> Run:
    """Run the whole experiment and write ``folder``.

    Args:
        experiment: what to run.
        folder: the run folder; created if need be.
        resume: continue what an interrupted run of the same experiment left in ``folder``.
        cache: where stages are kept; ``folder/stages`` by default. Runs that share a cache share their Origin.
        workers: clients trained at a time; never changes the result.
        listener: follows the run.
        runtime: where the clients are, closed at the end; in this process by default. It never changes the result.

    Raises:
        ConfigError: the folder holds another experiment, or this one and ``resume`` is not set.
    """
    population = experiment.populate()
    data = data_digest(population)
    cache = claim(folder, experiment, data=data, cache=cache, resume=resume)
    clients = [Client(name, data, experiment.task) for name, data in sorted(population.clients.items())]
    with closing(runtime or InProcess(clients, workers=workers)) as federation:
        evaluates = [Evaluator(experiment.task, each, workers=workers) for each in population.views.values()]
        try:
            life = _Life(
                experiment,
                population,
                runtime=federation,
                evaluates=evaluates,
                stages=stages(folder, cache, used=versions(), data=data),
                listener=listener or Silent(),
            )
            result = life.whole(folder)
        finally:
            for evaluate in evaluates:
                evaluate.close()
    if result.known:
        write_sealed(folder / KNOWN, {"requests": list(population.views), "retention": dict(result.known)})
    write_json(folder / "population.json", described(experiment, population))
    return result


def load(folder: Path, *, cache: Path | None = None) -> Run:
    """A finished run from its folder; computes nothing.

    Raises:
        ConfigError: there is no run, or it is not complete.
    """
    path = folder / EXPERIMENT
    if not path.is_file():
        raise ConfigError(f"{folder}: no run here (experiment.json is missing); give a folder that `letheon run` wrote")
    written = read(path)
    if "request" not in written["experiment"]:
        raise ConfigError(f"{folder}: is a stream on a language model; see its report.html, or `letheon compare`")
    is_foreign = written["versions"].get("code") != versions()["code"]
    other = "was written by another version of Letheon, which has to read it; or run it again"
    try:
        experiment = config.build(Experiment, written["experiment"], str(path))
    except LetheonError as error:
        raise ConfigError(f"{error}; it {other}" if is_foreign else str(error)) from error
    if experiment.digest != written["digest"] and is_foreign:
        raise ConfigError(f"{path}: {other}")
    if experiment.digest != written["digest"]:
        raise ConfigError(f"{path}: was edited, the experiment is not the one that was run; restore the file")
    place = stages(folder, cache or recorded_cache(written), used=written["versions"], data=written["data"])
    population = experiment.populate()
    if data_digest(population) != written["data"]:
        raise ConfigError(f"{folder}: the data set is not the one that was run on; restore it to read this run")
    outcomes = {}
    for name, owner in owners(experiment).items():
        outcome = finished(place / stage_folder(name, owner), owner)
        if outcome is None:
            raise ConfigError(f"{folder}: stage {name} is not complete; finish the run with --resume")
        outcomes[name] = outcome
    labels = list(experiment.methods)
    return Run(
        experiment,
        folder,
        population,
        outcomes["origin"],
        {label: outcomes[f"{label}.unlearn"] for label in labels},
        {label: outcomes[f"{label}.continue"] for label in labels},
        {label: outcomes[f"{label}.train"] for label in labels if f"{label}.train" in outcomes},
        {label: tuple(outcomes[name] for name in unlearning(experiment, label)[1:]) for label in labels},
        _read_known(folder) if len(population.views) > 1 else {},
    )


def _read_known(folder: Path) -> dict[str, list[list[float]]]:
    try:
        known: dict[str, list[list[float]]] = read_sealed(folder / KNOWN)["retention"]
    except (JournalError, KeyError) as error:
        raise ConfigError(f"{folder / KNOWN}: missing or damaged; finish the run with --resume ({error})") from error
    return known


def sampling(experiment: Experiment, population: Population, requests: Sequence[Request] = ()) -> Stack:
    """What has as many clients train in a round as the experiment says, once these requests are admitted."""
    share = experiment.participation
    if share is None:
        return lambda inner: inner
    left = [name for name, data in population.clients.items() if bool(free(requests, name, data).any())]
    return lambda inner: Sampled(inner, {"all": list(population.clients), "retain": left}, share)


class _Life:
    """The stages of one experiment, in order; each reads what earlier ones left and nothing later."""

    def __init__(
        self,
        experiment: Experiment,
        population: Population,
        *,
        runtime: Runtime,
        evaluates: Sequence[Evaluator],
        stages: Path,
        listener: Listener,
    ) -> None:
        self._experiment = experiment
        self._population = population
        self._runtime = runtime
        self._evaluates = evaluates
        self._shelf = Shelf(
            stages,
            runtime,
            evaluates[0],
            listener,
            seed=experiment.seed,
            minimum=experiment.minimum,
            outlier_factor=experiment.outlier_factor,
        )
        self._owners = owners(experiment)

    def whole(self, folder: Path) -> Run:
        """Origin, and for each method: serve the requests one after another, continue."""
        experiment = self._experiment
        initial = experiment.task.init(experiment.seed)
        phases = training_phases(experiment, gives=self._runtime.gives)
        stack = sampling(experiment, self._population)
        origin = self._stage("origin", phases, initial, stack)
        trained = {
            label: self._stage(f"{label}.train", own_training(experiment, method), initial, stack)
            for label, method in experiment.methods.items()
            if has_own_training(method)
        }
        unlearned, continued = {}, {}
        known: dict[str, list[list[float]]] = {}
        for label, method in experiment.methods.items():
            start = seen_by(method, trained.get(label, origin).state)
            *unlearned[label], continued[label] = self._method(label, method, start)
            if len(self._evaluates) > 1:
                known.setdefault("origin", [self._known(origin.state)])
                known[label] = [self._known(o.state) for o in (*unlearned[label], continued[label])]
        firsts = {label: outcomes[0] for label, outcomes in unlearned.items()}
        later = {label: tuple(outcomes[1:]) for label, outcomes in unlearned.items()}
        return Run(experiment, folder, self._population, origin, firsts, continued, trained, later, known)

    def _method(self, label: str, method: Method, state: State) -> list[Outcome]:
        """The outcomes of all requests, then of continued training."""
        experiment, outcomes = self._experiment, list[Outcome]()
        for served, name in enumerate(unlearning(experiment, label), 1):
            stack = self._admitted(served, label)
            phases = method.phases(state, experiment.task) if not any(o.diverged for o in outcomes) else []
            outcomes.append(self._stage(name, phases, state, stack))
            state = outcomes[-1].state
        phases = continued_phases(experiment) if not any(o.diverged for o in outcomes) else []
        return [*outcomes, self._stage(f"{label}.continue", phases, state, stack)]

    def _admitted(self, served: int, label: str) -> Stack:
        """Have the clients admit the first ``served`` requests and no other; the methods of a run share the clients."""
        requests = self._population.requests[:served]
        self._runtime.admit(requests, life=label)
        sample = sampling(self._experiment, self._population, requests)
        return lambda inner: Excluding(sample(inner), request=requests[-1].id)

    def _known(self, state: State) -> list[float]:
        return [evaluate("", 0, state).kr for evaluate in self._evaluates]

    def _stage(self, name: str, phases: Sequence[Phase], start: State, stack: Stack) -> Outcome:
        return self._shelf.stage(name, self._owners[name], phases, start, stack=stack)
