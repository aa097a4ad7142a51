"""OpenUnlearning's result file: theirs is read, ours is written, stale and half-written ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from letheon.errors import DataError, JournalError
from letheon.metrics.measurement import Undefined
from letheon.metrics.text import definition
from letheon.metrics.text.openunlearning import FORGET, UTILITY, log_ratios, read, write
from letheon.metrics.text.scores import Scores
from letheon.metrics.text.truth_ratio import truth_ratios

MINE = {"model": "a1", "data": "b2", "tokenizer": "c3"}
ROUGE = Scores(definition("rouge_l_recall"), {"0": 1.0, "1": 0.5, "2": Undefined("the reference has no words")})
NEEDS = {"forget_Q_A_ROUGE": ("0", "1", "2"), "model_utility": None}


def theirs() -> dict[str, Any]:
    """A file as OpenUnlearning writes it."""
    return {
        "forget_Q_A_PARA_Prob": {
            "agg_value": 0.3,
            "value_by_index": {"0": {"prob": 0.37, "avg_loss": 1.0}, "1": {"prob": 0.14, "avg_loss": 2.0}},
        },
        "forget_Q_A_PERT_Prob": {
            "agg_value": 0.1,
            "value_by_index": {
                "1": {"prob": [0.1], "avg_loss": [4.0, 2.0]},
                "0": {"prob": [0.1], "avg_loss": [2.0, 4.0]},
            },
        },
        "forget_Q_A_Prob": {"agg_value": 0.5, "value_by_index": {"0": {"prob": 0.5, "avg_loss": 0.7}, "1": None}},
        "forget_quality": {"agg_value": None},
        "model_utility": {"agg_value": 0.6},
    }


def put(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "TOFU_EVAL.json"
    path.write_text(json.dumps(content))
    return path


def ours(folder: Path) -> Path:
    path = folder / "TOFU_EVAL.json"
    write(
        path,
        {"forget_Q_A_ROUGE": (ROUGE, "rougeL_recall")},
        aggregates={"model_utility": 0.6, "forget_quality": Undefined("no reference")},
        identity=MINE,
    )
    return path


def test_theirs_is_read_by_item(tmp_path: Path) -> None:
    found = read(put(tmp_path, theirs()), needs={"forget_Q_A_PARA_Prob": ("0", "1"), "forget_Q_A_PERT_Prob": None})
    ratios = log_ratios(found["forget_Q_A_PARA_Prob"], found["forget_Q_A_PERT_Prob"])
    assert ratios.values == {"0": -2.0, "1": -1.0}
    assert truth_ratios(ratios, "closer").definition == "truth_ratio/1:geometric,paraphrase,closer"
    assert found["model_utility"].aggregate == 0.6


def test_an_item_that_they_gave_no_value_stays_without(tmp_path: Path) -> None:
    found = read(put(tmp_path, theirs()), needs={})
    values = found["forget_Q_A_Prob"].scores(definition("probability"), "prob").values
    assert values == {"0": 0.5, "1": Undefined("the file has no prob")}


@pytest.mark.parametrize(
    ("needs", "told"),
    [
        ({"extraction_strength": None}, "extraction_strength is missing"),
        ({"forget_Q_A_Prob": ("0", "1", "2")}, "forget_Q_A_Prob lacks items 1, 2"),
        ({"model_utility": ("0",)}, "model_utility has no items"),
        ({"forget_quality": None}, "forget_quality has no aggregate"),  # issue 63: silently null
        ({"a": None, "b": None}, "a is missing; b is missing"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, needs: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=f"incomplete, evaluate again: {told}"):
        read(put(tmp_path, theirs()), needs=needs)


def test_ours_has_their_layout(tmp_path: Path) -> None:
    content = json.loads(ours(tmp_path).read_text())
    assert content["forget_Q_A_ROUGE"]["agg_value"] == 0.75
    assert content["forget_Q_A_ROUGE"]["value_by_index"]["1"] == {"rougeL_recall": 0.5}
    assert content["model_utility"] == {"agg_value": 0.6}
    assert content["forget_quality"]["agg_value"] is None


def test_ours_comes_back_as_it_was(tmp_path: Path) -> None:
    found = read(ours(tmp_path), needs=NEEDS | {"forget_quality": None}, identity=MINE)
    assert found["forget_Q_A_ROUGE"].scores(definition("rouge_l_recall"), "rougeL_recall") == ROUGE
    assert found["forget_Q_A_ROUGE"].aggregate == 0.75
    assert found["forget_quality"].aggregate == Undefined("no reference")


@pytest.mark.parametrize("field", sorted(MINE))
def test_an_evaluation_of_something_else_is_stale_and_says_of_what(tmp_path: Path, field: str) -> None:
    """B089, B017: a file in the folder was taken for the result, whatever it was of."""
    with pytest.raises(DataError, match=f"stale, evaluate again: {field} is {MINE[field]}, wanted new"):
        read(ours(tmp_path), needs=NEEDS, identity=MINE | {field: "new"})
    with pytest.raises(DataError, match=f"{field} is {MINE[field]}, wanted None"):
        read(ours(tmp_path), needs=NEEDS, identity={k: v for k, v in MINE.items() if k != field})


def test_an_evaluation_by_an_older_definition_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "TOFU_EVAL.json"
    old = Scores("rouge_l_recall/0", ROUGE.values)
    write(path, {"forget_Q_A_ROUGE": (old, "rougeL_recall")}, aggregates={"model_utility": 0.6}, identity=MINE)
    with pytest.raises(DataError, match="forget_Q_A_ROUGE is by rouge_l_recall/0"):
        read(path, needs=NEEDS, identity=MINE)


def test_a_file_that_does_not_say_what_it_is_of_is_never_reused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not say which model and data it is of"):
        read(put(tmp_path, theirs()), needs={}, identity=MINE)
    with pytest.raises(ValueError, match="cannot be told from a stale one"):
        write(tmp_path / "x.json", {}, aggregates={}, identity={})


def test_ours_altered_or_cut_off_is_refused(tmp_path: Path) -> None:
    path = ours(tmp_path)
    text = path.read_text()
    path.write_text(text.replace('"agg_value": 0.6', '"agg_value": 0.9'))
    with pytest.raises(JournalError, match="altered"):
        read(path, needs=NEEDS, identity=MINE)
    path.write_text(text[:-30])
    with pytest.raises(DataError, match="half-written"):
        read(path, needs=NEEDS, identity=MINE)


def test_the_names_are_theirs() -> None:
    assert len({name for row in UTILITY.values() for name in row}) == 9
    assert all(name.startswith("forget_") for name in FORGET)
