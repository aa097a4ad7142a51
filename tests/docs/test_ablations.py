"""The driver of the ablations: every row can be built, runs share what they can, and an interrupted one goes on."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from letheon.experiment import Experiment
from letheon.methods.lethe import Lethe
from letheon.stage import Stage

ROOT = Path(__file__).parents[2]
TINY = (
    "task=digits",
    "clients=4",
    "train_rounds=3",
    "continue_rounds=1",
    'request={scope="client", min_forget=20, trigger={size=2, margin=0}}',
)
ROWS = ("default", "β = 0.5, γ ≤ 1", "the middle layer")


@pytest.fixture(scope="module")
def driver() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ablations", ROOT / "experiments" / "ablations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ablations"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def words(out: Path, *rows: str, seeds: tuple[int, ...] = (0, 1)) -> list[str]:
    sets = [word for setting in TINY for word in ("--set", setting)]
    base = str(ROOT / "experiments" / "demo.toml")
    return ["--base", base, "--out", str(out), "--workers", "1", *sets, "--seeds", *map(str, seeds), "--rows", *rows]


@pytest.mark.parametrize(("name", "has_norms"), [("demo", False), ("cifar10_client", True)])
def test_every_row_is_a_setting_of_lethe_that_the_base_can_run(name: str, has_norms: bool, driver: ModuleType) -> None:
    base = Experiment.load(ROOT / "experiments" / f"{name}.toml")
    rows = driver.ablations(base, [])
    start = base.task.init(0)
    assert len({row.name for row in rows}) == len(rows)
    assert len({row.method for row in rows}) == len(rows)
    assert rows[0].method == Lethe()
    for row in rows:
        assert driver.experiment_of(base, row, 3).methods[row.method.name].phases(start, base.task)
    assert any(row.choice == "normalisation" for row in rows) == has_norms


def test_runs_share_a_cache_and_the_table_has_a_line_for_each_row(
    driver: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.main(words(tmp_path, *ROWS))
    table = (tmp_path / "ablations.md").read_text()
    rows = json.loads((tmp_path / "ablations.json").read_text())
    assert list(rows) == list(ROWS)
    assert [[row["seed"] for row in found] for found in rows.values()] == [[0, 1]] * 3
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert [line.split(" | ")[1] for line in lines] == list(ROWS)
    mu = [row["mu"] for row in rows["default"]]
    assert f"{sum(mu) / 2:.1f} [{min(mu):.1f}, {max(mu):.1f}]" in lines[0]
    assert capsys.readouterr().out.count("seed 1, ") == 3
    shelves = list((tmp_path / "cache").iterdir())
    assert len(shelves) == 2  # a seed deals the data its own way
    for shelf in shelves:
        stages = [path.name.rpartition("-")[0] for path in shelf.iterdir()]
        assert (stages.count("origin"), stages.count("retrain.unlearn"), stages.count("lethe.unlearn")) == (1, 1, 3)
    monkeypatch.setattr(Stage, "run", lambda *_, **__: pytest.fail("what is there was run again"))
    driver.main(words(tmp_path, *ROWS))
    assert (tmp_path / "ablations.md").read_text() == table


def test_an_interrupted_series_keeps_its_table_and_goes_on(
    driver: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real = driver.measured

    def stopping(*given: object) -> object:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append("run")
        return real(*given)

    monkeypatch.setattr(driver, "measured", stopping)
    with pytest.raises(KeyboardInterrupt):
        driver.main(words(tmp_path, *ROWS, seeds=(0,)))
    assert len(json.loads((tmp_path / "ablations.json").read_text())) == 2
    monkeypatch.setattr(driver, "measured", real)
    driver.main(words(tmp_path, *ROWS, seeds=(0,)))
    whole = (tmp_path / "ablations.md").read_text()
    driver.main(words(tmp_path / "again", *ROWS, seeds=(0,)))
    assert (tmp_path / "again" / "ablations.md").read_text() == whole


def test_the_rows_can_be_listed_and_picked(driver: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    driver.main(["--list", "--rows", "layer = *"])
    assert capsys.readouterr().out.splitlines() == [f"layer: layer = {each}" for each in ("module", "block", "global")]
    driver.main(["--rows", "no such row"])
    assert capsys.readouterr().out == "no row matches\n"
