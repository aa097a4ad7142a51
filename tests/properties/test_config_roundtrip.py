from __future__ import annotations

import json
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.config import build, digest, override, plain, read
from letheon.errors import ConfigError

Scalar = bool | int | float | str


@dataclass(frozen=True)
class Local:
    rate: float = 0.01
    epochs: int = 1
    clip: float | None = 1.0
    batch: int | Literal["full"] = 32
    nesterov: bool = False


@dataclass(frozen=True)
class Near:
    radius: float


@dataclass(frozen=True)
class Far:
    lower: float
    upper: float = 1.0


class Way(ABC):
    name: ClassVar[str]


@dataclass(frozen=True)
class Plain(Way):
    name: ClassVar[str] = "plain"

    rounds: int = 1
    local: Local | None = None


@dataclass(frozen=True)
class Wrapped(Way):
    name: ClassVar[str] = "wrapped"

    inner: Way = Plain()
    local: Local | None = Local()
    place: Near | Far | None = None


@dataclass(frozen=True)
class Trial:
    seed: int
    title: str | None
    way: Way
    compare: tuple[Way, ...] = ()
    weights: tuple[float, ...] = (0.5,)
    options: Mapping[str, Scalar] = field(default_factory=dict)


LEAVES: dict[str, type] = {"plain": Plain, "wrapped": Wrapped}
RESOLVE: dict[type, Callable[[str], type]] = {Way: LEAVES.__getitem__}

floats = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]))
locals_ = st.builds(Local, floats, st.integers(), st.none() | floats, st.integers() | st.just("full"), st.booleans())
plains = st.builds(Plain, st.integers(), st.none() | locals_)
places = st.none() | st.builds(Near, floats) | st.builds(Far, floats, floats)
ways: st.SearchStrategy[Way] = st.recursive(
    plains, lambda inner: st.builds(Wrapped, inner, st.none() | locals_, places), max_leaves=3
)
trials = st.builds(
    Trial,
    st.integers(),
    st.none() | texts,
    ways,
    st.lists(ways, max_size=2).map(tuple),
    st.lists(floats, max_size=3).map(tuple),
    st.dictionaries(texts, st.booleans() | st.integers() | floats | texts, max_size=3),
)


def toml(value: Any) -> str:
    """A TOML value; tables inline. None has no spelling and fails."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, str):
        return quoted(value)
    assert isinstance(value, bool | int | float)
    return str(value).lower()


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def built(table: Mapping[str, Any]) -> Trial:
    return build(Trial, table, "trial", resolve=RESOLVE)


def paths(table: Mapping[str, Any], at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all tables of dataclasses in a plain ``Trial``."""
    found = [at]
    for key, value in table.items():
        items = value if isinstance(value, list) else [value]
        for i, item in enumerate(items):
            if isinstance(item, dict) and key != "options":
                found += paths(item, (*at, key, str(i)) if isinstance(value, list) else (*at, key))
    return found


@given(trials)
def test_building_undoes_plain(trial: Trial) -> None:
    assert built(plain(trial)) == trial


@given(trials)
def test_building_undoes_plain_through_json_and_keeps_the_digest(trial: Trial) -> None:
    again = built(json.loads(json.dumps(plain(trial))))
    assert again == trial
    assert digest(again) == digest(trial)


@given(trial=trials)
def test_building_undoes_plain_through_a_toml_file(tmp_path_factory: pytest.TempPathFactory, trial: Trial) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "trial.toml"
    path.write_bytes("\n".join(f"{key} = {toml(value)}" for key, value in plain(trial).items()).encode())
    assert built(read(path)) == trial


@given(ways, ways)
def test_digests_are_equal_exactly_when_the_values_are(a: Way, b: Way) -> None:
    assert (digest(a) == digest(b)) == (a == b)


@given(locals_)
def test_an_integer_in_place_of_a_float_changes_neither_value_nor_digest(local: Local) -> None:
    whole = Local(round(local.rate), local.epochs, local.clip, local.batch, local.nesterov)
    exact = Local(float(round(local.rate)), local.epochs, local.clip, local.batch, local.nesterov)
    assert build(Local, plain(whole), "local") == exact
    assert digest(whole) == digest(exact)


@given(trials, st.data())
def test_a_key_too_many_is_refused_wherever_it_stands(trial: Trial, data: st.DataObject) -> None:
    table = plain(trial)
    path = ".".join((*data.draw(st.sampled_from(paths(table))), "extra_key"))
    with pytest.raises(ConfigError) as caught:
        built(override(table, f"{path}=1"))
    said = str(caught.value)
    assert said.startswith(f"trial: {path}: unknown key") or "the keys" in said  # in a union no member has the key


@given(trials, floats)
def test_an_override_changes_what_it_names_and_nothing_else(trial: Trial, rate: float) -> None:
    table = plain(trial)
    before = json.dumps(table)
    # None by choice is written as false, which has no keys: then the table is set whole.
    text = f"way.local={{rate={rate!r}}}" if table["way"].get("local") is False else f"way.local.rate={rate!r}"
    changed = override(override(table, text), "seed=5")
    again = built(changed)
    assert again.seed == 5
    assert again.way.local.rate == rate  # type: ignore[attr-defined]
    assert (again.title, again.compare, again.options) == (trial.title, trial.compare, trial.options)
    assert json.dumps(table) == before
