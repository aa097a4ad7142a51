from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from letheon.config import build, digest, plain
from letheon.errors import ConfigError


@dataclass(frozen=True)
class Fixed:
    length: float


@dataclass(frozen=True)
class Search:
    lower: float
    upper: float
    steps: int = 5


@dataclass(frozen=True)
class Circle:
    name: ClassVar[str] = "circle"
    size: float = 1.0


@dataclass(frozen=True)
class Square:
    name: ClassVar[str] = "square"
    size: float = 1.0


@dataclass(frozen=True)
class Values:
    """One field for each kind of value."""

    flag: bool = False
    count: int = 0
    rate: float = 0.0
    text: str = ""
    kind: Literal["a", "b", 3] = "a"
    limit: int | None = None
    level: float | Literal["auto"] = "auto"
    maybe: bool | None = True
    number: float | int = 0
    numbers: tuple[int, ...] = ()
    rates: tuple[float, ...] | None = (1.0,)
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    step: Fixed | Search | None = None
    shape: Circle | Square = Circle()
    constant: ClassVar[int] = 7
    derived: int = field(init=False, default=0)


@dataclass(frozen=True)
class Unsupported:
    when: complex = 0j
    pairs: tuple[int, int] = (0, 0)


def values(**table: Any) -> Values:
    return build(Values, table, "demo.toml")


def test_a_table_without_keys_gives_the_defaults() -> None:
    assert build(Values, {}, "demo.toml") == Values()


@pytest.mark.parametrize(
    ("key", "value", "built"),
    [
        ("flag", True, True),
        ("count", 3, 3),
        ("rate", 3, 3.0),
        ("rate", 0.5, 0.5),
        ("text", "3", "3"),
        ("kind", "b", "b"),
        ("kind", 3, 3),
        ("limit", 4, 4),
        ("limit", False, None),
        ("limit", None, None),
        ("level", "auto", "auto"),
        ("level", 2, 2.0),
        ("maybe", False, False),
        ("maybe", None, None),
        ("number", 2, 2),
        ("number", 2.0, 2.0),
        ("numbers", [1, 2], (1, 2)),
        ("rates", [1, 2.5], (1.0, 2.5)),
        ("rates", False, None),
        ("options", {"a": True, "b": 1, "c": 1.5, "d": "x"}, {"a": True, "b": 1, "c": 1.5, "d": "x"}),
        ("step", {"length": 2}, Fixed(2.0)),
        ("step", {"lower": 0, "upper": 1}, Search(0.0, 1.0)),
        ("step", False, None),
        ("shape", {"name": "square", "size": 2.0}, Square(2.0)),
    ],
)
def test_a_value_of_the_right_type_is_taken(key: str, value: object, built: Any) -> None:
    found = getattr(values(**{key: value}), key)
    assert found == built
    assert type(found) is type(built)
    assert [type(item) for item in found] == [type(item) for item in built] if isinstance(built, tuple) else True


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("flag", 1, "flag: expected true or false, got the integer 1."),
        ("count", True, "count: expected an integer, got true."),
        ("count", 1.0, "count: expected an integer, got the number 1.0."),
        ("count", "1", "count: expected an integer, got the string '1'."),
        ("rate", False, "rate: expected a number, got false."),
        ("rate", "0.5", "rate: expected a number, got the string '0.5'."),
        ("rate", math.nan, "rate: expected a finite number, got nan"),
        ("rate", -math.inf, "rate: expected a finite number, got -inf"),
        ("rate", 10**400, "rate: expected a finite number, got 1000"),
        ("text", 3, "text: expected a string, got the integer 3."),
        ("text", {}, "text: expected a string, got a table."),
        ("kind", "B", "kind: expected 'a' or 'b' or 3, got the string 'B'; did you mean 'b'?"),
        ("kind", 3.0, "kind: expected 'a' or 'b' or 3, got the number 3.0."),
        ("limit", "none", "limit: expected an integer or false (for none), got the string 'none'."),
        ("limit", True, "limit: expected an integer or false (for none), got true."),
        ("level", "atuo", "level: expected a number or 'auto', got the string 'atuo'; did you mean 'auto'?"),
        ("level", math.inf, "level: expected a finite number, got inf"),
        ("numbers", 3, "numbers: expected an array (each item an integer), got the integer 3."),
        ("numbers", [1, "2"], "numbers.1: expected an integer, got the string '2'."),
        (
            "options",
            {"a": [1]},
            "options.a: expected true or false or an integer or a number or a string, got an array.",
        ),
        ("options", {"a": math.nan}, "options.a: expected a finite number, got nan"),
        ("options", [], "options: expected a table, got an array."),
        ("step", {"length": "2"}, "step.length: expected a number, got the string '2'."),
        ("step", {}, "step: the keys (none) do not fit any of Fixed (length); Search (lower, upper, steps)"),
        ("step", {"len": 2}, "step: the keys len do not fit any of Fixed (length); Search (lower, upper, steps)"),
        ("shape", {"size": 2}, "shape: the keys size fit more than one of Circle (name, size); Square (name, size)"),
        (
            "shape",
            {"name": "sqare"},
            "shape.name: unknown name 'sqare'; did you mean 'square'? Known names: circle, square",
        ),
        ("shape", {"name": 3}, "shape.name: expected a string, got the integer 3."),
        ("constant", 8, "constant: unknown key; did you mean 'count'?"),
        ("derived", 8, "derived: unknown key."),
    ],
)
def test_a_wrong_value_is_refused_with_its_path_and_what_was_expected(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        values(**{key: value})
    assert str(caught.value).startswith(f"demo.toml: {message}")


@pytest.mark.parametrize("key", ["when", "pairs"])
def test_a_field_of_a_type_that_no_table_can_hold_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"demo.toml: {key}: "):
        build(Unsupported, {key: [1, 2]}, "demo.toml")


