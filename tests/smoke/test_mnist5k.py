"""The main job on the real images that a package ships, with the thresholds of the specification: 90 s on one core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from letheon import pipeline
from letheon.experiment import Experiment
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.lethe import Lethe
from letheon.results import Results

DEMO = Path(__file__).parents[2] / "experiments" / "demo.toml"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Seed 0, ten clients with Dir(0.5), 60 rounds: Lethe's defaults, and fine-tuning for as many rounds."""
    base = Experiment.load(DEMO, ["train_rounds=60", "seed=0"])
    assert base.method == Lethe()
    experiment = replace(base, compare=(FineTuning(rounds=8),))
    return Results(pipeline.run(experiment, tmp_path_factory.mktemp("smoke"), workers=1))


@pytest.fixture(scope="module")
def rows(found: Results) -> Mapping[str, Mapping[str, Any]]:
    return {row["method"]: row for row in found.rows()}


def test_origin_knows_the_trigger_and_retrain_does_not(found: Results, rows: Mapping[str, Mapping[str, Any]]) -> None:
    assert found.void == []
    assert rows["retrain"]["kr_origin"] >= 80
    assert rows["retrain"]["u_kr"] <= 5
    assert rows["retrain"]["ct_kr_max"] <= 5


def test_fine_tuning_alone_does_not_forget(rows: Mapping[str, Mapping[str, Any]]) -> None:
    assert rows["fine-tuning"]["u_kr"] >= 30
    assert rows["fine-tuning"]["verdict"] == "fail"


def test_lethe_forgets_and_stays_so_through_twenty_rounds(
    found: Results, rows: Mapping[str, Mapping[str, Any]]
) -> None:
    row = rows["lethe"]
    assert len(found.run.continued["lethe"].points) == 1 + 20
    assert row["u_kr"] <= 10
    assert row["rr_status"] is None
    assert row["rr"] <= 10
    assert row["verdict"] == "pass"


def test_lethe_keeps_utility(rows: Mapping[str, Mapping[str, Any]]) -> None:
    row = rows["lethe"]
    assert row["mu"] >= row["mu_origin"] - 3
    assert row["mu"] >= row["mu_retrain"] - 3
