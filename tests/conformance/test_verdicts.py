"""The main job passes a verdict on broken methods too, and it is never "pass"."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_methods import Collapse, Explode, NoOp

from letheon.experiment import Experiment
from letheon.metrics.measurement import Undefined
from letheon.metrics.verdict import verdict
from letheon.pipeline import run
from letheon.request import Scope
from letheon.results import Results
from letheon.tasks.partition import Partition
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.training import Local


def results(scope: Scope, folder: Path) -> Results:
    """A small life with three methods that do not do their job."""
    target = Target(scope, min_forget=50, label=3, fraction=0.1, trigger=Trigger(size=3, margin=0))
    experiment = Experiment(
        Digits(),
        NoOp(),
        compare=(Collapse(), Explode()),
        seed=2,
        clients=5,
        partition=Partition("iid"),
        request=target,
        local=Local(lr=0.03, batch_size=16, epochs=2),
        train_rounds=12,
        continue_rounds=2,
    )
    return Results(run(experiment, folder, workers=1))


@pytest.mark.parametrize("scope", ["client", "class"])
def test_only_retrain_passes_beside_methods_that_do_nothing_or_destroy_the_model(scope: Scope, tmp_path: Path) -> None:
    found = results(scope, tmp_path)
    assert found.void == []
    status = {label: found.verdict(label).status for label in found.run.experiment.methods}
    assert status == {"retrain": "pass", "no-op": "fail", "collapse": "fail", "explode": "fail", "detach": "fail"}
    assert found.rr("retrain").value == 0.0
    for label, expected in (("no-op", "uf"), ("detach", "uf"), ("collapse", "collapsed")):
        rate = found.rr(label).value
        assert isinstance(rate, Undefined)
        assert rate.status == expected
        assert found.verdict(label).reasons == (rate.reason,)
    assert found.u_kr("collapse").value == 0.0  # forgetting alone would have looked perfect


@pytest.mark.parametrize("status", ["undefined", "uf", "collapsed", "void"])
def test_an_undefined_rate_never_passes_however_good_the_model(status: str) -> None:
    outcome = verdict(Undefined("because", status), 100.0, 90.0)  # type: ignore[arg-type]
    assert outcome.status == ("fail" if status in ("uf", "collapsed") else "void")
    assert outcome.reasons == ("because",)


def test_a_verdict_needs_both_little_resurfacing_and_utility() -> None:
    assert verdict(0.0, 95.0, 96.0).status == "pass"
    assert verdict(5.0, 91.0, 96.0).status == "pass"
    assert verdict(5.01, 96.0, 96.0).status == "fail"
    assert verdict(0.0, 90.9, 96.0).status == "fail"
    assert len(verdict(50.0, 10.0, 96.0).reasons) == 2
