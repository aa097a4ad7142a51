"""What the papers print and say, read from ``published.toml`` and ``published_cop.toml``.

No torch here: listing stays quick.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from letheon import config
from letheon.errors import ConfigError

PAPER = "Lethe, arXiv 2601.22601v3"
Cell = float | str
"""A printed number, or the mark ``UF``."""


@dataclass(frozen=True, slots=True)
class Deduced:
    """What printed costs say about a method's rounds.

    Attributes:
        rounds: of all phases together.
        participants: clients in each round.
        samples: training samples that a round passes over, all clients together.
    """

    rounds: int
    participants: int
    samples: int


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper as an order of one quantity. Entries are methods or numbers.

    Attributes:
        text: the sentence, in our words.
        quantity: what is ordered, as ``letheon.reproduce.measured`` names it.
        low, high: every entry of ``low`` lies below every entry of ``high``.
        near, to, within: every entry of ``near`` lies within ``within`` of ``to``.
        rows: the rows that the sentence is about; empty: all.
    """

    text: str
    quantity: str
    low: tuple[float | str, ...] = ()
    high: tuple[float | str, ...] = ()
    near: tuple[float | str, ...] = ()
    to: float | str = ""
    within: float = 0.0
    rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        is_order, is_near = bool(self.low and self.high), bool(self.near and self.to != "" and self.within > 0)
        if is_order == is_near or (is_near and (self.low or self.high)):
            raise ConfigError(f"claim {self.text!r}: give either low and high, or near, to and within")


@dataclass(frozen=True)
class Published:
    """One table or figure.

    Attributes:
        source: where it stands in the paper.
        paper: which one.
        title: what it is about.
        values: by row, method and column: what is printed. Empty for figures, whose numbers are not printed.
        deduced: by method.
        claims: what the text says about it.
    """

    source: str
    title: str
    paper: str = PAPER
    values: Mapping[str, Mapping[str, Mapping[str, Cell]]] = field(default_factory=dict)
    deduced: Mapping[str, Deduced] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()

    def claims_of(self, row: str) -> tuple[Claim, ...]:
        """The claims that are about ``row``."""
        return tuple(claim for claim in self.claims if not claim.rows or row in claim.rows)


@cache
def published() -> dict[str, Published]:
    """All tables and figures by id, in the order of the papers."""
    return {
        name: config.build(Published, table, f"{file}: {name}")
        for file in ("published.toml", "published_cop.toml")
        for name, table in package_table(file).items()
    }


def package_table(name: str) -> dict[str, Any]:
    """A TOML file of this package."""
    return tomllib.loads(resources.files("letheon.reproduce").joinpath(name).read_text(encoding="utf-8"))
