"""From curves and costs to rows, on runs made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from letheon.curve import Point
from letheon.data import Data
from letheon.experiment import Experiment
from letheon.methods.base import Method
from letheon.methods.detach import Detach
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.lethe import Lethe
from letheon.methods.noise import Noise
from letheon.methods.retrain import Retrain
from letheon.middleware import Cost
from letheon.phase import State
from letheon.pipeline import Run
from letheon.request import Request
from letheon.results import Results, ranges, stored, total
from letheon.stage import Outcome
from letheon.tasks.population import Population
from letheon.tasks.vision import Digits

N, TESTS = 100, 200
EXPERIMENT = Experiment(Digits(), Lethe(), compare=(FineTuning(), Noise()), seed=4)
Shares = Sequence[tuple[float, float]]


def data(n: int, first: int, label: int | None = None) -> Data:
    ids = torch.arange(first, first + n)
    return Data(torch.zeros(n, 64), torch.full((n,), label) if label is not None else ids % 10, ids)


POPULATION = Population(
    {"a": data(N, 0, label=3), "b": data(50, 100), "c": data(50, 150, label=9)},
    Request("client", client="a"),
    data(TESTS, 1000),
    data(50, 2000, label=3),
    N,
    (),
)


def outcome(shares: Shares, *, diverged: str = "", costs: Sequence[Cost] = (), attack: int = 40) -> Outcome:
    """A stage with a point for each (KR, MU); the samples known first are the same ones always."""
    points = []
    for at, (kr, mu) in enumerate(shares):
        bits = np.packbits(np.arange(N) < kr).tobytes().hex()
        right = [round(mu * TESTS / 1000)] * 10
        points.append(Point("start" if at == 0 else "x", at, kr, mu, 0.5, bits, tuple(right), attack))
    return Outcome(State({"w": torch.zeros(3)}, memory={"m": torch.zeros(5)}), points, list(costs), [], {}, diverged)


ORIGIN = outcome([(1.0, 10.0), (95.0, 95.0)])
RETRAIN = (outcome([(95.0, 95.0), (2.0, 95.0)]), outcome([(2.0, 95.0), (3.0, 95.0), (1.0, 95.0)]))
FINE_TUNING = (outcome([(95.0, 95.0), (70.0, 95.0)]), outcome([(70.0, 95.0), (65.0, 95.0), (60.0, 95.0)]))
DETACH = (outcome([(95.0, 95.0), (95.0, 95.0)]), outcome([(95.0, 95.0), (70.0, 95.0), (65.0, 95.0)]))
PERFECT = (outcome([(95.0, 95.0), (0.0, 95.0)]), outcome([(0.0, 95.0), (2.0, 95.0), (1.0, 95.0)]))


def results(origin: Outcome = ORIGIN, **methods: tuple[Outcome, Outcome]) -> Results:
    """Results of a run in which lethe and noise are what is given, or perfect."""
    pairs = {"retrain": RETRAIN, "lethe": PERFECT, "fine-tuning": FINE_TUNING, "noise": PERFECT}
    pairs |= {"detach": DETACH} | methods
    unlearned = {label: pair[0] for label, pair in pairs.items()}
    continued = {label: pair[1] for label, pair in pairs.items()}
    return Results(Run(EXPERIMENT, Path(), POPULATION, origin, unlearned, continued))


def lethe(unlearned: tuple[float, float], *continued: tuple[float, float], **more: Any) -> dict[str, Any]:
    pair = outcome([(95.0, 95.0), unlearned]), outcome([unlearned, *continued], **more)
    return results(lethe=pair).row("lethe")


@pytest.mark.parametrize(
    ("asked", "main"),
    [
        ([Lethe(), FineTuning()], "lethe"),
        ([Retrain(), Lethe()], "lethe"),
        ([Retrain()], "retrain"),  # detach is there too, but nobody asked for it
        ([Retrain(), Detach()], "detach"),
        ([Detach(), Lethe()], "detach"),
    ],
)
def test_the_method_of_interest_is_the_first_that_was_asked_for_and_is_not_retrain(
    asked: list[Method], main: str
) -> None:
    experiment = replace(EXPERIMENT, method=asked[0], compare=tuple(asked[1:]))
    assert replace(results().run, experiment=experiment).main == main


def test_an_oracle_passes_and_has_no_resurfacing() -> None:
    row = results().row("lethe")
    assert (row["rr"], row["rr_status"], row["verdict"], row["verdict_reasons"]) == (0.0, None, "pass", [])
    assert (row["u_kr"], row["ct_kr_max"], row["ct_kr_mean"], row["ct_kr_last"]) == (0.0, 2.0, 1.5, 1.0)
    assert (row["kr_origin"], row["kr_retrain"], row["mu"], row["mu_retrain"]) == (95.0, 3.0, 95.0, 95.0)


def test_a_method_that_does_nothing_never_passes() -> None:
    row = lethe((95.0, 95.0), (95.0, 95.0), (95.0, 95.0))
    assert (row["rr"], row["rr_status"], row["verdict"]) == (None, "uf", "fail")


def test_a_method_that_destroys_the_model_never_passes() -> None:
    row = lethe((0.0, 10.0), (0.0, 10.0), (0.0, 10.0))
    assert (row["rr"], row["rr_status"], row["verdict"]) == (None, "collapsed", "fail")
    assert "MU 10.00 after unlearning" in row["rr_reason"]


def test_a_collapse_comes_before_failed_forgetting() -> None:
    assert lethe((95.0, 10.0), (95.0, 10.0))["rr_status"] == "collapsed"


def test_what_comes_back_is_the_rate_and_fails() -> None:
    row = lethe((0.0, 95.0), (10.0, 95.0), (49.0, 95.0))
    assert row["rr"] == pytest.approx(100 * (49 - 3) / (95 - 3))
    assert row["rr_low"] < row["rr"] < row["rr_high"]
    assert (row["verdict"], row["rr_reason"]) == ("fail", None)


def test_the_unlearned_model_itself_is_no_round_of_continued_training() -> None:
    assert lethe((20.0, 95.0), (1.0, 95.0))["ct_kr_max"] == 1.0


def test_a_void_run_ranks_nobody_not_even_an_oracle_or_a_collapsed_model() -> None:
    void = results(outcome([(1.0, 10.0), (60.0, 95.0)]))
    assert void.void == ["Origin retains 60.0 % of the data to forget; 80 % are needed"]
    for row in void.rows():
        assert (row["rr"], row["rr_status"], row["verdict"]) == (None, "void", "void")
        assert "Origin retains 60.0 %" in row["rr_reason"]


def test_a_run_in_which_fine_tuning_forgets_as_well_as_retrain_is_void() -> None:
    (reason,) = results(**{"fine-tuning": PERFECT}).void
    assert "every method would look persistent" in reason


def test_at_class_level_that_is_said_but_makes_no_run_void() -> None:
    found = results(**{"fine-tuning": PERFECT})
    of_class = replace(found.run.population, request=Request("class", label=3))
    found = Results(replace(found.run, population=of_class))
    assert found.void == []
    row = found.row("fine-tuning")
    assert (row["rr"], row["verdict"]) == (0.0, "pass")
    assert "every method would look persistent" in row["caveat"]
    assert results().row("lethe")["caveat"] is None


def test_a_trigger_that_does_not_generalise_makes_the_run_void() -> None:
    (reason,) = results(outcome([(95.0, 95.0)], attack=5)).void
    assert "the trigger works on 10.0 % of held-out images" in reason


def test_a_method_that_diverged_is_collapsed_and_keeps_its_numbers() -> None:
    pair = outcome([(95.0, 95.0), (0.0, 95.0)], diverged="left the numbers"), outcome([(0.0, 95.0)])
    row = results(lethe=pair).row("lethe")
    assert (row["rr_status"], row["rr_reason"]) == ("collapsed", "collapsed: left the numbers")
    assert (row["verdict"], row["u_kr"], row["ct_kr_max"]) == ("fail", 0.0, 0.0)


def test_a_reference_that_diverged_makes_the_run_void() -> None:
    broken = replace(RETRAIN[0], diverged="left the numbers"), RETRAIN[1]
    assert results(retrain=broken).void
    assert results(replace(ORIGIN, diverged="left the numbers")).void


def test_costs_are_those_of_unlearning_over_all_phases() -> None:
    costs = [Cost("rectify", 2, 100, 50, 10.0, 1e6, 0.5), Cost("restore", 3, 200, 60, 20.0, 2e6, 1.5)]
    pair = outcome([(95.0, 95.0), (0.0, 95.0)], costs=costs), PERFECT[1]
    row = results(lethe=pair).row("lethe")
    fields = ("rounds", "bytes_down", "bytes_up", "flops", "seconds", "server_storage_bytes")
    assert [row[field] for field in fields] == [5, 300, 110, 3e6, 2.0, 20]
    assert total(costs).samples == 30.0
    assert total([]) == Cost("total")
    assert stored(pair[0]) == 20


def test_a_row_has_every_name_that_was_promised() -> None:
    row = results().row("noise")
    plain = ["method", "seed", "scope", "n_forget", "mu", "mu_retrain", "kr_origin", "kr_retrain", "u_kr", "rr"]
    costs = ["rounds", "bytes_up", "bytes_down", "flops", "seconds", "rr_status", "rr_reason"]
    assert {*plain, *costs, "ct_kr_max", "ct_kr_mean", "ct_kr_last"} <= row.keys()
    for metric in (
        "mu",
        "mu_retrain",
        "kr_origin",
        "kr_retrain",
        "u_kr",
        "ct_kr_max",
        "ct_kr_mean",
        "ct_kr_last",
        "rr",
    ):
        assert row[f"{metric}_low"] <= row[metric] <= row[f"{metric}_high"]
    assert (row["method"], row["seed"], row["scope"], row["n_forget"]) == ("noise", 4, "client", N)
    assert [r["method"] for r in results().rows()] == ["retrain", "lethe", "fine-tuning", "noise", "detach"]


def test_the_worst_client_is_one_that_retains_something() -> None:
    row = results().row("lethe")
    assert row["worst_client"] == "b"  # all classes fare alike, so the first by name
    assert row["mu_worst_client"] == pytest.approx(95.0)


def test_at_class_level_utility_leaves_the_forgotten_class_out() -> None:
    population = replace(POPULATION, request=Request("class", label=3), triggered_test=None)
    right = (20, 20, 20, 0, 20, 20, 20, 20, 20, 20)
    run = results().run
    point = replace(run.continued["lethe"].points[-1], test_correct=right, attack=None)
    of_class = Results(replace(run, population=population))
    assert of_class.mu(point).value == 100.0
    assert results().mu(point).value == 90.0
    assert of_class.attack(point) is None


def test_ranges_leave_out_what_is_undefined() -> None:
    rows: list[Mapping[str, Any]] = [{"rr": 1.0}, {"rr": None}, {"rr": 4.0}]
    assert ranges(rows, "rr") == (2.5, 1.0, 4.0, 2)
    assert ranges([{"rr": None}], "rr") is None
