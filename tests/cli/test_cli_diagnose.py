from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Said(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def copied(run_folder: Path, tmp_path: Path) -> Path:
    """The finished run, to write into."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def test_diagnose_prints_tables_and_writes_what_the_report_then_shows(copied: Path, command: Command) -> None:
    said = command("diagnose", copied, "--only", "rt,mia")
    assert said.code == 0, said.err
    assert "How easily does it return?" in said.out
    assert "Can members be told from strangers?" in said.out
    labels = ["origin", "retrain", "lethe", "fine-tuning", "not", "puf", "noise", "noise as far as lethe"]
    lines = [line.strip() for line in said.out.splitlines()]
    for label in labels:
        assert any(line.startswith(f"{label} ") for line in lines)
    assert str(copied / "diagnostics.json") in said.out
    assert set(json.loads((copied / "diagnostics.json").read_text())["sections"]) == {"rollback", "membership"}
    assert command("report", copied).code == 0
    assert "<h2>Diagnostics</h2>" in (copied / "report.html").read_text()


def test_diagnose_as_json_prints_the_sections_asked_for_and_nothing_else(copied: Path, command: Command) -> None:
    assert command("diagnose", copied, "--only", "mia").code == 0
    said = command("diagnose", copied, "--only", "probe", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert list(found["sections"]) == ["probe"]
    assert found["sections"]["probe"]["definition"] == 1
    assert found["sections"]["probe"]["rows"]["retrain"]["accuracy_n"] > 0
    kept = json.loads((copied / "diagnostics.json").read_text())
    assert set(kept["sections"]) == {"membership", "probe"}


def test_diagnose_refuses_unknown_names_and_folders_without_a_run(
    copied: Path, tmp_path: Path, command: Command
) -> None:
    said = command("diagnose", copied, "--only", "rr")
    assert (said.code, said.out) == (2, "")
    assert "use some of rt, lmc, fd, relearn, mia, probe" in said.err
    assert command("diagnose", tmp_path / "nothing").code == 2


def test_damaged_diagnostics_are_an_error_that_says_what_to_do(copied: Path, command: Command) -> None:
    (copied / "diagnostics.json").write_text("{}")
    said = command("report", copied)
    assert said.code == 2
    assert "run `letheon diagnose` again, or remove it" in said.err
