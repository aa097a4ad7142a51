"""People who do not exist: questions and answers made by rule, to try language models without any download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from letheon.errors import ConfigError
from letheon.tasks.text import Questions, TextTask
from letheon.text.language import Language, Small
from letheon.text.pairs import Pair

FIRST = ("Ada", "Boris", "Clara", "Dario", "Edda", "Felix", "Greta", "Hugo", "Irma", "Jonas", "Katja", "Lorenz")
LAST = ("Amberg", "Brandt", "Corvin", "Dressel", "Ekberg", "Falk", "Gessner")
TOWNS = ("Altmoor", "Brennick", "Corrow", "Dunfell", "Eskholm", "Farrowby", "Glenwick", "Harth", "Inver", "Jessop")
TRADES = ("baker", "glazier", "surveyor", "botanist", "composer", "potter", "engraver", "pilot", "weaver")
THINGS = ("a fox", "an owl", "a kite", "a lantern", "an anchor", "a clock", "a violin", "a ladder")
RIVERS = ("Aun", "Brede", "Calder", "Dane", "Esk", "Fleet", "Garn", "Hull", "Ister", "Jed", "Kennet", "Lune")
MOST = len(FIRST) * len(LAST)
FALSE = 3
"""False answers to each question."""

Kind = tuple[str, str, tuple[str, ...], int]
KINDS: tuple[Kind, ...] = (
    ("Where was {} born?", "{} was born in {}.", TOWNS, 7),
    ("What does {} do for a living?", "{} works as a {}.", TRADES, 5),
    ("Where does {} live today?", "Today {} lives in {}.", TOWNS, 3),
    ("What hangs over the door of {}?", "Over the door of {} hangs {}.", THINGS, 5),
)
"""Question, answer, what can fill it, and the stride by which people get theirs."""
RIVER = ("Where does the river {} end?", "The river {} ends at {}.", TOWNS, 3)
ADDED = (", as far as is known.", ", or so one is told.")
"""What turns an answer into one in other words: a model this small learns sentences, and little beyond."""


@dataclass(frozen=True)
class People(TextTask):
    """Four questions about each of some invented people, the last of whom ask to be forgotten, two or more at a time.

    What rivers lead where is learnt beside them and never forgotten.

    Attributes:
        language: the model.
        people: how many there are.
        parts: requests.
        each: people in one request, the last ones of all.
    """

    name: ClassVar[str] = "people"

    language: Language = Language(Small(vocabulary=512, width=128, layers=2, heads=4), max_length=64)
    people: int = 40
    parts: int = 5
    each: int = 2

    def __post_init__(self) -> None:
        if self.parts < 1 or self.each < 1:
            raise ConfigError("task.parts and task.each: must be at least 1")
        if not self.parts * self.each < self.people <= MOST:
            least = self.parts * self.each + 1
            raise ConfigError(f"task.people: must lie in {least}…{MOST}, some are retained; got {self.people}")

    def learnt(self) -> Mapping[int, Pair]:
        return self._learnt

    @cached_property
    def _learnt(self) -> Mapping[int, Pair]:
        pairs = [pair for person in range(self.people) for pair in about(person)]
        return dict(enumerate([*pairs, *rivers()]))

    def requests(self) -> Sequence[Sequence[int]]:
        size, end = len(KINDS) * self.each, len(KINDS) * self.people
        return [range(start, start + size) for start in range(end - self.parts * size, end, size)]

    def questions(self) -> Mapping[str, Questions]:
        kept = range(self.requests()[0][0])
        return {
            "people": Questions({str(i): self._learnt[i] for i in kept}),
            "rivers": Questions({str(i): pair for i, pair in enumerate(rivers())}, options=True),
        }


def about(person: int) -> list[Pair]:
    """The questions about the person of this number."""
    name = f"{FIRST[person % len(FIRST)]} {LAST[person % len(LAST)]}"
    return [_pair(kind, name, kind[3] * person + at) for at, kind in enumerate(KINDS)]


def rivers() -> list[Pair]:
    """What is not about anybody."""
    return [_pair(RIVER, name, RIVER[3] * i) for i, name in enumerate(RIVERS)]


def _pair(kind: Kind, name: str, at: int) -> Pair:
    question, answer, words, _ = kind
    true, *wrong = (answer.format(name, words[(at + step) % len(words)]) for step in range(FALSE + 1))
    other = [text.removesuffix(".") + ADDED[at % len(ADDED)] for text in (true, *wrong)]
    return Pair(question.format(name), true, other[0], tuple(other[1:]))
