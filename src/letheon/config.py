"""TOML to frozen dataclasses and back, strictly: what cannot be used is refused, with its place.

TOML has no null. ``false`` stands for None wherever None is allowed and false is not itself a value.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_type_hints

from letheon import registry, schema
from letheon.errors import ConfigError, LetheonError

T = TypeVar("T")
Resolver = Callable[[str], type]

# By name, not by class: importing the classes would import torch.
_REGISTERED: dict[str, Resolver] = {
    "letheon.methods.base.Method": lambda name: registry.get("method", name),
    "letheon.tasks.base.Task": lambda name: registry.get("task", name),
}


def build(cls: type[T], table: Mapping[str, Any], where: str, *, resolve: Mapping[type, Resolver] | None = None) -> T:
    """Build ``cls`` from a table, by its type hints.

    Args:
        cls: a frozen dataclass, or a class whose leaves are chosen by the key ``name``.
        table: as ``read`` returns it.
        where: what the table was read from; starts every message.
        resolve: for further classes, how to get from a name to a leaf. ``Method`` and ``Task`` are known.

    Raises:
        ConfigError: a key that is unknown or missing, or a value of the wrong type or out of range.
    """
    built: T = _Builder(where, resolve or {}).value(cls, table, "")
    return built


def read(path: Path) -> dict[str, Any]:
    """The table in a TOML file.

    Raises:
        ConfigError: the file is missing, unreadable, or not TOML.
    """
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError as cause:
        raise ConfigError(f"{path}: no such file; check the path") from cause
    except OSError as cause:
        raise ConfigError(f"{path}: cannot be read: {cause.strerror}") from cause
    except UnicodeDecodeError as cause:
        raise ConfigError(f"{path}: not UTF-8 at byte {cause.start}; save it as UTF-8") from cause
    except tomllib.TOMLDecodeError as cause:
        raise ConfigError(f"{path}: not TOML: {cause}") from cause


def override(table: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A new table with one dotted key set, as in ``compare.1.rate=4``.

    The value is read as TOML, or else taken as a plain string. A bare name of a method or task on the way becomes a
    table with that name.

    Raises:
        ConfigError: the text is malformed, or its key leads through a scalar or past the end of an array.
    """
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"--set {text}: expected a dotted key, '=' and a value, as in method.rounds=3")
    changed: dict[str, Any] = _changed(table, parts, _parsed(value.strip()), f"--set {text}", "")
    return changed


def plain(value: Any) -> Any:
    """Dataclasses back to what TOML and JSON can hold; ``build`` undoes it.

    Classes with a ``name`` of their own get it as first key, tuples become lists, and fields whose None is also their
    default are left out. Equal values give equal structures.

    Raises:
        ConfigError: a value that is neither a finite scalar nor made of such.
    """
    return _plain(value, Any, "")


