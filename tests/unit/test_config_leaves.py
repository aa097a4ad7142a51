from __future__ import annotations

import json
import re
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from letheon import registry
from letheon.config import build, plain
from letheon.errors import ConfigError, MethodError


@dataclass(frozen=True)
class Gamma:
    kind: Literal["auto", "constant"] = "auto"
    beta: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must lie in [0, 1], got {self.beta}")


@dataclass(frozen=True, slots=True)
class Adapter:
    steps: int = 20


class Thing(ABC):
    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}


@dataclass(frozen=True)
class Alpha(Thing):
    name: ClassVar[str] = "alpha"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "strict": {"gamma": {"kind": "constant", "beta": 0.9}, "adapter": False, "inner": "beta"},
        "wrong": {"gama": 1},
    }

    gamma: Gamma = Gamma()
    adapter: Adapter | None = Adapter()
    inner: Thing | None = None
    rounds: int = 2


@dataclass(frozen=True)
class Beta(Thing):
    name: ClassVar[str] = "beta"

    rate: float = 1.0
    rounds: int = 1


@dataclass(frozen=True)
class Nameless(Thing):
    rounds: int = 1


@dataclass(frozen=True)
class Foreign:
    name: ClassVar[str] = "foreign"


@dataclass(frozen=True)
class Run:
    seed: int
    method: Thing
    compare: tuple[Thing, ...] = ()


LEAVES: dict[str, type] = {"alpha": Alpha, "beta": Beta, "nameless": Nameless, "alias": Beta, "foreign": Foreign}


def leaf(name: str) -> type:
    if name not in LEAVES:
        raise MethodError(f"unknown thing {name!r}")
    return LEAVES[name]


RESOLVE: dict[type, Callable[[str], type]] = {Thing: leaf}


def run(table: Mapping[str, Any]) -> Run:
    return build(Run, {"seed": 1, "method": "alpha", **table}, "demo.toml", resolve=RESOLVE)


def refused(table: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        run(table)


def test_an_unknown_key_is_refused_with_a_suggestion_and_the_known_keys() -> None:
    refused(
        {"method": {"name": "alpha", "gamma": {"betta": 0.1}}},
        "demo.toml: method.gamma.betta: unknown key; did you mean 'beta'? Known keys: kind, beta",
    )


def test_all_missing_keys_of_a_table_are_reported_at_once() -> None:
    with pytest.raises(ConfigError, match=r"demo.toml: seed, method: missing, and there is no default; add it"):
        build(Run, {}, "demo.toml", resolve=RESOLVE)


@pytest.mark.parametrize("error", [ValueError, MethodError])
def test_a_refusal_by_the_class_itself_comes_with_the_path(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Gamma) -> None:
        raise error("beta is odd")

    monkeypatch.setattr(Gamma, "__post_init__", refuse)
    refused({"method": {"name": "alpha", "gamma": {"beta": 0.5}}}, "demo.toml: method.gamma: beta is odd")


def test_a_refusal_is_wrapped_once_however_deep_it_lies() -> None:
    deep = {"name": "alpha", "inner": {"name": "alpha", "inner": {"name": "alpha", "gamma": {"beta": 7}}}}
    with pytest.raises(ConfigError) as caught:
        run({"method": deep})
    assert str(caught.value) == "demo.toml: method.inner.inner.gamma: beta must lie in [0, 1], got 7.0"


def test_a_bare_name_equals_a_table_with_that_name() -> None:
    assert run({"compare": ["beta"]}) == run({"compare": [{"name": "beta"}]}) == Run(1, Alpha(), (Beta(),))


def test_a_class_with_leaves_can_be_built_on_its_own() -> None:
    built: object = build(Thing, {"name": "beta", "rate": 2}, "demo.toml", resolve=RESOLVE)
    assert built == Beta(rate=2.0)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("gamma", "demo.toml: method: unknown thing 'gamma'"),
        ({"name": "gamma"}, "demo.toml: method.name: unknown thing 'gamma'"),
        ({"name": 3}, "demo.toml: method.name: expected a string, got the integer 3."),
        ({"rounds": 3}, "demo.toml: method.name: missing; add the name of a thing"),
        (3, "demo.toml: method: expected the name of a thing or a table with one, got the integer 3."),
        ({"name": "beta", "gamma": 1}, "demo.toml: method.gamma: unknown key. Known keys: name, rate, rounds"),
        (
            "nameless",
            "demo.toml: method: Nameless must be a dataclass, a Thing, and bear the ClassVar name = 'nameless'",
        ),
        ("alias", "demo.toml: method: Beta must be a dataclass, a Thing, and bear the ClassVar name = 'alias'"),
        ("foreign", "demo.toml: method: Foreign must be a dataclass, a Thing, and bear the ClassVar name = 'foreign'"),
    ],
)
def test_a_leaf_that_cannot_be_chosen_is_refused(method: object, message: str) -> None:
    refused({"method": method}, message)


