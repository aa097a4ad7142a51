"""What a dataclass and its type hints accept from a table, and how to say so in a message."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

SCALARS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    NoneType: "false (for none)",
}
"""The types of single values, in words."""


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other hint is its own only member."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def choices(hint: Any) -> tuple[Any, ...]:
    """The values of every ``Literal`` in a hint."""
    return tuple(choice for member in members(hint) if get_origin(member) is Literal for choice in get_args(member))


def is_array(hint: Any) -> bool:
    """Whether the hint is ``tuple[T, ...]``."""
    return get_origin(hint) is tuple and get_args(hint)[1:] == (Ellipsis,)


def is_mapping(hint: Any) -> bool:
    """Whether the hint is ``Mapping[str, T]`` or ``dict[str, T]``."""
    return get_origin(hint) in (Mapping, dict) and get_args(hint)[0] is str


def item(hint: Any) -> Any:
    """What the arrays or mappings of a hint hold; ``Any`` if it knows neither."""
    for member in members(hint):
        if is_array(member):
            return get_args(member)[0]
        if is_mapping(member):
            return get_args(member)[1]
    return Any


def fits(hint: Any, value: Any) -> bool:
    """Whether a value is of the right shape for a hint that is no union; its contents are not looked at.

    Integers fit ``float``; otherwise types are exact, so that true is not 1 and "1" is not 1.
    """
    if hint is float:
        return type(value) in (int, float)
    if hint in SCALARS:
        return type(value) is hint
    if choices(hint):
        return any(type(choice) is type(value) and choice == value for choice in choices(hint))
    if is_array(hint):
        return isinstance(value, list | tuple)
    if is_mapping(hint) or is_dataclass(hint):
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    return isinstance(hint, type) and isinstance(value, str | Mapping)


def expected(hint: Any) -> str:
    """The hint in words."""
    if len(members(hint)) > 1:
        return " or ".join(expected(member) for member in members(hint))
    if choices(hint):
        return " or ".join(repr(choice) for choice in choices(hint))
    if is_array(hint):
        return f"an array (each item {expected(item(hint))})"
    if is_mapping(hint) or is_dataclass(hint):
        return "a table"
    if isinstance(hint, type) and hint not in SCALARS:
        return f"the name of a {hint.__name__.lower()} or a table with one"
    return SCALARS.get(hint, f"{hint} (which no table can hold)")


def got(value: Any) -> str:
    """A value in words."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "an array"
    kinds = {int: "the integer ", float: "the number ", str: "the string "}
    return f"{kinds.get(type(value), f'{type(value).__name__} ')}{value!r}"


def finite(value: float) -> float | None:
    """The number as a float, or None if it is NaN, infinite, or too large an integer."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def own_fields(cls: Any) -> list[Field[Any]]:
    """The fields of a dataclass that its table may set."""
    return [field for field in fields(cls) if field.init]


def own_name(cls: Any) -> str | None:
    """The name that a class bears as a ClassVar; None if it has none, or has a field ``name`` instead."""
    name = getattr(cls, "name", None)
    return name if isinstance(name, str) and all(field.name != "name" for field in fields(cls)) else None


def presets(cls: Any) -> Mapping[str, Mapping[str, Any]]:
    """The presets that a class bears as a ClassVar."""
    found = getattr(cls, "presets", None)
    return found if isinstance(found, Mapping) and all(field.name != "presets" for field in fields(cls)) else {}


def keys(cls: Any) -> list[str]:
    """All keys that the table of a dataclass may have."""
    own = (["name"] if own_name(cls) is not None else []) + (["preset"] if presets(cls) else [])
    return own + [field.name for field in own_fields(cls)]


def required(cls: Any) -> set[str]:
    """The keys that the table of a dataclass must have."""
    return {field.name for field in own_fields(cls) if field.default is MISSING and field.default_factory is MISSING}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
