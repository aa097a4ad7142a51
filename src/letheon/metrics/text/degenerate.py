"""Degenerate output: a model that prints nothing, or the same again and again, has not forgotten but broken."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from letheon.metrics.interval import share
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.text import definition
from letheon.metrics.text.scores import Scores, Value, named

Kind = Literal["empty", "repeated", "loop"]
WORD = re.compile(r"\w+")
TIMES = 3
MOST_OF_ONE = 0.5
"""A text is repeated where one word comes ``TIMES`` times and is more than this share of it."""
LONG_WORD = 16
"""A word of so many characters, of which at most two differ, is repeated too: aaaaaaaaaaaaaaaa."""
LOOP_WORDS = 12
LOOP = 0.6
"""A text of ``LOOP_WORDS`` words loops where its word pairs have less than this share of their largest entropy."""
LIMIT = 10.0
"""More degenerate outputs than this, per cent, and no number of the model means anything."""


@dataclass(frozen=True, slots=True)
class Degeneration:
    """How many of the outputs are degenerate, in per cent, and which are how."""

    rate: Measurement
    kinds: Mapping[str, Kind]

    def failure(self) -> Undefined | None:
        """Why the model counts as destroyed: more than ``LIMIT`` of its outputs are degenerate."""
        if isinstance(self.rate.value, Undefined) or self.rate.value <= LIMIT:
            return None
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(self.kinds.values()).items()))
        told = f"degenerate output: {self.rate.value:.1f} % of {self.rate.n} ({counts}; {named(self.kinds)})"
        return Undefined(told, "collapsed")


def kind(text: str) -> Kind | None:
    """How an output is degenerate, if it is: no word in it, mostly one word, or a loop."""
    found = WORD.findall(text.lower())
    if not any(character.isalnum() for character in text):
        return "empty"
    if any(len(word) >= LONG_WORD and len(set(word)) <= 2 for word in found):
        return "repeated"
    most = max(Counter(found).values())
    if most >= TIMES and most > MOST_OF_ONE * len(found):
        return "repeated"
    if len(found) >= LOOP_WORDS and entropy(found, 2) < LOOP * math.log2(len(found) - 1):
        return "loop"
    return None


def degeneration(outputs: Mapping[str, str]) -> Degeneration:
    """Of the outputs of a model, by item."""
    kinds = {item: found for item, text in outputs.items() if (found := kind(text))}
    return Degeneration(share(len(kinds), len(outputs)), kinds)


def entropy(words: Sequence[str], n: int) -> float:
    """Of the distribution of runs of n words, in bits; 0 where there is none."""
    counts = Counter(zip(*(islice(words, i, None) for i in range(n)), strict=False))
    total = sum(counts.values())
    return -math.fsum(count / total * math.log2(count / total) for count in counts.values()) if total else 0.0


def fluency(text: str) -> Value:
    """Entropy of word pairs and triples, weighted 1 : 2, in bits (RWKU). Compare texts of about one length only."""
    words = WORD.findall(text.lower())
    if len(words) < 3:
        return Undefined("fewer than three words")
    return (entropy(words, 2) + 2.0 * entropy(words, 3)) / 3.0


def fluencies(outputs: Mapping[str, str]) -> Scores:
    """Fluency of each output."""
    return Scores(definition("fluency"), {item: fluency(text) for item, text in outputs.items()}, "number")
