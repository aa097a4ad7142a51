"""Experiments: refused when they make no sense, and named by what can change a result."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from letheon import registry
from letheon.errors import ConfigError, MethodError
from letheon.experiment import Experiment
from letheon.life import owners
from letheon.methods.detach import Detach
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.lethe import Lethe
from letheon.methods.puf import PUF
from letheon.methods.retrain import Retrain
from letheon.request import Scope
from letheon.runtimes.terms import Deployment
from letheon.tasks.partition import Partition
from letheon.tasks.target import Target
from letheon.tasks.vision import Digits
from letheon.training import Local

PLAIN = Experiment(Digits(), Lethe(), compare=(FineTuning(),))


@pytest.mark.parametrize("field", ["clients", "train_rounds", "continue_rounds", "minimum"])
def test_counts_are_at_least_one(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: must be at least 1, got 0"):
        replace(PLAIN, **{field: 0})


def test_more_replies_than_clients_with_data_to_retain_are_refused_before_any_training() -> None:
    experiment = replace(PLAIN, clients=3, partition=Partition("iid"), request=Target(min_forget=20, trigger=None))
    assert len(replace(experiment, minimum=2).populate().clients) == 3
    with pytest.raises(ConfigError, match=r"minimum: each round needs 3 replies, but .* 2 of 3 clients have any"):
        replace(experiment, minimum=3).populate()


def test_a_seed_is_not_negative() -> None:
    with pytest.raises(ConfigError, match="seed: must not be negative"):
        replace(PLAIN, seed=-1)


def test_a_method_that_does_not_serve_the_scope_is_refused_before_any_work() -> None:
    class ClientsOnly(FineTuning):
        scopes: ClassVar[frozenset[Scope]] = frozenset({"client"})

    assert replace(PLAIN, method=ClientsOnly()).method.name == "fine-tuning"
    with pytest.raises(MethodError, match="fine-tuning does not serve requests of scope 'class'; it serves client"):
        replace(PLAIN, method=ClientsOnly(), request=Target("class"))


def test_retrain_is_always_there_and_first() -> None:
    assert list(PLAIN.methods) == ["retrain", "lethe", "fine-tuning", "detach"]
    assert next(iter(replace(PLAIN, compare=(FineTuning(), Retrain(rounds=3))).methods)) == "retrain"
    assert list(Experiment(Digits(), Retrain()).methods) == ["retrain", "detach"]


def test_detach_is_always_there_last_or_where_it_is_listed() -> None:
    assert list(replace(PLAIN, compare=()).methods) == ["retrain", "lethe", "detach"]
    among = replace(PLAIN, compare=(Detach(), FineTuning()))
    assert list(among.methods) == ["retrain", "lethe", "detach", "fine-tuning"]
    assert list(replace(PLAIN, method=Detach()).methods) == ["retrain", "detach", "fine-tuning"]


def test_methods_take_what_they_leave_open_from_the_experiment() -> None:
    experiment = replace(PLAIN, local=Local(lr=0.3), train_rounds=7, seed=5, compare=(PUF(local=Local(lr=9.0)),))
    methods: dict[str, Any] = dict(experiment.methods)
    assert methods["lethe"].recipe == Local(lr=0.3, first_round=7)
    assert methods["puf"].recipe == Local(lr=9.0)
    assert (methods["retrain"].rounds, methods["retrain"].init_seed) == (7, 5)


def test_a_method_listed_twice_is_told_apart_by_its_settings() -> None:
    labels = list(replace(PLAIN, compare=(PUF(), PUF(rate=4.0), PUF(form="regular"))).methods)
    assert labels == ["retrain", "lethe", "puf", "puf(rate=4.0)", "puf(form=regular)", "detach"]
    with pytest.raises(ConfigError, match="compare: puf is listed twice with the same settings"):
        _ = replace(PLAIN, compare=(PUF(), PUF())).methods


def test_the_title_does_not_change_the_digest_and_everything_else_does() -> None:
    assert replace(PLAIN, title="x").digest == PLAIN.digest
    others = [
        replace(PLAIN, seed=1),
        replace(PLAIN, task=Digits(norm=True)),
        replace(PLAIN, method=Lethe(rounds=9)),
        replace(PLAIN, compare=()),
        replace(PLAIN, local=Local(lr=0.02)),
        replace(PLAIN, request=Target("class")),
        replace(PLAIN, minimum=2),
        replace(PLAIN, continue_rounds=21),
    ]
    assert len({PLAIN.digest, *(other.digest for other in others)}) == 1 + len(others)


def test_stages_are_shared_by_exactly_the_experiments_that_have_them_in_common() -> None:
    plain = owners(PLAIN)
    labels = ("retrain", "lethe", "fine-tuning", "detach")
    assert list(plain) == ["origin", *(f"{label}.{part}" for label in labels for part in ("unlearn", "continue"))]
    assert len(set(plain.values())) == len(plain)
    other_method = owners(replace(PLAIN, method=Lethe(rounds=9)))
    assert {name for name in plain if plain[name] != other_method[name]} == {"lethe.unlearn", "lethe.continue"}
    longer = owners(replace(PLAIN, continue_rounds=21))
    assert {name for name in plain if plain[name] != longer[name]} == {n for n in plain if n.endswith(".continue")}
    assert not set(plain.values()) & set(owners(replace(PLAIN, seed=1)).values())
    assert owners(replace(PLAIN, title="x", compare=())) == {
        name: digest for name, digest in plain.items() if "fine-tuning" not in name
    }


def test_an_experiment_is_read_from_a_file_with_overrides(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('clients = 4\ntask = {name = "digits"}\nmethod = {name = "lethe"}\n')
    experiment = Experiment.load(file, ["method.gamma.beta=0.5", "seed=3"])
    assert experiment == Experiment(
        Digits(), replace(Lethe(), gamma=replace(Lethe().gamma, beta=0.5)), clients=4, seed=3
    )
    with pytest.raises(ConfigError, match=r"x\.toml.*clinets.*did you mean 'clients'"):
        Experiment.load(file, ["clinets=4"])


def test_a_federation_that_aggregates_securely_refuses_who_reads_single_replies_by_name_and_before_any_work() -> None:
    promised = replace(PLAIN, compare=(), flower=Deployment(secure_aggregation=True))
    methods = [registry.get("method", name)() for name in registry.names("method", language=False)]
    readers = [method for method in methods if "per-client" in method.needed]
    assert {m.name for m in readers} == {"fedosd", "fedau-in-training", "federaser", "fused", "fedu", "fats", "ridge"}
    for method in methods:
        reads = method in readers
        with pytest.raises(MethodError, match=f"^{method.name}: it reads single") if reads else nullcontext():
            replace(promised, method=method)
        with pytest.raises(MethodError, match=f"^{method.name}: it reads single") if reads else nullcontext():
            replace(promised, compare=(method,))


def test_settings_of_lethe_that_count_clients_need_single_replies() -> None:
    promised = replace(PLAIN, flower=Deployment(secure_aggregation=True))
    with pytest.raises(MethodError, match="lethe: it reads single clients' replies"):
        replace(promised, method=Lethe(forget_steps="median"))
    assert replace(promised, method=Lethe(forget_steps=3)).digest == replace(PLAIN, method=Lethe(forget_steps=3)).digest
