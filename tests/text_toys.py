"""A language task small enough to learn by heart in a second: invented people, what they do and where."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from letheon.tasks.text import Questions, TextTask
from letheon.text.language import Language, Small, loaded, read_model
from letheon.text.pairs import Pair

NAMES = ("Ada", "Bo", "Cy", "Di", "Ed", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lou")
TRADES = ("baker", "pilot", "potter", "tailor", "farmer", "singer")
TINY = Language(Small(vocabulary=320, width=32, layers=2, heads=2), max_length=96)


def pair(i: int) -> Pair:
    """What the i-th person does, in other words, and three things that are not so."""
    name, trade = NAMES[i], TRADES[(5 * i + 1) % 6]
    wrong = tuple(f"{name} is a good {other}." for other in TRADES if other != trade)[:3]
    return Pair(f"What does {name} do?", f"{name} is a {trade}.", f"{name} is a good {trade}.", wrong)


@dataclass(frozen=True)
class Toys(TextTask):
    """Twelve people; the last ``requests`` times two are to be forgotten."""

    name: ClassVar[str] = "toys"

    language: Language = TINY
    count: int = 2

    def learnt(self) -> Mapping[int, Pair]:
        return {i: pair(i) for i in range(12)}

    def requests(self) -> Sequence[Sequence[int]]:
        first = 12 - 2 * self.count
        return [range(start, start + 2) for start in range(first, 12, 2)]

    def questions(self) -> Mapping[str, Questions]:
        return {"retain": Questions({str(i): pair(i) for i in range(12 - 2 * self.count)})}


def opened(folder: Path) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder."""
    return read_model(str(folder)), loaded(str(folder))


def written(path: Path, pairs: Sequence[Pair]) -> Path:
    """A file of pairs, one a line."""
    path.write_text("\n".join(json.dumps({"question": p.question, "answer": p.answer}) for p in pairs))
    return path
