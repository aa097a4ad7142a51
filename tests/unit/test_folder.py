"""A run folder belongs to one experiment, on one data set, under one set of versions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from letheon import config, pipeline
from letheon.errors import ConfigError
from letheon.experiment import Experiment
from letheon.folder import CONTINUED_BY, EXPERIMENT, claim, data_digest, stages, versions
from letheon.methods.fine_tuning import FineTuning
from letheon.report.model import report_of
from letheon.tasks.partition import Partition
from letheon.tasks.population import populate
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits

SMALL = Experiment(
    Digits(),
    FineTuning(rounds=1),
    clients=3,
    partition=Partition("iid"),
    request=Target(min_forget=20, trigger=Trigger(size=2, margin=0)),
    train_rounds=1,
    continue_rounds=1,
)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    claim(tmp_path, SMALL, data="aa", cache=None, resume=False)
    return tmp_path


def edit(folder: Path, key: str, value: object) -> None:
    path = folder / EXPERIMENT
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def test_the_same_run_is_continued_only_when_asked(begun: Path) -> None:
    claim(begun, SMALL, data="aa", cache=None, resume=True)
    with pytest.raises(ConfigError, match="--resume"):
        claim(begun, SMALL, data="aa", cache=None, resume=False)


@pytest.mark.parametrize("name", ["torch", "letheon"])
def test_a_run_is_not_continued_under_other_versions(begun: Path, name: str) -> None:
    edit(begun, "versions", versions() | {name: "0.0.1"})
    with pytest.raises(ConfigError, match=f"{name} 0.0.1"):
        claim(begun, SMALL, data="aa", cache=None, resume=True)


def test_a_run_is_not_continued_on_other_data(begun: Path) -> None:
    with pytest.raises(ConfigError, match="data aa"):
        claim(begun, SMALL, data="bb", cache=None, resume=True)


def test_another_experiment_is_refused(begun: Path) -> None:
    with pytest.raises(ConfigError, match="another --out"):
        claim(begun, replace(SMALL, seed=7), data="aa", cache=None, resume=True)


def test_code_that_continues_a_run_begun_under_other_code_is_noted_in_its_folder(
    begun: Path, caplog: pytest.LogCaptureFixture
) -> None:
    untouched = (begun / EXPERIMENT).read_text()
    claim(begun, SMALL, data="aa", cache=None, resume=True)
    assert (begun / EXPERIMENT).read_text() == untouched
    edit(begun, "versions", versions() | {"code": "0" * 16})
    for _ in range(2):
        claim(begun, SMALL, data="aa", cache=None, resume=True)
    content = json.loads((begun / EXPERIMENT).read_text())
    assert content[CONTINUED_BY] == [versions()["code"]]
    assert content["versions"]["code"] == "0" * 16
    assert "the code has changed" in caplog.text
    done = pipeline.run(SMALL, begun.parent / "run", workers=1)
    edit(done.folder, CONTINUED_BY, ["abc"])
    assert ("code, continued by", "abc") in [(fact.name, fact.value) for fact in report_of(done).versions]


def test_the_data_digest_sees_one_changed_pixel() -> None:
    population = populate(SMALL.task, SMALL.partition, SMALL.request, clients=3, seed=0)
    before = data_digest(population)
    assert data_digest(population) == before
    population.clients["c000" if "c000" in population.clients else min(population.clients)].inputs[0, 0] += 1
    assert data_digest(population) != before


def test_stages_of_other_versions_or_data_have_another_shelf(tmp_path: Path) -> None:
    used = versions()
    shelves = {
        stages(tmp_path, tmp_path, used=used, data="aa"),
        stages(tmp_path, tmp_path, used=used, data="bb"),
        stages(tmp_path, tmp_path, used=used | {"torch": "0"}, data="aa"),
    }
    assert len(shelves) == 3


def test_a_run_whose_experiment_was_edited_is_not_read(tmp_path: Path) -> None:
    pipeline.run(SMALL, tmp_path)
    table = json.loads((tmp_path / EXPERIMENT).read_text())["experiment"]
    edit(tmp_path, "experiment", table | {"continue_rounds": 2})
    with pytest.raises(ConfigError, match="was edited"):
        pipeline.load(tmp_path)


def test_a_run_that_this_version_cannot_read_is_said_to_be_of_another(begun: Path) -> None:
    edit(begun, "experiment", config.plain(SMALL) | {"novel": 3})
    with pytest.raises(ConfigError, match="novel: unknown key") as caught:
        pipeline.load(begun)
    assert "another version" not in str(caught.value)
    edit(begun, "versions", versions() | {"code": "0"})
    with pytest.raises(ConfigError, match=r"novel: unknown key.*written by another version of Letheon"):
        pipeline.load(begun)


@pytest.mark.parametrize("key", ["experiment", "versions"])
def test_a_file_without_its_tables_is_damaged(begun: Path, key: str) -> None:
    edit(begun, key, "none")
    with pytest.raises(ConfigError, match="damaged"):
        claim(begun, SMALL, data="aa", cache=None, resume=True)
    with pytest.raises(ConfigError, match="damaged"):
        pipeline.load(begun)
