"""What the documentation shows works as shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from letheon import config, pipeline, registry
from letheon.cli.run import is_stream
from letheon.experiment import Experiment
from letheon.metrics.verdict import GENERALISES, LEARNT, RESURFACING_LIMIT, UNKNOWN, UTILITY_LIMIT
from letheon.results import Results
from letheon.stream.experiment import Stream
from letheon.tasks.partition import Partition
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.testing import CHECKS, STATISTICAL, check_method
from letheon.training import Local

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def shown() -> Any:
    """The module that docs/add-a-method.md shows."""
    module = ModuleType("shown_in_the_docs")
    sys.modules[module.__name__] = module
    exec(blocks(ROOT / "docs" / "add-a-method.md", "python")[0], module.__dict__)
    yield module
    del sys.modules[module.__name__]


def test_the_method_in_the_docs_runs(shown: Any, tmp_path: Path) -> None:
    experiment = Experiment(
        Digits(),
        shown.Shrink(rounds=1),
        clients=4,
        partition=Partition("iid"),
        request=Target(min_forget=20, trigger=Trigger(size=2, margin=0)),
        local=Local(lr=0.05),
        train_rounds=2,
        continue_rounds=1,
    )
    rows = Results(pipeline.run(experiment, tmp_path)).rows()
    assert [row["method"] for row in rows] == ["retrain", "shrink", "detach"]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package that docs/add-a-method.md describes is installed, as pip leaves it."""
    page = ROOT / "docs" / "add-a-method.md"
    source, *_ = blocks(page, "python")
    (group, named), *_ = tomllib.loads(textwrap.dedent(blocks(page, "toml")[0]))["project"]["entry-points"].items()
    ((name, target),) = named.items()
    module, _, _ = target.partition(":")
    file = tmp_path / "installed" / Path(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True)
    (file.parent / "__init__.py").touch()
    file.write_text(source)
    info = tmp_path / "installed" / f"{file.parent.name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {file.parent.name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(info.parent)
    return info.parent


def test_an_outside_package_with_the_method_in_the_docs_is_listed_run_and_reported(
    outside: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(
        'task = "digits"\nclients = 4\ntrain_rounds = 2\ncontinue_rounds = 1\npartition = { kind = "iid" }\n'
        "request = { min_forget = 20, trigger = { size = 2, margin = 0 } }\nlocal = { lr = 0.05 }\n"
        'method = { name = "lethe" }\n'
    )
    paths = os.pathsep.join([str(outside), *(path for path in sys.path if path)])

    def letheon(*words: str) -> str:
        line = [sys.executable, "-m", "letheon.cli", *words]
        environment = os.environ | {"PYTHONPATH": paths}
        return subprocess.run(
            line, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=300
        ).stdout

    assert "From the package my_package." in letheon("methods")
    letheon("run", "mine.toml", "--set", "method.name=shrink", "--set", "method.factor=0.25", "--out", "run")
    rows = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [row["method"] for row in rows] == ["retrain", "shrink", "detach"]
    assert "factor = 0.25" in (tmp_path / "run" / "experiment.toml").read_text()


@pytest.mark.parametrize("check", [check for check in CHECKS if check not in STATISTICAL])
def test_the_method_of_an_outside_package_passes_the_conformance_suite(outside: Path, check: str) -> None:
    method = registry.get("method", "shrink")
    assert str(outside) in str(sys.modules[method.__module__].__file__)
    try:
        assert check_method(method(rounds=1), "client", check) == ""
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
            del sys.modules[name]


def test_the_readme_shows_a_valid_experiment() -> None:
    table = tomllib.loads(blocks(ROOT / "README.md", "toml")[0])
    experiment = config.build(Experiment, table, "README.md")
    assert [*experiment.methods] == ["retrain", "lethe", "fine-tuning", "not", "puf", "detach"]


def test_the_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = blocks(ROOT / "README.md", "python")[0]
    asked: list[Path] = []

    def loaded(path: Path) -> Experiment:
        asked.append(path)
        small = Experiment(Digits(), replace(original(ROOT / path).method, rounds=1, restore_rounds=1))
        target = Target(min_forget=20, trigger=Trigger(size=2, margin=0))
        return replace(small, clients=4, request=target, train_rounds=2, continue_rounds=1)

    original = Experiment.load
    monkeypatch.setattr(Experiment, "load", loaded)
    monkeypatch.chdir(tmp_path)
    exec(source, {})
    assert asked == [Path("experiments/demo.toml")]
    assert (tmp_path / "runs" / "mine" / "experiment.json").is_file()


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.name)
def test_every_experiment_file_is_valid(path: Path) -> None:
    assert (Stream if is_stream(path, ()) else Experiment).load(path).methods


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_the_metrics_page_states_the_thresholds_in_force() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    for said in (
        f"under {LEARNT:.0f} %",
        f"over {UNKNOWN:.0f} %",
        f"under {GENERALISES:.0f} %",
        f"RR is at most {RESURFACING_LIMIT:.0f} %",
        f"at most {UTILITY_LIMIT:.0f} points below",
    ):
        assert said in text, said
