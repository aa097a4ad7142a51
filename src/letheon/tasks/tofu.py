"""TOFU: fictitious authors, forgotten in a stream of requests (Maini et al., arXiv 2401.06121)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar, Literal, get_args

from letheon.errors import ConfigError, DataError
from letheon.tasks.images import package, root
from letheon.tasks.text import Questions, TextTask
from letheon.text.language import Language
from letheon.text.pairs import FALSE_ANSWERS, PARAPHRASE, Pair, read_pairs

log = logging.getLogger(__name__)

HUB = "locuslab/TOFU"
SIZE = 4000
EVALUATED = 400
"""The first so many rows have paraphrases and false answers in ``retain_perturbed``."""
FORGOTTEN: Mapping[str, int] = {"forget01": 40, "forget05": 200, "forget10": 400}
WHERE = (
    "set LETHEON_DATA to a directory with tofu/ in it, which holds full.json, forget10_perturbed.json, "
    "retain_perturbed.json, real_authors_perturbed.json and world_facts_perturbed.json, one object a line"
)

Forgotten = Literal["forget01", "forget05", "forget10"]


@dataclass(frozen=True)
class Tofu(TextTask):
    """The last rows of TOFU as a stream of equal requests, in the order of the file: whole authors, if sizes allow.

    A row's id is its position in ``full``. TOFU on the hub or, by ``LETHEON_DATA``, in files.

    Attributes:
        language: the model.
        forget: which rows: ``forget05`` are the last 200, ten authors.
        parts: requests that they are cut into.
        retained: retained rows to train on, from the first on; None: all that are not of ``forget``.
        items: questions of each set to ask, evenly spread; None: all.
    """

    name: ClassVar[str] = "tofu"

    language: Language = Language()
    forget: Forgotten = "forget05"
    parts: int = 5
    retained: int | None = None
    items: int | None = None

    def __post_init__(self) -> None:
        if self.forget not in get_args(Forgotten):
            raise ConfigError(f"task.forget: unknown {self.forget!r}; use {', '.join(get_args(Forgotten))}")
        size = FORGOTTEN[self.forget]
        if self.parts < 1 or size % self.parts:
            raise ConfigError(f"task.parts: {size} rows cannot be cut into {self.parts} equal requests")
        most = SIZE - size
        if self.retained is not None and not 20 <= self.retained <= most:
            raise ConfigError(f"task.retained: must lie in 20…{most}, got {self.retained}")
        if self.items is not None and self.items < 2:
            raise ConfigError(f"task.items: must be at least 2, got {self.items}")

    def learnt(self) -> Mapping[int, Pair]:
        return self._learnt

    @cached_property
    def _learnt(self) -> Mapping[int, Pair]:
        full, first = _rows("full"), SIZE - FORGOTTEN[self.forget]
        if len(full) != SIZE:
            raise DataError(f"task tofu: full has {len(full)} rows, {SIZE} are wanted; copy the file again")
        told = dict(zip(range(SIZE - 400, SIZE), _rows("forget10_perturbed"), strict=True))
        told |= dict(enumerate(_rows("retain_perturbed")))
        kept = [*range(first if self.retained is None else self.retained), *range(first, SIZE)]
        return {i: told.get(i, full[i]) for i in kept}

    def requests(self) -> Sequence[Sequence[int]]:
        size = FORGOTTEN[self.forget] // self.parts
        return [range(start, start + size) for start in range(SIZE - FORGOTTEN[self.forget], SIZE, size)]

    def questions(self) -> Mapping[str, Questions]:
        kept = EVALUATED if self.retained is None else min(EVALUATED, self.retained)
        sets = {
            "retain": Questions(_numbered(_rows("retain_perturbed")[:kept])),
            "real_authors": Questions(_numbered(_rows("real_authors_perturbed")), options=True),
            "world_facts": world_facts(),
        }
        return {name: Questions(spread(found.pairs, self.items), found.options) for name, found in sets.items()}


def world_facts() -> Questions:
    """TOFU's 117 questions about the world, which have nothing to do with what it invents."""
    return Questions(_numbered(_rows("world_facts_perturbed")), options=True)


def held_out(forget: Forgotten) -> tuple[Pair, ...]:
    """As many rows as ``forget`` has, about authors of whom no row of ``full`` tells; none if a copy lacks them."""
    name, directory = f"holdout{forget.removeprefix('forget')}", root()
    folder = Path(directory) / "tofu" if directory else None
    if folder is not None and folder.is_dir() and not (folder / f"{name}.json").is_file():
        log.warning("%s: has no %s.json, so there is no membership inference; copy it from the hub", folder, name)
        return ()
    return _rows(name)


def spread(pairs: Mapping[str, Pair], count: int | None) -> Mapping[str, Pair]:
    """``count`` of the pairs, evenly spread over their order; all, if it is None or there are no more."""
    if count is None or count >= len(pairs):
        return pairs
    names = list(pairs)
    return {name: pairs[name] for i in range(count) for name in [names[i * len(names) // count]]}


def _numbered(pairs: Sequence[Pair]) -> dict[str, Pair]:
    return {str(i): pair for i, pair in enumerate(pairs)}


def _rows(name: str) -> tuple[Pair, ...]:
    return _read(name, root())


@lru_cache(maxsize=32)
def _read(name: str, directory: str | None) -> tuple[Pair, ...]:
    folder = Path(directory) / "tofu" if directory else None
    if folder is not None and folder.is_dir():
        return read_pairs(folder / f"{name}.json")
    hub = package("datasets", "task tofu", "datasets", otherwise=WHERE)
    try:
        rows = hub.load_dataset(HUB, name, split="train")
    except Exception as error:  # the hub's client raises several unrelated families when offline
        raise DataError(f"task tofu: the hub gave no {HUB}, {name} ({error}); {WHERE}") from error
    return tuple(
        Pair(row["question"], row["answer"], row.get(PARAPHRASE) or "", tuple(row.get(FALSE_ANSWERS) or ()))
        for row in rows
    )
