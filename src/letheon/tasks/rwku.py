"""RWKU: famous people, forgotten in a stream of requests (Jin et al., 2024)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, get_args

from letheon.errors import ConfigError, DataError
from letheon.tasks.rwku_rows import TARGETS, Row, about, kind, rows, shared
from letheon.tasks.text import FORGET, Questions, TextTask
from letheon.tasks.tofu import spread, world_facts
from letheon.text.language import Language
from letheon.text.pairs import Pair

BLANK = "Fill in the blank."
SHORT = "Answer in a few words."
"""What stands before a question, so that a model that follows instructions keeps to the few tokens it may write."""
LEVELS: Mapping[str, tuple[str, str]] = {"forget_level1": ("level 1", BLANK), "forget_level2": ("level 2", SHORT)}
"""Cloze and question, by the file that they are in: the group they are reported with, and what stands before them."""
NEIGHBOURS: Mapping[str, tuple[str, str]] = {
    "neighbor_level1": ("level 1", BLANK),
    "neighbor_level2": ("level 2", SHORT),
}
FIRST: Mapping[str, int] = {"passage": 0, "forget_level1": 20_000, "forget_level2": 30_000}
"""A text's id is its row in its file, counted from here."""

Learns = Literal["passages", "questions", "both"]


@dataclass(frozen=True)
class Rwku(TextTask):
    """Famous people in RWKU's order: the first are forgotten, the next retained, the next only asked about.

    A request is for some people at once. What is forgotten is what was learnt of them; what is asked are RWKU's probes:
    levels 1 and 2 for the table, level 3 (attacks in nine kinds), the people's neighbours and texts for membership
    inference apart. Utility is that of the people who are only asked about, whom no method trains on, and of TOFU's
    world facts, by ROUGE-L recall and probability.

    Attributes:
        language: the model.
        parts: requests.
        subjects: people of each request.
        retained: people whom retain terms and continued training see.
        measured: people who are only asked about. Origin learns them, too.
        learns: what Origin learns of everybody: RWKU's ``passages``, its ``questions`` of levels 1 and 2, or ``both``.
            A small model that has only read passages answers none of the questions.
        passages: of each person, the first ones; None: all.
        items: questions of each set to ask, evenly spread; None: all.
    """

    name: ClassVar[str] = "rwku"
    membership: ClassVar[tuple[str, str] | None] = ("forget_mia", "retain_mia")

    language: Language = Language()
    parts: int = 5
    subjects: int = 5
    retained: int = 20
    measured: int = 10
    learns: Learns = "passages"
    passages: int | None = None
    items: int | None = None

    def __post_init__(self) -> None:
        if self.learns not in get_args(Learns):
            raise ConfigError(f"task.learns: unknown {self.learns!r}; use {', '.join(get_args(Learns))}")
        for name in ("parts", "subjects", "retained", "measured"):
            if getattr(self, name) < 1:
                raise ConfigError(f"task.{name}: must be at least 1, got {getattr(self, name)}")
        if self._wanted > TARGETS:
            raise ConfigError(
                f"task: {self.parts} requests for {self.subjects} people, {self.retained} retained and {self.measured} "
                f"measured make {self._wanted} people; RWKU has {TARGETS}"
            )
        if self.passages is not None and self.passages < 1:
            raise ConfigError(f"task.passages: must be at least 1, got {self.passages}")
        if self.items is not None and self.items < 2:
            raise ConfigError(f"task.items: must be at least 2, got {self.items}")

    @property
    def _wanted(self) -> int:
        return self.parts * self.subjects + self.retained + self.measured

    @cached_property
    def people(self) -> Sequence[str]:
        """Everybody who takes part: those of the requests, the retained, the measured."""
        known = [row["target"] for row in rows("intro")]
        if len(known) < self._wanted:
            raise DataError(f"task rwku: has {len(known)} people, {self._wanted} are wanted; copy the files again")
        return known[: self._wanted]

    @property
    def _requested(self) -> list[Sequence[str]]:
        """The people of each request."""
        size = self.subjects
        return [self.people[start : start + size] for start in range(0, self.parts * size, size)]

    def learnt(self) -> Mapping[int, Pair]:
        return self._learnt

    @cached_property
    def _learnt(self) -> Mapping[int, Pair]:
        return {i: pair for person in self.people for i, pair in self._texts(person).items()}

    def _texts(self, person: str) -> dict[int, Pair]:
        """What is learnt of somebody, by id."""
        found: dict[int, Pair] = {}
        if self.learns != "questions":
            own = about("passage", [person])
            found |= {i: Pair("", own[i]["text"]) for i in list(own)[: self.passages]}
        if self.learns != "passages":
            for name, (_, before) in LEVELS.items():
                found |= {FIRST[name] + i: _pair(row, before) for i, row in about(name, [person]).items()}
        return found

    def _ids(self, people: Iterable[str]) -> list[int]:
        return [i for person in people for i in self._texts(person)]

    def requests(self) -> Sequence[Sequence[int]]:
        return [self._ids(people) for people in self._requested]

    def withheld(self) -> Sequence[int]:
        return self._ids(self.people[-self.measured :])

    def refused(self, i: int) -> str:
        learnt = self._learnt[i]
        return learnt.question or f"What do you know about {rows('passage')[i]['subject']}?"

    def questions(self) -> Mapping[str, Questions]:
        retained = self.people[self.parts * self.subjects : -self.measured]
        return {
            "retained": self._chosen(_probes(LEVELS, self.people[-self.measured :])),
            "world_facts": self._chosen(replace(world_facts(), reply="line")),
            "practised": self._chosen(_probes(LEVELS, retained)),
        }

    def asked(self) -> Sequence[Mapping[str, Questions]]:
        return [self._about(people) for people in self._requested]

    def _about(self, people: Sequence[str]) -> Mapping[str, Questions]:
        to_go = {person for request in self._requested for person in request}
        attacks = about("forget_level3", people)
        sets = {
            FORGET: _probes(LEVELS, people),
            "adversarial": Questions(
                {f"{kind(row['type'])}/{i}": _pair(row, SHORT) for i, row in attacks.items()}, reply="line"
            ),
            "neighbours": _probes(NEIGHBOURS, people, to_go),
        }
        return {name: self._chosen(found) for name, found in (sets | self._fragments(people)).items()}

    def _fragments(self, people: Sequence[str]) -> dict[str, Questions]:
        """RWKU's texts for membership inference, cut out of its passages, as far as they are what they stand for.

        The first are of passages that were learnt, if any were. The others RWKU takes of other targets: those who take
        part here are left out.
        """
        forget, retain = (about(name, people) for name in ("forget_mia", "retain_mia"))
        if self.learns != "questions":
            learnt = shared(pair.answer for person in people for pair in self._texts(person).values())
            forget = {i: row for i, row in forget.items() if shared([row["text"]]) & learnt}
        retain = {i: row for i, row in retain.items() if not shared([row["text"]]) & self._known}
        return {
            name: Questions({str(i): Pair("", row["text"]) for i, row in texts.items()}, reply="none")
            for name, texts in (("forget_mia", forget), ("retain_mia", retain))
        }

    @cached_property
    def _known(self) -> set[str]:
        """Of all passages about those who take part."""
        return shared(row["text"] for row in about("passage", self.people).values())

    def _chosen(self, found: Questions) -> Questions:
        return replace(found, pairs=spread(found.pairs, self.items))

    def utility(self, name: str) -> Sequence[str]:
        return () if name == "practised" else ("rouge", "probability")


def _probes(files: Mapping[str, tuple[str, str]], people: Sequence[str], but: Iterable[str] = ()) -> Questions:
    """Clozes and questions about people; none about neighbours that are among ``but``."""
    left_out = set(but)
    pairs = {
        f"{group}/{i}": _pair(row, before)
        for name, (group, before) in files.items()
        for i, row in about(name, people).items()
        if row.get("neighbor") not in left_out
    }
    return Questions(pairs, reply="line")


def _pair(row: Row, before: str) -> Pair:
    return Pair(f"{before} {row['query']}", row["answer"])
