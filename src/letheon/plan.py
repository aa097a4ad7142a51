"""What an experiment will cost: rounds, samples, FLOPs, bytes and disk, exactly; time, as an estimate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from letheon.calibration import Pace, calibrate
from letheon.cohort import Sampled
from letheon.curve import Point
from letheon.experiment import Experiment
from letheon.journal import KEPT, save_state
from letheon.life import (
    continued_phases,
    has_own_training,
    own_training,
    records_training,
    seen_by,
    training_phases,
    unlearning,
)
from letheon.middleware import Cost, DryRun, Excluding, Metered
from letheon.phase import Phase, State
from letheon.request import Part, free
from letheon.runtimes.inprocess import available_cores
from letheon.tasks.population import Population
from letheon.work import Federation, Reply, Work

COUNTED = ("rounds", "samples", "flops", "bytes_down", "bytes_up")
"""What is counted exactly, as ``Cost`` and ``PhasePlan`` name it."""
REPORT_BYTES, REPORT_POINT_BYTES = 150_000, 400
"""Allowance for the report and its tables, at all and for each point of a curve; the rest of the disk is computed."""


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """One phase of one stage.

    Attributes:
        phase: its name.
        steps: how often its step is repeated; also the points it adds to the curve.
        rounds: round trips to the clients; a step at the server alone has none.
        samples: samples that pass through a model at clients.
        flops: 2 for each multiply-accumulate; of an ascent, which may stop early, an upper bound.
        bytes_down: sent to clients.
        bytes_up: sent by clients.
        seconds: estimate, evaluation and journal included.
        is_exact: whether the counts hold to the last byte; else the method searches or stops by itself, and they are
            what the longest way takes.
    """

    phase: str
    steps: int
    rounds: int
    samples: float
    flops: float
    bytes_down: int
    bytes_up: int
    seconds: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage: ``origin``, or ``unlearn`` and ``continue`` of a method."""

    stage: str
    phases: tuple[PhasePlan, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The price of an experiment.

    Attributes:
        digest: of the experiment.
        stages: in the order in which they run.
        total: the sum over all phases.
        disk_bytes: size of the run folder at the end.
        disk_peak_bytes: its largest size on the way, with the journal of one stage.
        workers: clients trained at a time, as the estimate of time takes it.
        notes: what the population says of itself, and the methods of themselves.
    """

    digest: str
    stages: tuple[StagePlan, ...]
    total: PhasePlan
    disk_bytes: int
    disk_peak_bytes: int
    workers: int
    notes: tuple[str, ...]


def plan(experiment: Experiment, *, workers: int | None = None) -> Plan:
    """Price ``experiment`` without training it.

    The first two steps of each phase run against a federation that answers at once with zeros of the true sizes. Time
    comes from some training steps, an evaluation and a journal entry, timed on this machine in about a second.

    Args:
        experiment: what to price.
        workers: clients trained at a time; all cores by default.
    """
    task = experiment.task
    population = experiment.populate()
    workers = workers or available_cores()
    pace = calibrate(experiment, population, workers)
    records = any(records_training(method) or has_own_training(method) for method in experiment.methods.values())
    pricings = [
        _Pricing(
            _extremes(experiment, _sizes(population, served)), population.requests[max(0, served - 1)].id, pace, records
        )
        for served in range(len(population.requests) + 1)
    ]
    disk, stages = _Disk(experiment, population), []
    origin = state = fresh = task.init(experiment.seed)
    trained: dict[str, State] = {}
    for name, phases in stages_of(experiment):
        label, _, kind = name.rpartition(".")
        served = len(population.requests) if kind == "continue" else _served(kind)
        begin = {"origin": fresh, "train": fresh}
        if kind == "unlearn":
            begin["unlearn"] = seen_by(experiment.methods[label], trained.get(label, origin))
        state, priced = pricings[served].stage(phases, begin.get(kind, state), admitted=served > 0)
        origin = state if kind == "origin" else origin
        trained |= {label: state} if kind == "train" else {}
        disk.add(state, priced)
        stages.append(StagePlan(name, priced))
    total = summed([phase for stage in stages for phase in stage.phases])
    sizes = _sizes(population, 1)
    remarks = [remark for method in experiment.methods.values() for remark in method.remarks(sizes)]
    notes = (*population.notes, *remarks)
    return Plan(experiment.digest, tuple(stages), total, disk.kept, disk.peak, workers, notes)


def stages_of(experiment: Experiment) -> list[tuple[str, list[Phase]]]:
    """All stages of a run by name, with their phases, in the order in which they run."""
    start = experiment.task.init(experiment.seed)
    stages = [("origin", training_phases(experiment))]
    for label, method in experiment.methods.items():
        if has_own_training(method):
            stages.append((f"{label}.train", own_training(experiment, method)))
    for label, method in experiment.methods.items():
        stages += [(name, list(method.phases(start, experiment.task))) for name in unlearning(experiment, label)]
        stages.append((f"{label}.continue", continued_phases(experiment)))
    return stages


def summed(phases: Sequence[PhasePlan]) -> PhasePlan:
    """The sum over phases."""
    total = {name: sum(getattr(phase, name) for phase in phases) for name in ("steps", *COUNTED, "seconds")}
    return PhasePlan("total", **total, is_exact=all(phase.is_exact for phase in phases))


def _served(kind: str) -> int:
    """How many requests are admitted in a stage: 0 while training, then 1, 2 and so on."""
    return int(kind.removeprefix("unlearn") or 1) if kind.startswith("unlearn") else 0


def _sizes(population: Population, served: int) -> dict[str, dict[str, int]]:
    """For each client, how many samples each part has when so many requests are admitted."""
    sizes = {}
    for name, data in population.clients.items():
        *earlier, request = population.requests[: max(1, served)]
        covered, left = request.covers(name, data, earlier), free([*earlier, request], name, data)
        sizes[name] = {"all": len(data), "forget": int(covered.sum()), "retain": int(left.sum())}
    return sizes


def _extremes(experiment: Experiment, sizes: Mapping[str, Mapping[str, int]]) -> tuple[Federation, ...]:
    """The federation that trains nothing; if it is sampled, with the cohorts that cost the most.

    The largest clients have the most to train. Those with nothing to forget are the ones to whom the model is not sent
    anyway, and of whom a history is read after the request.
    """
    dry, share = DryRun(sizes, experiment.task), experiment.participation
    if share is None:
        return (dry,)
    return tuple(
        Sampled(dry, _ranked(sizes, apart=apart), share, draw=lambda names, count, seed: names[:count])
        for apart in (True, False)
    )


def _ranked(sizes: Mapping[str, Mapping[str, int]], *, apart: bool) -> dict[Part, list[str]]:
    """By part, its holders, whoever holds most of it first; with ``apart``, behind all who have nothing to forget."""

    def order(name: str, part: Part) -> tuple[bool, int, str]:
        return apart and sizes[name]["forget"] > 0, -sizes[name][part], name

    parts: tuple[Part, ...] = ("all", "retain")
    return {part: sorted((n for n in sizes if sizes[n][part]), key=lambda n: order(n, part)) for part in parts}


@dataclass(frozen=True, slots=True)
class _Pricing:
    """Prices stages with the federations that a run has, over those that train nothing; the dearest counts."""

    extremes: tuple[Federation, ...]
    request: str
    pace: Pace
    records_training: bool

    def stage(self, phases: Sequence[Phase], start: State, *, admitted: bool) -> tuple[State, tuple[PhasePlan, ...]]:
        """The state with everything that the stage keeps, and each phase's price."""
        state, priced = start, []
        for phase in phases:
            tried = [
                self.phase(phase, state, _Judged(dry, later), admitted=admitted)
                for dry in self.extremes
                for later in (1.0, 0.0)
            ]
            state = tried[0][0]
            priced.append(self._planned(phase, [cost for _, cost in tried]))
        return replace(state, scratch={}), tuple(priced)

    def phase(self, phase: Phase, state: State, dry: Federation, *, admitted: bool) -> tuple[State, Cost]:
        """The first step, and the second one for all that follow: what is asked once is counted once.

        All steps where a history grows or is read: in training, if a method records it, and in serving a request.
        """
        meter = Metered(dry)
        federation: Federation = Excluding(meter, request=self.request) if admitted else meter
        grows = bool(state.memory) and phase.name != "continue" if admitted else self.records_training
        for t in range(phase.rounds if grows else min(2, phase.rounds)):
            state = phase.step(federation, state, t)
            meter.observe(str(t), 1, state)
        return state, repeated(meter.phases, phase.rounds)

    def _planned(self, phase: Phase, costs: Sequence[Cost]) -> PhasePlan:
        most = {name: max(getattr(cost, name) for cost in costs) for name in COUNTED}
        least = {name: min(getattr(cost, name) for cost in costs) for name in COUNTED}
        seconds = self.pace.seconds(most["flops"], phase.rounds)
        is_exact = most == least and phase.until is None and len(self.extremes) == 1
        return PhasePlan(phase.name, phase.rounds, **most, seconds=seconds, is_exact=is_exact)


@dataclass
class _Judged:
    """A federation that finds the first model it evaluates perfect, and all later ones as good as ``later`` says.

    Both extremes of a search along a step: the model that always passes and the one that never does.
    """

    inner: Federation
    later: float
    evaluations: int = 0

    def run(self, *works: Work) -> Iterator[Reply]:
        accuracy = self.later if self.evaluations else 1.0
        self.evaluations += any(work.kind == "evaluate" for work in works)
        for reply in self.inner.run(*works):
            yield replace(reply, metrics={**reply.metrics, "accuracy": accuracy})


def repeated(steps: Sequence[Cost], rounds: int) -> Cost:
    """The steps that were taken, the last one for all others."""
    total = Cost("")
    for name in COUNTED:
        taken = [getattr(step, name) for step in steps]
        setattr(total, name, sum(taken) + (rounds - len(taken)) * (taken[-1] if taken else 0))
    return total


class _Disk:
    """Adds up what stages leave on disk."""

    def __init__(self, experiment: Experiment, population: Population) -> None:
        self.kept = REPORT_BYTES
        self.peak = REPORT_BYTES
        self._point = _point_bytes(experiment, population)

    def add(self, state: State, phases: Sequence[PhasePlan]) -> None:
        """A stage: while it runs, one journal entry more than is kept; then result, memory and, twice, the model.

        The second copy of the model is the one for the user; the first is what other runs reuse.
        """
        points = 1 + sum(phase.steps for phase in phases)
        memory = len(save_state(State({}, memory=state.memory), {}))  # written once, by the journal and by the stage
        entry = len(save_state(replace(state, memory={}), {})) + points * self._point
        self.peak = max(self.peak, self.kept + memory + (KEPT + 1) * entry)
        model = len(save_state(State(state.params, state.buffers), {}))
        self.kept += memory + 2 * model + points * (self._point + REPORT_POINT_BYTES)
        self.peak = max(self.peak, self.kept)


def _point_bytes(experiment: Experiment, population: Population) -> int:
    """One point of a curve as it is written."""
    bits = "0" * (2 * -(-population.forget_size // 8))
    counts = (10_000,) * experiment.task.classes
    attack = None if population.triggered_test is None else 10_000
    share = 100 / 3
    point = Point("continue", 100, share, share, share, bits, counts, attack)
    return len(json.dumps(asdict(point), indent=4))
