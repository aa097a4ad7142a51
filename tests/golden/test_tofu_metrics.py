"""Utility, truth ratios and forget quality of the logs that TOFU's authors published (Llama-2-7B), to the digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.text.forget_quality import forget_quality
from letheon.metrics.text.logs import Answers, read_tofu, utility_sets
from letheon.metrics.text.retention import retention
from letheon.metrics.text.rouge import rouge_l_recalls
from letheon.metrics.text.truth_ratio import Mean, truth_ratios
from letheon.metrics.text.utility import Utility, model_utility

SIZES = {"retain": 300, "forget": 300, "real_authors": 100, "world_facts": 117}
Logs = dict[str, dict[str, Answers]]


@pytest.fixture(scope="module")
def logs(data_root: Path) -> Logs:
    folder = data_root / "tofu-logs"
    return {name: read_tofu(folder / f"llama2-7b_{name}.json", sizes=SIZES) for name in ("full", "retain90")}


@pytest.fixture(scope="module")
def utilities(logs: Logs) -> dict[str, Utility]:
    return {name: model_utility(utility_sets(log)) for name, log in logs.items()}


def printed(measured: Measurement) -> str:
    """As tables print it: a share with four digits."""
    assert not isinstance(measured.value, Undefined)
    return f"{measured.value / 100.0:.4f}"


@pytest.mark.parametrize(("name", "mu"), [("full", "0.6227"), ("retain90", "0.6137")])
def test_model_utility_with_geometric_truth_ratios(utilities: dict[str, Utility], name: str, mu: str) -> None:
    measured = utilities[name].value
    assert printed(measured) == mu
    assert measured.n == 517
    assert measured.low is not None
    assert measured.high is not None
    assert measured.low < float(mu) * 100.0 < measured.high
    assert utilities[name].collapsed_by == ()


@pytest.mark.parametrize(("name", "mu"), [("full", "0.5859"), ("retain90", "0.5752")])
def test_model_utility_with_arithmetic_truth_ratios(logs: Logs, name: str, mu: str) -> None:
    assert printed(model_utility(utility_sets(logs[name], mean="arithmetic")).value) == mu


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("full", "0.9895 0.9857 0.4747 0.4555 0.9330 0.5962 0.4186 0.8825 0.5390"),
        ("retain90", "0.9889 0.9758 0.4710 0.4341 0.9230 0.5707 0.4143 0.8974 0.5442"),
    ],
)
def test_the_nine_numbers_that_utility_is_the_mean_of(utilities: dict[str, Utility], name: str, row: str) -> None:
    parts = utilities[name].parts
    sets, metrics = ("retain", "real_authors", "world_facts"), ("probability", "rouge", "truth_ratio")
    assert " ".join(printed(parts[f"{s} {m}"]) for s in sets for m in metrics) == row


@pytest.mark.parametrize(
    ("name", "mean", "printed_value"),
    [
        ("full", "geometric", "0.5160"),
        ("full", "arithmetic", "0.5304"),
        ("retain90", "geometric", "0.6740"),
        ("retain90", "arithmetic", "0.6797"),
    ],
)
def test_truth_ratios_on_the_forget_set(logs: Logs, name: str, mean: Mean, printed_value: str) -> None:
    ratios = logs[name]["forget"].log_ratios(mean=mean)
    assert printed(truth_ratios(ratios, "closer").measured()) == printed_value


def test_forget_quality_of_the_full_model_against_retain90(logs: Logs) -> None:
    full, retain = (logs[name]["forget"].log_ratios() for name in ("full", "retain90"))
    found = forget_quality(full, retain)
    assert isinstance(found.distance.value, float)
    assert f"{found.distance.value:.5f}" == "0.39667"
    assert isinstance(found.p, float)
    assert f"{found.p:.3e}" == "1.834e-21"
    assert (found.distance.n, found.n_reference) == (300, 300)


def test_a_model_compared_with_itself_has_forget_quality_1(logs: Logs) -> None:
    ratios = logs["retain90"]["forget"].log_ratios()
    found = forget_quality(ratios, ratios)
    assert (found.distance.value, found.log10_p, found.p) == (0.0, 0.0, 1.0)


def test_knowledge_retention_fits_the_published_values_with_the_paraphrase_only(logs: Logs) -> None:
    """Lethe prints 0.4837 for Origin and 0.3470 for Retrain."""
    found = {
        (name, truth): retention(logs[name]["forget"].log_ratios(truth=truth))
        for name in ("full", "retain90")
        for truth in ("paraphrase", "answer")
    }
    assert {key: round(float(printed(r.kr)), 3) for key, r in found.items()} == {
        ("full", "paraphrase"): 0.484,
        ("full", "answer"): 0.949,
        ("retain90", "paraphrase"): 0.326,
        ("retain90", "answer"): 0.574,
    }
    assert found["retain90", "paraphrase"].above_one.value == pytest.approx(31.0)


@pytest.mark.parametrize("name", ["retain", "forget", "real_authors", "world_facts"])
def test_rouge_of_every_generation_is_the_one_in_the_log(logs: Logs, name: str) -> None:
    for log in logs.values():
        texts = log[name].texts
        recall = rouge_l_recalls(
            {item: text.generation for item, text in texts.items()},
            {item: text.reference for item, text in texts.items()},
        )
        assert recall.scores.values == pytest.approx(log[name].rouge, abs=1e-12)
        assert recall.empty.value == 0.0
