"""RWKU as it lies in files or on the hub: rows, checked, and the nine kinds of attack by one spelling."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from letheon.errors import DataError
from letheon.tasks.images import package, root

HUB = "jinzhuoran/RWKU"
TARGETS = 200
RUN = 8
FILES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "intro": ("forget_target", ("target",)),
    "passage": ("train_original_passage", ("subject", "text")),
    "forget_level1": ("forget_level1", ("subject", "query", "answer")),
    "forget_level2": ("forget_level2", ("subject", "query", "answer")),
    "forget_level3": ("forget_level3", ("subject", "query", "answer", "type")),
    "neighbor_level1": ("neighbor_level1", ("subject", "query", "answer", "neighbor")),
    "neighbor_level2": ("neighbor_level2", ("subject", "query", "answer", "neighbor")),
    "forget_mia": ("mia_forget", ("subject", "text")),
    "retain_mia": ("mia_retain", ("subject", "text")),
}
"""By file name without its ending: what the hub calls it, and the keys that a row must have."""
WHERE = (
    "set LETHEON_DATA to a directory with rwku/All/ in it, as the data set has it: intro.json, passage.json, "
    "forget_level1.json and so on, each one JSON array"
)
KINDS = (
    "prefix injection",
    "affirmative suffix",
    "role playing",
    "multiple choice",
    "reverse query",
    "synonym manipulation",
    "background hint",
    "in-context learning",
    "cross-lingual",
)
"""Of attack, by the names of the paper."""
SPELLINGS: Mapping[str, str] = {
    "role play": "role playing",
    "context hint": "background hint",
    "incontext learning": "in-context learning",
    "in context learning": "in-context learning",
    "cross lingual": "cross-lingual",
}
"""What the files call some of them, without hyphens and languages."""

Row = Mapping[str, str]


def kind(told: str) -> str:
    """The kind of attack that a row names in its own spelling, e.g. ``cross lingual (French)``.

    Raises:
        DataError: it is none of the nine.
    """
    plain = " ".join(re.sub(r"\(.*?\)", "", told.lower()).replace("-", " ").split())
    found = SPELLINGS.get(plain, plain)
    if found not in KINDS:
        raise DataError(f"task rwku: unknown kind of attack {told!r}; known are {', '.join(KINDS)}")
    return found


def rows(name: str) -> tuple[Row, ...]:
    """All rows of a file."""
    return _read(name, root())


def about(name: str, people: Iterable[str]) -> dict[int, Row]:
    """The rows of a file that are about these people, by number, person after person."""
    found, numbers = rows(name), _numbers(name, root())
    return {i: found[i] for person in people for i in numbers.get(person, ())}


def shared(texts: Iterable[str]) -> set[str]:
    """Every run of eight words in the texts: what two texts have in common if one was cut out of the other."""
    runs: set[str] = set()
    for text in texts:
        words = text.split()
        runs |= {" ".join(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1))}
    return runs


@lru_cache(maxsize=32)
def _numbers(name: str, directory: str | None) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for i, row in enumerate(_read(name, directory)):
        found.setdefault(row["subject"], []).append(i)
    return found


@lru_cache(maxsize=32)
def _read(name: str, directory: str | None) -> tuple[Row, ...]:
    folder = Path(directory) / "rwku" / "All" if directory else None
    is_local = folder is not None and folder.is_dir()
    where = str(folder / f"{name}.json") if folder and is_local else f"{HUB}, {FILES[name][0]}"
    found = _parsed(Path(where)) if is_local else _downloaded(FILES[name][0])
    for number, row in enumerate(found, 1):
        told = row if isinstance(row, Mapping) else {}
        wrong = [key for key in FILES[name][1] if not isinstance(told.get(key), str) or not told[key].strip()]
        if wrong:
            raise DataError(f"{where}, row {number}: {', '.join(wrong)}: text is wanted; copy the data again")
    return tuple(found)


def _parsed(path: Path) -> list[Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {WHERE}") from error
    if not isinstance(found, list) or not found:
        raise DataError(f"{path}: one JSON array of rows is wanted; {WHERE}")
    return found


def _downloaded(name: str) -> list[Any]:
    hub = package("datasets", "task rwku", "datasets", otherwise=WHERE)
    try:
        (split,) = hub.load_dataset(HUB, name).values()
    except Exception as error:  # the hub's client raises several unrelated families when offline
        raise DataError(f"task rwku: the hub gave no {HUB}, {name} ({error}); {WHERE}") from error
    return list(split)
