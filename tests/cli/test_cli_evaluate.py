"""``letheon evaluate`` on a real, tiny model in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from letheon.metrics.text import openunlearning
from letheon.text import suites

Command = Callable[..., tuple[int, str, str]]
SMALL = ("--forget", "forget01", "--items", "2", "--tokens", "4")


@pytest.fixture
def model(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LETHEON_DATA", str(data_root))
    return data_root / "stories260k"


def test_all_scores_come_with_n_interval_and_definition(model: Path, tmp_path: Path, command: Command) -> None:
    code, said, err = command("evaluate", "--model", model, "--reference", model, *SMALL, "--json")
    assert code == 0, err
    told = json.loads(said)
    rows = {(row["set"], row["score"]): row for row in told["scores"]}
    assert {name for name, _ in rows} == {"forget", "retain", "real_authors", "world_facts", "all"}
    assert rows["forget", "em"]["n"] == 2
    assert rows["forget", "em"]["definition"].startswith("exact_memorization/")
    assert rows["all", "model_utility"]["value"] is not None
    forms = {score: row["definition"].partition(":")[2] for (name, score), row in rows.items() if name == "forget"}
    assert forms["truth_ratio"] == "geometric,paraphrase,closer"
    assert forms["truth_ratio_arithmetic"] == "arithmetic,paraphrase,closer"
    assert forms["truth_ratio_share"] == "geometric,paraphrase,share"
    assert forms["kr_original"] == "geometric,answer"
    assert forms["above_one"] == "geometric,paraphrase,above_one"
    assert not {"kr", "kr_original", "above_one", "log_ratio_original"} & {s for name, s in rows if name == "retain"}
    assert rows["forget", "ks_distance"]["value"] == 0.0  # the reference is the same model
    assert rows["forget", "log10_forget_quality"]["value"] == 0.0
    code, said, err = command("evaluate", "--model", model, *SMALL)
    assert code == 0, err
    assert "model_utility" in said


def test_what_was_examined_is_reused_only_for_the_same_model_and_questions(
    model: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scores.json"
    code, first, err = command("evaluate", "--model", model, *SMALL, "--out", out, "--json")
    assert code == 0, err

    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("examined again")

    with monkeypatch.context() as patched:
        patched.setattr(suites, "examine", refuses)
        code, again, err = command("evaluate", "--model", model, *SMALL, "--out", out, "--json")
        assert code == 0, err
        assert json.loads(again) == json.loads(first)
        with pytest.raises(RuntimeError, match="examined again"):
            command("evaluate", "--model", model, *SMALL[:4], "--tokens", "5", "--out", out)


def test_openunlearning_reads_what_is_written_for_it(model: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "TOFU_EVAL.json"
    code, _, err = command("evaluate", "--model", model, *SMALL, "--compat", "openunlearning", "--out", out)
    assert code == 0, err
    names = [name for row in openunlearning.UTILITY.values() for name in row]
    found = openunlearning.read(out, needs=dict.fromkeys([*names, "forget_truth_ratio", "extraction_strength"]))
    assert len(found["extraction_strength"].items) == 2
    assert min(found["extraction_strength"].values("score").values()) > 0  # by its rule, never 0
    code, _, err = command("evaluate", "--model", model, *SMALL, "--compat", "openunlearning")
    assert code == 2
    assert "needs --out" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--forget", "forget02"), "use forget01, forget05, forget10"),
        (("--suite", "muse"), "unknown; use tofu or rwku"),
        (("--template", "chat"), "no chat template"),
        (("--model", "./nowhere"), "no such folder"),
    ],
)
def test_what_cannot_be_examined_is_refused(
    model: Path, command: Command, words: tuple[str, ...], message: str
) -> None:
    code, _, err = command("evaluate", "--model", model, *SMALL, *words)
    assert code == 2
    assert message in err
