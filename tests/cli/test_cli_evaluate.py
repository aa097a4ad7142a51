"""Examinations of a model's folder: which questions a suite asks, and how its scores are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from letheon.errors import ConfigError
from letheon.tasks import rwku_rows
from letheon.tasks.rwku import Rwku
from letheon.text.language import save_model
from letheon.text.suites import BENCHMARKS, Benchmark, Evaluated, Suite, content, evaluate
from rwku_cutout import write_cutout
from text_toys import TINY


def task(forget: str, items: int | None) -> Rwku:
    """RWKU's suite for as many people as a cut-out has."""
    return Rwku(TINY, parts=1, subjects=int(forget), retained=2, measured=2, items=items, learns="both")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An untrained model, with the cut-out as data."""
    write_cutout(tmp_path)
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path))
    monkeypatch.setitem(BENCHMARKS, "rwku", Benchmark(task, "2", 6))  # type: ignore[index]
    model = task("1", None)
    torch.manual_seed(0)
    save_model(tmp_path / "model", model.model().lm, model.encoder.tokenizer)
    yield tmp_path / "model"
    rwku_rows._read.cache_clear()
    rwku_rows._numbers.cache_clear()


def told(suite: Suite, folder: Path) -> tuple[Evaluated, dict[tuple[str, str], object]]:
    done = evaluate(suite, str(folder))
    return done, {(row["set"], row["score"]): row["value"] for row in content(done, suite)["scores"]}


def test_rwku_is_told_by_level_and_kind_and_its_utility_is_of_four_numbers(folder: Path) -> None:
    suite = Suite("rwku", template="plain")
    done, found = told(suite, folder)
    assert done.exam.sets["forget"]["rouge"].values.keys() == {"level 1/0", "level 2/0", "level 1/1", "level 2/1"}
    assert {("forget: level 1", "rouge"), ("adversarial: role playing", "em"), ("neighbours", "rouge")} <= found.keys()
    assert {("membership", f"auc_{score}") for score in ("loss", "zlib", "min_k")} <= found.keys()
    parts = [found[name, score] for name in ("retained", "world_facts") for score in ("rouge", "probability")]
    assert all(isinstance(part, float) for part in parts)
    harmonic = 0.0 if 0.0 in parts else 4 / sum(1 / part for part in parts)  # type: ignore[operator]
    assert found["all", "model_utility"] == pytest.approx(harmonic)


def test_how_many_people_are_to_be_forgotten_is_chosen(folder: Path) -> None:
    suite = Suite("rwku", "1", template="plain")
    done, _ = told(suite, folder)
    assert done.exam.sets["forget"]["rouge"].values.keys() == {"level 1/0", "level 2/0"}
    assert content(done, suite)["forget"] == "1"


def test_from_the_command_line(folder: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = command("evaluate", "--model", folder, "--suite", "rwku", "--template", "plain", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["suite"], found["forget"]) == ("rwku", "2")
    code, _, err = command(
        "evaluate", "--model", folder, "--suite", "rwku", "--compat", "openunlearning", "--out", folder / "x.json"
    )
    assert code == 2
    assert "for tofu" in err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "muse"}, "--suite muse: unknown; use tofu or rwku"),
        ({"forget": "forget20"}, "--forget forget20: unknown; use forget01, forget05, forget10"),
        ({"name": "rwku", "forget": "forget05"}, "a number of people is wanted, 1 to 170"),
        ({"name": "rwku", "forget": "171"}, "a number of people is wanted"),
        ({"template": "llama"}, "--template llama: use plain or chat"),
    ],
)
def test_what_a_suite_cannot_be_is_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Suite(**settings)  # type: ignore[arg-type]


def test_a_reference_is_refused_where_there_are_no_false_answers() -> None:
    with pytest.raises(ConfigError, match="forget quality needs false answers, which rwku has not"):
        evaluate(Suite("rwku"), "a", reference="b")


def test_defaults_are_the_benchmarks_own() -> None:
    assert [(Suite(name).part, Suite(name).most) for name in ("tofu", "rwku")] == [("forget05", 200), ("5", 30)]
    assert Suite("rwku", "170").task
    assert Suite("rwku", tokens=3).most == 3


def test_tofu_asks_the_rows_to_forget_and_three_sets(data_root: Path) -> None:
    sets = Suite("tofu", "forget01", items=7).sets()
    assert {name: len(found.pairs) for name, found in sets.items()} == {
        "forget": 7,
        "retain": 7,
        "real_authors": 7,
        "world_facts": 7,
    }
    assert next(iter(sets["forget"].pairs)) == "3960"
