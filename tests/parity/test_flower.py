"""Every federated method gives the same bits in one process and through Flower's messages and apps."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from letheon import pipeline, registry
from letheon.experiment import Experiment
from letheon.methods.fats import FATS
from letheon.methods.federaser import FedEraser
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.lethe import Lethe
from letheon.pipeline import Run
from letheon.request import Scope
from letheon.runtimes.exclusions import Exclusions
from letheon.runtimes.flower import Flower
from letheon.runtimes.simulated import simulated
from letheon.runtimes.site import Site
from letheon.runtimes.terms import Terms
from letheon.stage import Outcome
from letheon.tasks.population import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.testing.grid import MemoryGrid, apps_of
from letheon.testing.scene import Scene, digest, small
from letheon.training import Local

NAMES = registry.names("method", language=False)
CASES = [(name, scope) for name in NAMES for scope in sorted(registry.get("method", name).scopes)]
LIFE = Experiment(
    Digits(norm=True),
    Lethe(rounds=1, restore_rounds=1),
    compare=(FedEraser(interval=1), FATS(cohort=2, steps=3)),
    clients=4,
    request=Target(min_forget=20, trigger=Trigger(size=2, margin=0)),
    local=Local(lr=0.05),
    train_rounds=2,
    continue_rounds=1,
)
LIVES = {
    "methods that record, or train their own model": LIFE,
    "a model that draws": replace(LIFE, task=Digits(dropout=0.3), method=FineTuning(rounds=1), compare=()),
    "samples of many clients, then a class": replace(
        LIFE,
        compare=(),
        request=Target("samples", placement="spread", fraction=0.05, trigger=Trigger(size=2, margin=0)),
        then=(Target("class", label=3),),
    ),
}


def over(sites: list[Site], **how: Any) -> Flower:
    names = [site.name for site in sites]
    return Flower(MemoryGrid(apps_of(sites), **how), names, terms=Terms(deadline_s=60, gather_s=1, poll_s=0.01))


def nodes_of(scene: Scene, folder: Path) -> Flower:
    """The scene's clients as nodes, each with an exclusion table of its own; the request is in force."""
    sites = [Site(name, data, scene.task, folder / f"{name}.db") for name, data in scene.clients.items()]
    if scene.request.scope == "samples":
        for site in sites:
            Exclusions(site.table).file(scene.request, id=scene.request.id)
    runtime = over(sites)
    runtime.admit([scene.request])
    return runtime


@pytest.mark.parametrize(("name", "scope"), CASES)
def test_a_method_gives_the_same_bits_over_flower(name: str, scope: Scope, tmp_path: Path) -> None:
    scene, method = small(scope, norm=True), registry.get("method", name)()
    start = scene.start(method)
    end = scene.run(method)
    other = scene.drive(method, scene.guarded(nodes_of(scene, tmp_path)), start=start)
    assert list(other.params) == list(end.params)
    assert digest(other) == digest(end)


def found(outcome: Outcome) -> dict[str, Any]:
    points = [dataclasses.asdict(point) for point in outcome.points]
    costs = [dataclasses.asdict(cost) | {"seconds": None} for cost in outcome.costs]
    return {"state": digest(outcome.state), "points": points, "costs": costs, "events": outcome.events}


def findings(run: Run) -> dict[str, Any]:
    """Everything but wall times: models, memories, curves, costs."""
    labels = run.experiment.methods
    named = {"origin": run.origin} | {f"{label} origin": run.origin_of(label) for label in labels}
    named |= {f"{label} u": run.unlearned[label] for label in labels}
    named |= {f"{label} c": run.continued[label] for label in labels}
    named |= {f"{label} {number}": outcome for label in labels for number, outcome in enumerate(run.later[label])}
    return {name: found(outcome) for name, outcome in named.items()}


@pytest.mark.parametrize("experiment", LIVES.values(), ids=LIVES.keys())
def test_a_whole_life_is_the_same_over_flower(experiment: Experiment, tmp_path: Path) -> None:
    expected = pipeline.run(experiment, tmp_path / "one", workers=1)
    names = list(experiment.populate().clients)
    runtime = over([simulated(experiment, name, tmp_path) for name in names])
    run = pipeline.run(experiment, tmp_path / "many", workers=1, runtime=runtime)
    assert findings(run) == findings(expected)
    assert run.known == expected.known
