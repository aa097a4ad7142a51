"""``letheon evaluate`` on a real, tiny model in a folder."""

from __future__ import annotations

import json
import math
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
    asked, texts = {"forget", "retain", "real_authors", "world_facts"}, {"forget_mia", "holdout_mia"}
    assert {name for name, _ in rows} == {*asked, *texts, "membership", "all"}
    attacks = {f"auc_{score}" for score in ("loss", "zlib", "min_k", "min_k_plus_plus", "reference")}
    assert {score for name, score in rows if name == "membership"} == attacks
    assert rows["membership", "auc_reference"]["value"] == 0.5  # the reference is the same model
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


def test_people_are_asked_about_in_all_ways_and_held_against_a_reference(model: Path, command: Command) -> None:
    words = ("--suite", "rwku", "--forget", "1", *SMALL[2:])
    code, said, err = command("evaluate", "--model", model, "--reference", model, *words, "--json")
    assert code == 0, err
    rows = {(row["set"], row["score"]): row for row in json.loads(said)["scores"]}
    asked = {"forget", "adversarial", "neighbours", "retained", "world_facts", "forget_mia", "retain_mia"}
    assert asked | {"membership", "all"} <= {name for name, _ in rows}
    assert rows["membership", "auc_reference"]["value"] == 0.5
    assert ("forget", "ks_distance") not in rows  # people have no false answers


def test_a_result_file_of_openunlearning_is_a_reference(model: Path, tmp_path: Path, command: Command) -> None:
    rows = {str(i): {"avg_loss": 1.0} for i in range(3)}
    false = {str(i): {"avg_loss": [101.0, 101.0]} for i in range(3)}  # R = exp(-100): far from any that is measured
    path = tmp_path / "TOFU_EVAL.json"
    told = {"forget_Q_A_PARA_Prob": rows, "forget_Q_A_PERT_Prob": false}
    path.write_text(json.dumps({name: {"agg_value": 0.1, "value_by_index": items} for name, items in told.items()}))
    code, said, err = command("evaluate", "--model", model, "--reference", path, *SMALL, "--json")
    assert code == 0, err
    found = {row["score"]: row["value"] for row in json.loads(said)["scores"]}
    assert found["ks_distance"] == 1.0
    assert found["log10_forget_quality"] == pytest.approx(math.log10(2 / math.comb(5, 2)))
    assert "auc_reference" not in found
    code, _, err = command("evaluate", "--model", model, "--reference", path, "--suite", "rwku", "--forget", "1")
    assert code == 2
    assert "of use for tofu only" in err
    code, _, err = command("evaluate", "--model", model, "--reference", tmp_path / "none.json", *SMALL)
    assert code == 2
    assert "none.json" in err


def test_a_copy_of_tofu_without_held_out_rows_has_no_membership(
    model: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tofu").mkdir()
    for file in (model.parent / "tofu").glob("*.json"):
        if not file.name.startswith("holdout"):
            (tmp_path / "tofu" / file.name).symlink_to(file)
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path))
    code, said, err = command("evaluate", "--model", model, *SMALL, "--json")
    assert code == 0, err
    assert "has no holdout01.json, so there is no membership inference" in err
    assert {row["set"] for row in json.loads(said)["scores"]} == {
        "forget", "retain", "real_authors", "world_facts", "all"
    }  # fmt: skip


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
