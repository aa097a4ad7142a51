"""``letheon reproduce``, end to end on digits in place of the row's own data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from letheon.reproduce.targets import targets
from rwku_cutout import write_cutout

Command = Callable[..., tuple[int, str, str]]
HEAVY = ("torch", "numpy", "sklearn", "matplotlib", "jinja2")
# 30 rounds teach the trigger: the run is not void, and has something to rank.
TINY = (
    "task=digits",
    "clients=4",
    "train_rounds=30",
    "continue_rounds=3",
    'request={scope="client", min_forget=150, trigger={size=2, margin=0}}',
    "local.lr=0.05",
    'compare=["not", "fine-tuning"]',
)


def words(name: str, out: Path, *more: str | Path) -> list[str | Path]:
    sets: list[str | Path] = [word for setting in TINY for word in ("--set", setting)]
    return ["reproduce", name, "--row", "lenet5", "--out", out, "--workers", "1", *sets, *more]


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom letheon.cli import main\n"
        "try: main(['reproduce', '--list'])\nexcept SystemExit as ended: assert not ended.code\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "heavy: []"
    assert "lethe-table3" in said


def test_the_list_has_every_row_of_every_target(command: Command) -> None:
    out = command("reproduce", "--list")[1]
    rows = json.loads(command("reproduce", "--list", "--json")[1])
    assert [(row["target"], row["row"]) for row in rows] == [(t.id, row) for t in targets().values() for row in t.rows]
    assert all(name in out for name in targets())
    for row in rows:
        assert row["small"]["departures"]
        assert ("lethe" if row["target"].startswith("lethe") else "ga+cop") in row["paper"]["methods"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["reproduce"], "name a table or figure"),
        (["reproduce", "lethe-table9"], "did you mean 'lethe-table"),
        (["reproduce", "lethe-table6"], "nothing here can run it"),
        (["reproduce", "lethe-table3", "--row", "vgg"], "no row 'vgg'"),
        (["reproduce", "lethe-table3", "--row", "lenet5", "--set", "client=4"], "did you mean 'clients'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_any_work(
    given: list[str], said: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*given)
    assert (code, out) == (2, "")
    assert said in err
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduced")


def test_a_row_runs_and_is_put_beside_what_the_paper_prints(out: Path, command: Command) -> None:
    code, said, err = command(*words("lethe-table3", out))
    assert code == 0, err
    assert "lethe-table3, row lenet5: seed 0, run folder" in err
    assert f"Written to {out / 'lethe-table3-lenet5-small.md'}" in said
    page = (out / "lethe-table3-lenet5-small.md").read_text()
    assert page.startswith("## Lethe, arXiv 2601.22601v3, Table III, row lenet5, small scale\n")
    assert "- Changed on the command line: task=digits.\n" in page
    data = json.loads((out / "lethe-table3-lenet5-small.json").read_text())
    (run,) = data["runs"]
    assert run["void"] == ""
    found = {(entry["method"], entry["column"]): entry for entry in data["entries"]}
    assert found["lethe", "CT-KR"]["published"] == 0.34
    assert found["origin", "U-KR"]["measured"] > 80.0
    assert found["fedau", "RR"]["measured"] is None
    assert found["fine-tuning", "RR"]["states"] == {"UF": 1}
    (folder,) = (out / "runs").iterdir()
    assert (folder / "report.html").is_file()
    row = next(row for row in json.loads((folder / "results.json").read_text()) if row["method"] == "lethe")
    assert found["lethe", "CT-KR"]["measured"] == row["ct_kr_max"]
    assert found["lethe", "MU"]["measured"] == row["mu_unlearned"]


def test_another_target_reuses_the_run_with_resume_and_refuses_without(out: Path, command: Command) -> None:
    code, _, err = command(*words("lethe-figure1", out))
    assert code == 2
    assert "--resume" in err
    code, said, err = command(*words("lethe-figure1", out, "--resume", "--json"))
    assert code == 0, err
    assert all("done before" in line for line in err.splitlines()[1:])
    (found,) = json.loads(said)
    assert [drawn["title"] for drawn in found["series"]] == [
        "KR during unlearning (%)",
        "KR during continued training (%)",
    ]
    assert len(found["series"][1]["values"]["lethe"]) == 4
    assert [claim["status"] for claim in found["claims"]].count("open") >= 1  # FedAU and FedOSD were left out


@pytest.mark.parametrize(("name", "column", "drawn"), [
    ("lethe-figure9", "FD", None),
    ("lethe-figure10", "RT", "Rollback tendency (RT)"),
    ("lethe-figure11", "barrier", "Loss on the data to forget along the path (nats)"),
])  # fmt: skip
def test_figures_take_what_letheon_diagnose_measures(
    name: str, column: str, drawn: str | None, out: Path, command: Command
) -> None:
    code, said, err = command(*words(name, out, "--resume", "--json", "--quiet"))
    assert code == 0, err
    (found,) = json.loads(said)
    measured = {e["method"]: e["measured"] for e in found["entries"] if e["column"] == column}
    assert isinstance(measured["lethe"], float)
    assert [series["title"] for series in found["series"]] == ([drawn] if drawn else [])
    (folder,) = (out / "runs").iterdir()
    assert (folder / "diagnostics.json").is_file()


def test_seeds_follow_each_other(tmp_path: Path, command: Command) -> None:
    few = ["--set", "train_rounds=2", "--set", "continue_rounds=1", "--set", "compare=[]", "--set", "method=not"]
    more = [*few, "--set", "method.rounds=1", "--set", "seed=5", "--seeds", "2", "--quiet", "--json"]
    code, said, err = command(*words("lethe-figure5", tmp_path, *more))
    assert code == 0, err
    (found,) = json.loads(said)
    assert [run["seed"] for run in found["runs"]] == [5, 6]
    assert {e["runs"] for e in found["entries"]} == {2}
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_row_at_class_level_is_a_mean_over_classes(tmp_path: Path, command: Command) -> None:
    sets = ("task=digits", "clients=4", "train_rounds=2", "continue_rounds=1", "compare=[]", "method=not")
    given = [word for setting in (*sets, "method.rounds=1") for word in ("--set", setting)]
    row = ["reproduce", "lethe-table4", "--row", "resnet18", "--out", str(tmp_path), "--workers", "1"]
    code, said, err = command(*row, *given, "--json")
    assert code == 0, err
    assert "lethe-table4, row resnet18: seed 0, class 9, run folder" in err
    (found,) = json.loads(said)
    assert [run["label"] for run in found["runs"]] == [0, 4, 9]
    rows = [json.loads((folder / "results.json").read_text()) for folder in (tmp_path / "runs").iterdir()]
    mean = sum(line["u_kr"] for row in rows for line in row if line["method"] == "not") / 3
    (entry,) = (e for e in found["entries"] if (e["method"], e["column"]) == ("not", "U-KR"))
    assert entry["measured"] == pytest.approx(mean)
    assert "Seeds: 0; classes: 0, 4, 9" in (tmp_path / "lethe-table4-resnet18-small.md").read_text()


# People invented for the tests in place of the row's own data; two requests of five.
STREAM = (
    'task={name="rwku", parts=2, subjects=1, retained=2, measured=2, learns="both", '
    'language={max_length=96, model={vocabulary=320, width=16, layers=1, heads=1}}}',
    "train_rounds=1",
    "local={epochs=4, batch_size=8, lr=0.003}",
    "tokens=4",
    'method={name="ga", tuning={lr=1e-3, epochs=1}}',
    'compare=[{name="ga", tuning={lr=1e-3, epochs=1}, cop={rank=1}}, '
    '{name="ga", tuning={lr=1e-3, epochs=1}, cop={rank=2}}]',
)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("people")
    write_cutout(root)
    return root


def stream_words(name: str, *more: str | Path) -> list[str | Path]:
    return ["reproduce", name, *(word for setting in STREAM for word in ("--set", setting)), *more]


def test_a_stream_runs_and_is_put_beside_what_the_paper_prints(
    people: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LETHEON_DATA", str(people))
    out = people / "out"
    code, said, err = command(*stream_words("cop-table3", "--out", out))
    assert code == 0, err
    assert f"Written to {out / 'cop-table3-llama-3b-small.md'}" in said
    data = json.loads((out / "cop-table3-llama-3b-small.json").read_text())
    found = {(entry["method"], entry["column"]): entry for entry in data["entries"]}
    assert found["ga", "FP 2"]["published"] == 0.02
    assert found["ga", "FP 5"]["measured"] is None  # two requests only
    assert found["npo", "MU 1"]["measured"] is None
    (folder,) = (out / "runs").iterdir()
    rows = json.loads((folder / "results.json").read_text())["rows"]
    (row,) = (row for row in rows if (row["method"], row["after"]) == ("ga+cop", "2"))
    assert found["ga+cop", "FP 2"]["measured"] == pytest.approx(row["probability"] / 100)
    code, said, err = command(*stream_words("cop-fig4", "--out", out, "--resume", "--json"))
    assert code == 0, err
    assert len(list((out / "runs").iterdir())) == 1  # the same run
    (figure,) = json.loads(said)
    utility, strength = figure["series"]
    assert utility["at"] == [0, 1, 2]
    assert utility["values"].keys() == strength["values"].keys() == {"origin", "ga"}
    (largest,) = (e for e in figure["entries"] if (e["method"], e["column"]) == ("ga", "largest ES"))
    assert largest["measured"] == max(strength["values"]["ga"][1:])


def test_a_stream_for_a_gpu_is_refused_where_there_is_none(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = command("reproduce", "cop-table1", "--scale", "paper", "--out", tmp_path)
    assert code == 2
    assert "needs a GPU (device = 'cuda')" in err
    assert not list(tmp_path.iterdir())
