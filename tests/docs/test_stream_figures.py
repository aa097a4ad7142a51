"""The figures of streams: which one a set of runs gets, and how COP is compared at equal forgetting."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from letheon.stream.experiment import Stream

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def driver() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stream_figures", ROOT / "experiments" / "stream_figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stream_figures"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def row(method: str, seed: int, em: float, utility: float, after: str = "2") -> dict[str, Any]:
    return {"method": method, "seed": seed, "after": after, "requests": 2, "em": em, "es": em / 2, "mu_first": utility}


def rows(driver: ModuleType) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Alone: utility 0 at EM 0, 40 at EM 60, 80 at EM 100; with COP 10 points above it on seed 0, 4 below on seed 1."""
    steps = {f"ga{lr}": driver.Step("ga", False, lr) for lr in (1.0, 2.0, 3.0)}
    steps |= {f"ga+cop{lr}": driver.Step("ga", True, lr) for lr in (2.0, 4.0)}
    found = [row("origin", seed, 99.0, 81.0) for seed in (0, 1)]
    for seed, above in ((0, 10.0), (1, -4.0)):
        found += [row("ga1.0", seed, 100.0, 80.0), row("ga2.0", seed, 60.0, 40.0), row("ga3.0", seed, 0.0, 0.0)]
        found += [row("ga+cop2.0", seed, 80.0, 60.0 + above), row("ga+cop4.0", seed, 30.0, 20.0 + above)]
        found += [row("ga+cop4.0", seed, 99.0, 99.0, after="1")]
    return found, steps


def test_cop_is_compared_where_the_objective_alone_forgets_as_much(driver: ModuleType) -> None:
    lines = driver.gains(*rows(driver)).splitlines()
    gain = "3.0 [-4.0, 10.0]"
    assert lines[2:] == [
        f"| ga+cop | 2 | 63.0 [56.0, 70.0] | 80.0 [80.0, 80.0] | 40.0 [40.0, 40.0] | {gain} | {gain} |",
        f"| ga+cop | 4 | 23.0 [16.0, 30.0] | 30.0 [30.0, 30.0] | 15.0 [15.0, 15.0] | {gain} | {gain} |",
    ]


def test_beyond_the_objectives_own_range_nothing_is_compared(driver: ModuleType) -> None:
    found, steps = rows(driver)
    far = [{**r, "em": 100.5} if (r["method"], r["seed"]) == ("ga+cop2.0", 0) else r for r in found]
    assert "| -4.0 [-4.0, -4.0] (1 of 2) |" in driver.gains(far, steps)


def test_each_line_joins_the_means_over_the_seeds(driver: ModuleType) -> None:
    figure = driver.fronts(*rows(driver))
    drawn = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(drawn["ga"].get_xdata()) == [100.0, 60.0, 0.0]
    assert list(drawn["ga+cop"].get_ydata()) == [63.0, 23.0]


@pytest.mark.parametrize(("name", "figure"), [("tofu_five", ""), ("tofu_ranks", "ranks"), ("tofu_steps", "fronts")])
def test_an_experiment_asks_for_one_kind_of_figure(driver: ModuleType, name: str, figure: str) -> None:
    stream = Stream.load(ROOT / "experiments" / f"{name}.toml")
    kinds = {"ranks": driver.caps_of(stream), "fronts": driver.steps_of(stream)}
    assert [kind for kind, found in kinds.items() if found] == ([figure] if figure else [])
