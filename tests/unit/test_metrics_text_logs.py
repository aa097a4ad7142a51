"""TOFU's logs: whole, or refused with everything that is missing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from letheon.errors import DataError
from letheon.metrics.text.logs import SETS, Generation, read_tofu, utility_sets
from letheon.metrics.text.utility import model_utility

Log = dict[str, Any]


def made_up(n: int = 3) -> Log:
    """A log in TOFU's format; the numbers mean nothing."""
    items = [str(i) for i in range(n)]
    one = {
        "avg_gt_loss": {i: 0.5 for i in items},
        "avg_paraphrased_loss": {i: 1.0 for i in items},
        "average_perturb_loss": {i: [2.0, 3.0] for i in items},
        "rougeL_recall": {i: 1.0 for i in items},
        "generated_text": {i: [f"[INST] {i}? [/INST]", "guess", "truth"] for i in items},
        "num_token_gt": {i: 4 for i in items},
    }
    return {name: copy.deepcopy(one) for name in SETS.values()}


def written(folder: Path, log: Log) -> Path:
    path = folder / "eval_log_aggregated.json"
    path.write_text(json.dumps(log))
    return path


def test_a_whole_log_is_read_by_item_and_by_name(tmp_path: Path) -> None:
    """B019: a list of three strings was misread."""
    log = read_tofu(written(tmp_path, made_up()), sizes=dict.fromkeys(SETS, 3))
    assert set(log) == set(SETS)
    answers = log["forget"]
    assert answers.texts["1"] == Generation(prompt="[INST] 1? [/INST]", generation="guess", reference="truth")
    assert answers.log_ratios().values == {"0": -1.5, "1": -1.5, "2": -1.5}
    assert answers.log_ratios(truth="answer").values["0"] == -2.0
    assert isinstance(model_utility(utility_sets(log)).value.value, float)


Damage = Callable[[Log], Any]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda log: log.pop(SETS["forget"]), r"forget \(eval_log_forget.json\) is missing"),
        (lambda log: log[SETS["retain"]].pop("rougeL_recall"), r"retain \(eval_log.json\) lacks rougeL_recall"),
        (lambda log: log[SETS["retain"]]["avg_gt_loss"].pop("2"), "avg_gt_loss misses 2"),
        (lambda log: log[SETS["retain"]]["avg_gt_loss"].update({"2": float("nan")}), "avg_gt_loss is no number for 2"),
        (lambda log: log[SETS["retain"]]["avg_gt_loss"].update({"2": None}), "avg_gt_loss is no number for 2"),
        (lambda log: log[SETS["retain"]]["average_perturb_loss"]["1"].pop(), "is not 2 numbers for 1"),
        (lambda log: log[SETS["retain"]]["generated_text"]["0"].pop(), "is not prompt, generation, answer for 0"),
        (lambda log: log[SETS["world_facts"]].update({k: {} for k in log[SETS["world_facts"]]}), "has 0 items"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, damage: Damage, told: str) -> None:
    log = made_up()
    damage(log)
    with pytest.raises(DataError, match=f"incomplete, evaluate again: .*{told}"):
        read_tofu(written(tmp_path, log))


def test_a_log_of_fewer_items_than_the_set_has_is_incomplete(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"forget \(eval_log_forget.json\) has 3 items, 400 are wanted"):
        read_tofu(written(tmp_path, made_up()), sizes={"forget": 400})


def test_all_problems_are_told_at_once_and_the_rest_is_counted(tmp_path: Path) -> None:
    log = made_up()
    for name in SETS.values():
        for field in ("avg_gt_loss", "rougeL_recall", "avg_paraphrased_loss"):
            log[name][field]["0"] = None
    with pytest.raises(DataError, match=r"retain.*real_authors.*and 4 more"):
        read_tofu(written(tmp_path, log))


@pytest.mark.parametrize("kept", [0, 1, 200])
def test_a_file_that_breaks_off_is_half_written(tmp_path: Path, kept: int) -> None:
    path = written(tmp_path, made_up())
    path.write_text(path.read_text()[:kept])
    with pytest.raises(DataError, match="half-written or no JSON"):
        read_tofu(path)


def test_no_file_and_no_object_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_tofu(tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(DataError, match="holds a list"):
        read_tofu(tmp_path / "list.json")