def test_a_class_without_known_names_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"demo.toml: method: Thing is neither a dataclass nor a class with known names"
    ):
        build(Run, {"seed": 1, "method": "alpha"}, "demo.toml")


def test_the_table_of_a_leaf_may_name_it_but_not_another() -> None:
    assert build(Beta, {"name": "beta"}, "demo.toml") == Beta()
    with pytest.raises(ConfigError, match=re.escape("demo.toml: name: expected 'beta', got the string 'alpha'")):
        build(Beta, {"name": "alpha"}, "demo.toml")


def test_methods_and_tasks_are_found_in_the_registry() -> None:
    from letheon.methods.base import Method
    from letheon.tasks.base import Task

    for cls, kind in ((Method, "method"), (Task, "task")):
        with pytest.raises(ConfigError, match=f"demo.toml: name: unknown {kind} 'lethee'"):
            build(cls, {"name": "lethee"}, "demo.toml")


@pytest.mark.parametrize("name", registry.METHODS)
def test_every_built_in_method_is_configured_by_its_name_alone(name: str) -> None:
    from letheon.methods.base import Method

    built: Any = build(Method, {"name": name}, "demo.toml")  # type: ignore[type-abstract]
    assert built.name == name
    assert build(Method, plain(built), "demo.toml") == built  # type: ignore[type-abstract]
    assert sorted(registry.METHODS[name].scopes) == sorted(built.scopes)
    for preset in built.presets:
        assert build(Method, {"name": name, "preset": preset}, "demo.toml") != built  # type: ignore[type-abstract]


@pytest.mark.parametrize("name", registry.TASKS)
def test_every_built_in_task_is_configured_by_its_name_alone(name: str) -> None:
    from letheon.tasks.base import Task

    built: Any = build(Task, {"name": name}, "demo.toml")  # type: ignore[type-abstract]
    assert built.name == name
    assert build(Task, plain(built), "demo.toml") == built  # type: ignore[type-abstract]


def test_a_preset_gives_the_values_that_the_table_leaves_open() -> None:
    own = {"name": "alpha", "preset": "strict", "gamma": {"beta": 0.5}, "inner": {"rate": 3}, "rounds": 9}
    expected = Alpha(Gamma("constant", 0.5), adapter=None, inner=Beta(rate=3.0), rounds=9)
    assert run({"method": own}).method == expected


def test_a_table_with_another_name_replaces_that_of_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alpha, "presets", {"deep": {"inner": {"name": "beta", "rate": 3.0}}})
    method = {"name": "alpha", "preset": "deep"}
    assert run({"method": method}).method == Alpha(inner=Beta(3.0))
    assert run({"method": method | {"inner": {"name": "beta", "rounds": 4}}}).method == Alpha(inner=Beta(3.0, 4))
    assert run({"method": method | {"inner": {"name": "alpha"}}}).method == Alpha(inner=Alpha())
    assert run({"method": method | {"inner": False}}).method == Alpha()


def test_a_table_with_a_preset_of_its_own_replaces_that_of_the_outer_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = {"name": "alpha", "rounds": 9}
    monkeypatch.setattr(Alpha, "presets", {"outer": {"inner": inner}, "short": {"rounds": 1}})
    method = {"name": "alpha", "preset": "outer", "inner": {"name": "alpha", "preset": "short"}}
    assert run({"method": method}).method == Alpha(inner=Alpha(rounds=1))


def test_a_preset_is_left_as_it_was() -> None:
    before = json.dumps(Alpha.presets)
    run({"method": {"name": "alpha", "preset": "strict", "gamma": {"beta": 0.5}}})
    assert json.dumps(Alpha.presets) == before


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            {"name": "alpha", "preset": "strikt"},
            "method.preset: unknown preset 'strikt'; did you mean 'strict'? Known presets: strict, wrong",
        ),
        ({"name": "alpha", "preset": 1}, "method.preset: expected a string, got the integer 1."),
        ({"name": "alpha", "preset": "wrong"}, "method.gama: unknown key; did you mean 'gamma'?"),
        ({"name": "beta", "preset": "strict"}, "method.preset: unknown key."),
    ],
)
def test_a_preset_that_cannot_be_used_is_refused(method: object, message: str) -> None:
    refused({"method": method}, f"demo.toml: {message}")


def test_plain_puts_the_name_first_and_leaves_out_what_is_none_by_default() -> None:
    assert list(plain(Alpha(inner=Beta()))) == ["name", "gamma", "adapter", "inner", "rounds"]
    assert "inner" not in plain(Alpha())
    assert plain(Alpha(adapter=None))["adapter"] is False


def test_what_is_built_from_plain_is_the_same_again() -> None:
    deep = Alpha(Gamma("constant", 1.0), adapter=None, inner=Alpha(inner=Beta(2.0)))
    made = Run(3, deep, (Beta(), Alpha()))
    assert run(plain(made)) == made
