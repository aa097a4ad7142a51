"""What a report holds, as plain data, computed from one run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from letheon import config, tree
from letheon.errors import JournalError
from letheon.experiment import Experiment
from letheon.folder import CONTINUED_BY, EXPERIMENT, versions
from letheon.life import owners, unlearning
from letheon.metrics import VERSIONS
from letheon.pipeline import Run
from letheon.report.alignment import Alignments, alignments
from letheon.report.curves import Curves, curves
from letheon.report.requests import Known, known
from letheon.report.toml import as_toml
from letheon.report.words import amount, digits, spread, stretches
from letheon.request import Request
from letheon.results import Results
from letheon.stage import Outcome

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """What one phase of one stage cost."""

    stage: str
    phase: str
    rounds: int
    bytes_up: int
    bytes_down: int
    flops: float
    seconds: float
    storage: int


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Replies of one client that were refused for one reason in one phase; ``rounds`` as in ``1–4, 7``."""

    stage: str
    phase: str
    client: str
    reason: str
    rounds: str
    count: int


@dataclass(frozen=True, slots=True)
class Kept:
    """Something that outlives the request: a liability, so it is listed."""

    where: str
    what: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of "what was run"."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the run left behind, and its digest over parameters and buffers."""

    stage: str
    digest: str


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report.

    Attributes:
        title: for people.
        main: label of the method of interest.
        retrain: label of the reference.
        n_forget, n_test: samples that KR and MU rest on.
        void: why the run ranks no method; empty if it can.
        headline: the findings in sentences, the most important first.
        rows: of ``Results``, Retrain first, each with its ``setting``.
        curves: KR and MU on one round axis.
        requests: with several requests, what is known of each after each.
        costs: of each phase of each stage.
        alignments: of each method that keeps an alignment log.
        quarantined: refused replies.
        stopped: stages that diverged, and why; the replies of their last round are named in the reason.
        kept: what the server still holds.
        population, request, versions: facts.
        models: digests of all models.
        experiment: the experiment as TOML.
        command: repeats the run from it.
    """

    title: str
    main: str
    retrain: str
    n_forget: int
    n_test: int
    void: tuple[str, ...]
    headline: tuple[str, ...]
    rows: tuple[Row, ...]
    curves: Curves
    requests: tuple[Known, ...]
    costs: tuple[PhaseCost, ...]
    alignments: tuple[Alignments, ...]
    quarantined: tuple[Quarantined, ...]
    stopped: tuple[Fact, ...]
    kept: tuple[Kept, ...]
    population: tuple[Fact, ...]
    versions: tuple[Fact, ...]
    models: tuple[Model, ...]
    experiment: str
    command: str


def report_of(run: Run) -> Report:
    """Everything that a report on ``run`` says. Equal runs give equal reports: no clock, host or path goes in."""
    results, experiment = Results(run), run.experiment
    rows = rows_of(run)
    main, retrain = run.main, results.retrain
    return Report(
        title=experiment.title or f"{experiment.task.name}, {experiment.clients} clients",
        main=main,
        retrain=retrain,
        n_forget=rows[0]["n_forget"],
        n_test=rows[0]["n_test"],
        void=tuple(results.void),
        headline=tuple(_headline(rows, main, retrain, experiment.continue_rounds)),
        rows=tuple(rows),
        curves=curves(results, main),
        requests=known(run),
        costs=tuple(_costs(run)),
        alignments=tuple(alignments(run)),
        quarantined=tuple(_quarantined(run)),
        stopped=tuple(Fact(stage, outcome.diverged) for stage, outcome in stages(run).items() if outcome.diverged),
        kept=tuple(_kept(run)),
        population=tuple(_population(run)),
        versions=tuple(_versions(run)),
        models=tuple(
            Model(stage, tree.digest(outcome.state.params | outcome.state.buffers))
            for stage, outcome in stages(run).items()
        ),
        experiment=as_toml(config.plain(experiment)),
        command="letheon run experiment.toml --out runs/again",
    )


def stages(run: Run) -> dict[str, Outcome]:
    """All stages of a run by name, in the order in which they ran."""
    named = {"origin": run.origin} | {f"{label}.train": outcome for label, outcome in run.trained.items()}
    for label in run.experiment.methods:
        outcomes = (run.unlearned[label], *run.later.get(label, ()))
        named |= dict(zip(unlearning(run.experiment, label), outcomes, strict=True))
        named[f"{label}.continue"] = run.continued[label]
    return named


def settings(experiment: Experiment) -> dict[str, str]:
    """For each method, the digest of all that its row depends on but the seed: rows that share it may be averaged."""
    owned = owners(replace(experiment, seed=0))
    return {label: owned[f"{label}.continue"] for label in experiment.methods}


def rows_of(run: Run) -> list[Row]:
    """The rows of ``Results``, each with its ``setting``."""
    known = settings(run.experiment)
    return [row | {"setting": known[row["method"]]} for row in Results(run).rows()]


def _headline(rows: list[Row], main: str, retrain: str, rounds: int) -> list[str]:
    row = next(row for row in rows if row["method"] == main)
    said = [_finding(row, rounds)]
    if row["verdict"] == "void":
        return [*said, "This run ranks no method; its numbers must not be used to compare methods."]
    if row["caveat"]:
        said.append(f"Beware: {row['caveat']}.")
    for other in rows:
        if other["method"] != retrain:
            said.append(_outcome(other))
    return said


def _finding(row: Row, rounds: int) -> str:
    kr, mu = digits(row["n_forget"]), digits(row["n_test"])
    return (
        f"After unlearning, {row['method']} retains {row['u_kr']:.{kr}f} % of the data to forget; Origin retained "
        f"{row['kr_origin']:.{kr}f} %. In {rounds} rounds of continued training it reaches at most "
        f"{row['ct_kr_max']:.{kr}f} %; Retrain, which never saw these data, reaches {row['kr_retrain']:.{kr}f} %. "
        f"Clean test accuracy ends at {row['mu']:.{mu}f} %, Retrain's at {row['mu_retrain']:.{mu}f} %."
    )


def _outcome(row: Row) -> str:
    if row["verdict"] != "pass":
        return f"{row['method']} is outside the thresholds: {'; '.join(row['verdict_reasons'])}."
    rate = spread(row["rr"], row["rr_low"], row["rr_high"], digits(row["n_forget"]))
    return f"{row['method']} is within the thresholds: resurfacing rate {rate} %."


def _costs(run: Run) -> list[PhaseCost]:
    return [
        PhaseCost(
            stage, cost.phase, cost.rounds, cost.bytes_up, cost.bytes_down, cost.flops, cost.seconds, cost.storage
        )
        for stage, outcome in stages(run).items()
        for cost in outcome.costs
    ]


def _quarantined(run: Run) -> list[Quarantined]:
    rounds: dict[tuple[str, str, str, str], list[int]] = {}
    for stage, outcome in stages(run).items():
        for event in outcome.events:
            key = (stage, event["phase"], event["client"], event["reason"])
            rounds.setdefault(key, []).append(event["round"])
    return [Quarantined(*key, stretches(found), len(found)) for key, found in rounds.items()]


def _kept(run: Run) -> list[Kept]:
    state = run.origin.state
    size = tree.n_bytes(state.params) + tree.n_bytes(state.buffers)
    own = ["origin", *(f"{label}.train" for label in run.trained)]
    kept = [Kept(stage, "the model before the request, which was trained on the data to forget", size) for stage in own]
    for stage, outcome in stages(run).items():
        kinds: dict[str, int] = {}
        for name, tensor in outcome.state.memory.items():  # a history has many entries of a kind
            kinds[name.partition("/")[0]] = kinds.get(name.partition("/")[0], 0) + tree.n_bytes({name: tensor})
        kept += [Kept(stage, kind, size) for kind, size in kinds.items()]
    return kept


def _population(run: Run) -> list[Fact]:
    population, experiment = run.population, run.experiment
    request, triggered = population.request, population.triggered_test
    covered = " and, together with it, ".join(_told(each) for each in request.members)
    return [
        Fact("Task", experiment.task.name),
        Fact("Clients", str(len(population.clients))),
        Fact("Request", f"{request.id}: {covered}"),
        Fact("Samples to forget", str(population.forget_size)),
        Fact("Training samples", str(sum(map(len, population.clients.values())))),
        Fact("Test images", str(len(population.test))),
        Fact("Test images with trigger", str(len(triggered)) if triggered is not None else "none: no trigger"),
        Fact("Parameters", amount(tree.count(run.origin.state.params))),
        Fact("Rounds", f"{experiment.train_rounds} of training, {experiment.continue_rounds} continued"),
        Fact("Seed", str(experiment.seed)),
        *(Fact("Note", note) for note in population.notes),
    ]


def _told(request: Request) -> str:
    who = {"client": f"client {request.client}", "class": f"class {request.label}"}
    return f"{request.scope} level, {who.get(request.scope, f'{len(request.samples)} samples')}"


def _versions(run: Run) -> list[Fact]:
    metrics = ", ".join(f"{name} {number}" for name, number in VERSIONS.items())
    software = [Fact(name, number) for name, number in sorted(_software(run).items())]
    return [Fact("Experiment", run.experiment.digest), *software, Fact("Metric definitions", metrics)]


def _software(run: Run) -> Mapping[str, str]:
    """The versions that the run was begun with, and the code that continued it; today's if its folder does not say."""
    path = run.folder / EXPERIMENT
    if not path.is_file():
        return versions()
    try:
        content = json.loads(path.read_text())
        found: dict[str, str] = content["versions"]
        others = content.get(CONTINUED_BY, [])
    except (json.JSONDecodeError, KeyError) as error:
        raise JournalError(f"{path}: damaged ({error}); run again into another --out") from error
    return found | ({"code, continued by": ", ".join(others)} if others else {})