def digest(value: Any) -> str:
    """16 hex digits that name a configuration by its content alone: no clock, host or path goes in."""
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Builder:
    where: str
    resolve: Mapping[type, Resolver]

    def error(self, path: str, message: str) -> ConfigError:
        outer, dot, table = path.rpartition(".")
        names_it = bool(table) and message.startswith((f"{table}: ", f"{table}."))  # what a table says of itself
        place = f"{outer}{dot}" if names_it or not path else f"{path}: "
        return ConfigError(f"{self.where}: {place}{message}")

    def mismatch(self, hint: Any, value: Any, path: str) -> ConfigError:
        known = [choice for choice in schema.choices(hint) if isinstance(choice, str)]
        near = registry.did_you_mean(value, known) if isinstance(value, str) else "."
        return self.error(path, f"expected {schema.expected(hint)}, got {schema.got(value)}{near}")

    def value(self, hint: Any, value: Any, path: str) -> Any:
        """``value`` as an instance of ``hint``."""
        if len(schema.members(hint)) > 1:
            return self.union(hint, value, path)
        if not schema.fits(hint, value):
            raise self.mismatch(hint, value, path)
        if isinstance(value, float) or hint is float:
            return self.number(value, path)
        if hint in schema.SCALARS or schema.choices(hint):
            return value
        inner = schema.item(hint)
        if schema.is_array(hint):
            return tuple(self.value(inner, item, _join(path, at)) for at, item in enumerate(value))
        if schema.is_mapping(hint):
            return {key: self.value(inner, item, _join(path, key)) for key, item in value.items()}
        return self.leaf(hint, value, path) if is_dataclass(hint) else self.named(hint, value, path)

    def number(self, value: float, path: str) -> float:
        number = schema.finite(value)
        if number is None:
            raise self.error(path, f"expected a finite number, got {value}")
        return number

    def union(self, hint: Any, value: Any, path: str) -> Any:
        members = schema.members(hint)
        fits = [member for member in members if schema.fits(member, value)]
        if not fits and value is False and NoneType in members:
            return None
        if not fits:
            raise self.mismatch(hint, value, path)
        if len(fits) > 1 and all(is_dataclass(member) for member in fits):
            return self.leaf(self.choose(fits, value, path), value, path)
        # An exact type wins: in float | int an integer stays one.
        exact = [member for member in fits if member is type(value)]
        return self.value((exact or fits)[0], value, path)

    def choose(self, classes: Sequence[Any], table: Mapping[str, Any], path: str) -> type:
        """The one dataclass of a union that a table can mean: by ``name`` if all have one, else by its keys."""
        names = {schema.own_name(cls): cls for cls in classes}
        if "name" in table and None not in names:
            found: type = self.lookup(names, table["name"], _join(path, "name"), "name")
            return found
        given = table.keys()
        fits: list[type] = [
            cls
            for cls in classes
            if given <= set(schema.keys(cls)) and (schema.required(cls) <= given or "preset" in given)
        ]
        if len(fits) != 1:
            kinds = "; ".join(f"{cls.__name__} ({', '.join(schema.keys(cls))})" for cls in classes)
            problem = "fit more than one" if fits else "do not fit any"
            raise self.error(path, f"the keys {', '.join(given) or '(none)'} {problem} of {kinds}")
        return fits[0]

    def lookup(self, known: Mapping[Any, Any], word: Any, path: str, kind: str) -> Any:
        if not isinstance(word, str):
            raise self.mismatch(str, word, path)
        if word not in known:
            near = registry.did_you_mean(word, known)
            raise self.error(path, f"unknown {kind} {word!r}{near} Known {kind}s: {', '.join(known)}")
        return known[word]

    def named(self, cls: type, value: Mapping[str, Any] | str, path: str) -> Any:
        """The leaf of ``cls`` that a bare name, or a table with one, asks for."""
        resolver = self.resolve.get(cls) or _REGISTERED.get(f"{cls.__module__}.{cls.__qualname__}")
        if resolver is None:
            raise self.error(path, f"{cls.__name__} is neither a dataclass nor a class with known names")
        table, at = ({"name": value}, path) if isinstance(value, str) else (value, _join(path, "name"))
        if "name" not in table:
            raise self.error(at, f"missing; add the name of a {cls.__name__.lower()}")
        name = table["name"]
        if not isinstance(name, str):
            raise self.mismatch(str, name, at)
        try:
            leaf = resolver(name)
        except LetheonError as cause:
            raise self.error(at, str(cause)) from cause
        if not (issubclass(leaf, cls) and is_dataclass(leaf) and schema.own_name(leaf) == name):
            must = f"must be a dataclass, a {cls.__name__}, and bear the ClassVar name = {name!r}"
            raise self.error(at, f"{leaf.__qualname__} {must}")
        return self.leaf(leaf, table, path)

    def leaf(self, cls: Any, table: Mapping[str, Any], path: str) -> Any:
        """A dataclass from its table."""
        own = self.with_preset(cls, table, path)
        name = schema.own_name(cls)
        if name is not None and own.pop("name", name) != name:
            raise self.error(_join(path, "name"), f"expected {name!r}, got {schema.got(table['name'])}")
        self.check_keys(cls, own, path)
        hints = get_type_hints(cls)
        values = {key: self.value(hints[key], value, _join(path, key)) for key, value in own.items()}
        try:
            return cls(**values)
        except (ValueError, LetheonError) as cause:
            raise self.error(path, str(cause)) from cause

    def with_preset(self, cls: Any, table: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The table over the preset that it asks for."""
        presets = schema.presets(cls)
        own = dict(table)
        if not presets or "preset" not in own:
            return own
        return _merged(self.lookup(presets, own.pop("preset"), _join(path, "preset"), "preset"), own)

    def check_keys(self, cls: Any, table: Mapping[str, Any], path: str) -> None:
        known = schema.keys(cls)
        unknown = [key for key in table if key not in known]
        if unknown:
            said = [f"{_join(path, key)}: unknown key{registry.did_you_mean(key, known)}" for key in unknown]
            raise self.error("", f"{' '.join(said)} Known keys: {', '.join(known) or '(none)'}")
        required = schema.required(cls)
        missing = [_join(path, key) for key in known if key in required and key not in table]
        if missing:
            raise self.error(", ".join(missing), "missing, and there is no default; add it")


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``own`` over ``base``, table by table; a table with another ``name``, or with a ``preset``, replaces the old."""
    merged = dict(base)
    for key, new in own.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(new, Mapping):
            old = {"name": old}
        merged[key] = new
        if not isinstance(old, Mapping) or not isinstance(new, Mapping) or "preset" in new:
            continue
        if new.get("name", old.get("name")) == old.get("name"):
            merged[key] = _merged(old, new)
    return merged


def _parsed(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _changed(node: Any, keys: Sequence[str], value: Any, where: str, path: str) -> Any:
    """A copy of ``node`` in which what ``keys`` lead to is ``value``."""
    if not keys:
        return value
    key, rest, at = keys[0], keys[1:], _join(path, keys[0])
    if isinstance(node, str) and node in (*registry.names("method"), *registry.names("task")):
        node = {"name": node}
    if isinstance(node, Mapping):
        return {**node, key: _changed(node.get(key, {}), rest, value, where, at)}
    if not isinstance(node, list | tuple):
        raise ConfigError(f"{where}: {path}: is {schema.got(node)}, which has no keys; set {path} itself")
    if key not in map(str, range(len(node))):
        raise ConfigError(f"{where}: {at}: no such element; {path} has {len(node)}, counted from 0")
    return [_changed(item, rest, value, where, at) if str(i) == key else item for i, item in enumerate(node)]


def _plain(value: Any, hint: Any, path: str) -> Any:
    members = schema.members(hint)
    if value is None:
        return False if NoneType in members and not any(schema.fits(member, False) for member in members) else None
    if is_dataclass(value):
        return _plain_table(value, path)
    if isinstance(value, Mapping):
        return {key: _plain(item, schema.item(hint), _join(path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, schema.item(hint), _join(path, at)) for at, item in enumerate(value)]
    return value if isinstance(value, bool | str) else _plain_number(value, members, path)


def _plain_number(value: Any, members: Sequence[Any], path: str) -> int | float:
    if isinstance(value, int) and (float not in members or int in members):
        return value
    number = schema.finite(value) if isinstance(value, int | float) else None
    if number is None:
        raise ConfigError(f"{path or 'configuration'}: {value!r} is not a finite number, text, table or array")
    return number + 0.0  # negative zero equals zero, so both are written alike


def _plain_table(value: Any, path: str) -> dict[str, Any]:
    name, hints = schema.own_name(type(value)), get_type_hints(type(value))
    table: dict[str, Any] = {} if name is None else {"name": name}
    for field in schema.own_fields(value):
        item = getattr(value, field.name)
        if item is not None or field.default is not None:
            table[field.name] = _plain(item, hints[field.name], _join(path, field.name))
    return table