def test_all_unknown_keys_of_a_table_are_reported_at_once() -> None:
    message = "demo.toml: txt: unknown key; did you mean 'text'? zzz: unknown key. Known keys: flag, count, "
    with pytest.raises(ConfigError, match=re.escape(message)):
        values(txt="", zzz=1)


def test_what_is_built_from_plain_is_the_same_again() -> None:
    made = Values(maybe=None, rates=None, step=Search(0.0, 1.0), shape=Square(), options={"a": 1}, numbers=(1, 2))
    assert values(**plain(made)) == made
    assert values(**json.loads(json.dumps(plain(made)))) == made


def test_plain_leaves_out_what_is_none_by_default_and_what_no_table_sets() -> None:
    table = plain(Values(rates=None))
    assert "limit" not in table
    assert "derived" not in table
    assert table["rates"] is False


@pytest.mark.parametrize("rate", [math.nan, math.inf, 10**400, 3 + 1j, b"3", {1}])
def test_plain_refuses_what_no_file_can_hold(rate: Any) -> None:
    with pytest.raises(ConfigError, match=r"^step.length: .* is not a finite number, text, table or array"):
        plain(Values(step=Fixed(rate)))


def test_equal_values_have_equal_digests_and_others_do_not() -> None:
    assert digest(Fixed(1)) == digest(Fixed(1.0))
    assert digest(Fixed(-0.0)) == digest(Fixed(0.0))
    assert digest(Values(rates=(1, 2))) == digest(Values(rates=(1.0, 2.0)))
    assert digest(Values(options={"a": 1, "b": 2})) == digest(Values(options={"b": 2, "a": 1}))
    different = [Values(), Values(number=1), Values(maybe=None), Values(rates=None), Fixed(1.0), Circle(), Square()]
    assert len({digest(value) for value in different}) == len(different)


def test_a_digest_is_that_of_the_canonical_json() -> None:
    text = b'{"name":"circle","size":0.1}'
    assert digest(Circle(0.1)) == hashlib.sha256(text).hexdigest()[:16]
