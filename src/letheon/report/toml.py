"""A configuration back to TOML, so that a report can say how to repeat what it reports."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(table: Mapping[str, Any]) -> str:
    """TOML of what ``config.plain`` returns: first the values, then the tables, each on lines of its own."""
    lines = _lines({key: item for key, item in table.items() if not _is_section(item)})
    for key, item in table.items():
        if isinstance(item, Mapping):
            lines += ["", f"[{_key(key)}]", *_lines(item)]
        elif _is_section(item):
            for part in item:
                lines += ["", f"[[{_key(key)}]]", *_lines(part)]
    return "\n".join(lines) + "\n"


def _is_section(item: Any) -> bool:
    is_tables = isinstance(item, list) and bool(item) and all(isinstance(part, Mapping) for part in item)
    return isinstance(item, Mapping) or is_tables


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(item)}" for key, item in table.items() if item is not None]


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(item: Any) -> str:
    if isinstance(item, Mapping):
        inner = ", ".join(_lines(item))
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(item, list):
        return f"[{', '.join(map(_value, item))}]"
    if isinstance(item, str):
        return _text(item)
    return str(item).lower() if isinstance(item, bool) else repr(item)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL; written as UTF-8, since TOML has no surrogate pairs.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
