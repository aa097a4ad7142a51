"""What is run for a table or figure: the data, and how they become experiments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from letheon import config, registry
from letheon.errors import ConfigError
from letheon.experiment import Experiment
from letheon.reproduce import targets as targets_module
from letheon.reproduce.published import published
from letheon.reproduce.quantities import QUANTITIES
from letheon.reproduce.running import experiment_of, experiments_of, run_folder
from letheon.reproduce.targets import Scale, chosen_rows, recipe, target, targets

LETHE = [found for found in targets().values() if found.id.startswith("lethe")]
NAMES = sorted({experiment for found in LETHE for experiment in found.rows.values()})
SCALES: tuple[Scale, ...] = ("small", "paper")


def built(name: str, scale: Scale) -> Experiment:
    return config.build(Experiment, recipe(name, scale).table, name)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_a_valid_experiment_with_every_method_that_it_lists(name: str, scale: Scale) -> None:
    found = recipe(name, scale)
    assert not found.absent
    assert not found.needs
    assert found.departures
    experiment = built(name, scale)
    assert list(experiment.methods)[:2] == ["retrain", "lethe"]
    assert "fine-tuning" in experiment.methods  # without it a run cannot say whether it tells methods apart
    assert "detach" in experiment.methods  # who only leaves is not unlearned


@pytest.mark.parametrize("found", targets().values(), ids=str)
def test_every_target_shows_known_quantities_of_rows_that_exist(found: targets_module.Target) -> None:
    assert found.quantities <= QUANTITIES.keys()
    assert found.series in get_args(targets_module.Series)
    printed = found.published.values.keys() - {"llama"}
    assert not printed or printed == found.rows.keys()


@pytest.mark.parametrize("row", ["lenet5", "resnet18", "hsvit"])
def test_every_method_of_a_printed_row_is_run(row: str) -> None:
    printed = published()["lethe-table3"].values[row].keys() - {"origin"}
    assert printed <= built(f"client-{row}", "paper").methods.keys()


def test_the_two_presets_are_those_of_the_text_and_of_the_tables() -> None:
    text, tables = built("client-resnet18", "paper"), built("class-resnet18", "paper")
    assert (text.clients, text.partition.kind, text.partition.alpha) == (50, "dirichlet", 0.1)
    assert (tables.clients, tables.partition.alpha) == (10, 0.1)
    for experiment in (text, tables):
        assert (experiment.local.lr, experiment.local.batch_size, experiment.local.epochs) == (0.001, 32, 1)
    assert built("client-hsvit", "paper").local.batch_size == 512


@pytest.mark.parametrize(("table", "name"), [("lethe-table4", "class-resnet18"), ("lethe-table5", "sample-resnet18")])
def test_rounds_at_paper_scale_are_those_of_the_printed_costs(table: str, name: str) -> None:
    experiment, deduced = built(name, "paper"), published()[table].deduced
    methods = {label: config.plain(method) for label, method in experiment.methods.items()}
    assert experiment.train_rounds == deduced["origin"].rounds
    assert methods["retrain"]["rounds"] == deduced["retrain"].rounds
    assert methods["not"]["rounds"] == deduced["not"].rounds
    for label in ("lethe", "fedau"):
        assert methods[label]["rounds"] + methods[label]["restore_rounds"] == deduced[label].rounds


def test_the_ratios_differ_in_their_fraction_only() -> None:
    tables = [recipe(f"sample{ratio}-resnet18", "paper").table for ratio in (1, 5, 10)]
    fractions = [table["request"].pop("fraction") for table in tables]
    assert fractions == [0.01, 0.05, 0.10]
    assert tables[0] == tables[1] == tables[2]


def test_the_long_horizon_is_the_client_level_run_with_more_continued_rounds() -> None:
    long, client = recipe("long-resnet18", "paper"), recipe("client-resnet18", "paper")
    assert long.table["continue_rounds"] == 1000
    differing = {key for key in client.table if client.table[key] != long.table[key]}
    assert differing == {"continue_rounds", "compare"}
    assert set(client.departures) <= set(long.departures)


def test_a_method_that_is_not_installed_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry.METHODS, "not")
    found = recipe("client-lenet5", "small")
    assert found.absent == {"not": "no method of this name is installed"}
    assert "not" not in config.build(Experiment, found.table, "").methods


def test_a_method_that_does_not_serve_the_request_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = registry.Entry("letheon.methods.negate:NoT", "", ("class",))
    monkeypatch.setitem(registry.METHODS, "not", entry)
    assert recipe("client-lenet5", "small").absent == {"not": "does not serve requests of scope client"}


def test_a_task_that_is_not_installed_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry.TASKS, "cifar10")
    found = recipe("class-resnet18", "paper")
    with pytest.raises(ConfigError, match=r"lethe-table4, row resnet18: needs the task cifar10.*--list"):
        experiment_of(target("lethe-table4"), "resnet18", "paper", recipe=found, sets=())


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'lethe-table3'"):
        target("lethe-table33")
    with pytest.raises(ConfigError, match="lethe-table6: its values are known, but nothing here can run it"):
        target("lethe-table6")
    with pytest.raises(ConfigError, match="lethe-table3: no row 'lenet'; did you mean 'lenet5'"):
        chosen_rows(target("lethe-table3"), ["lenet"])


def test_rows_are_all_by_default_and_each_once() -> None:
    found = target("lethe-table3")
    assert chosen_rows(found, []) == ["lenet5", "resnet18", "hsvit"]
    assert chosen_rows(found, ["hsvit", "lenet5", "hsvit"]) == ["hsvit", "lenet5"]


def test_settings_merge_table_by_table_and_another_class_replaces() -> None:
    base = {"task": {"name": "cifar10", "subset": 5}, "local": {"lr": 1, "momentum": 0.9}, "clients": 3}
    over = {"task": {"name": "mnist"}, "local": {"lr": 2}}
    merged = targets_module._merged(base, over)
    assert merged == {"task": {"name": "mnist"}, "local": {"lr": 2, "momentum": 0.9}, "clients": 3}
    assert targets_module._merged(base, {"task": "mnist"})["task"] == "mnist"
    assert targets_module._merged(base, {"task": {"name": "cifar10", "subset": 6}})["task"]["subset"] == 6
    for copied in (merged, targets_module._merged(base, {})):
        copied["local"]["momentum"] = 0.0
        assert base["local"]["momentum"] == 0.9  # type: ignore[index]


def test_what_is_set_by_hand_goes_on_top_and_decides_the_folder() -> None:
    found, row = target("lethe-table3"), recipe("client-lenet5", "small")
    plain = experiment_of(found, "lenet5", "small", recipe=row, sets=())
    changed = experiment_of(found, "lenet5", "small", recipe=row, sets=("clients=4", "seed=7"))
    assert (changed.clients, changed.seed, changed.title) == (4, 7, "client-lenet5, small scale")
    assert run_folder(Path("o"), changed).as_posix().startswith("o/runs/mnist5k-client-seed7-")
    assert run_folder(Path("o"), changed) != run_folder(Path("o"), plain)


@pytest.mark.parametrize("scale", SCALES)
def test_a_row_at_class_level_runs_for_each_class_and_seed(scale: Scale) -> None:
    row = recipe("class-resnet18", scale)
    first = experiment_of(target("lethe-table4"), "resnet18", scale, recipe=row, sets=())
    runs = experiments_of(first, row, seeds=2, sets=("clients=5",))
    assert [(run.seed, run.request.label) for run in runs] == [(s, c) for s in (0, 1) for c in (0, 4, 9)]
    assert len({run_folder(Path("o"), run) for run in runs}) == 6


def test_a_class_set_by_hand_goes_alone() -> None:
    row, sets = recipe("class-resnet18", "small"), ("request.label=3",)
    first = experiment_of(target("lethe-table4"), "resnet18", "small", recipe=row, sets=sets)
    assert [run.request.label for run in experiments_of(first, row, seeds=1, sets=sets)] == [3]


def test_a_row_without_classes_runs_once_for_each_seed() -> None:
    row = recipe("client-lenet5", "small")
    first = experiment_of(target("lethe-table3"), "lenet5", "small", recipe=row, sets=())
    runs = experiments_of(first, row, seeds=3, sets=())
    assert [replace(run, seed=0) for run in runs] == [first] * 3
    assert [run.seed for run in runs] == [0, 1, 2]


def test_what_a_setting_inherits_includes_its_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    own = targets_module.Setting(like="class-resnet18")
    monkeypatch.setitem(targets_module._content()["experiments"], "mine", {"small": own})
    assert recipe("mine", "small").labels == (0, 4, 9)


def test_targets_with_the_same_experiment_share_its_folder() -> None:
    folders = {
        run_folder(Path("o"), experiment_of(target(name), row, "small", recipe=recipe(experiment, "small"), sets=()))
        for name in ("lethe-table5", "lethe-figure7")
        for row, experiment in target(name).rows.items()
        if experiment in ("sample-resnet18", "sample5-resnet18")
    }
    assert len(folders) == 1
