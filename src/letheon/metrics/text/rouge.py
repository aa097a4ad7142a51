"""ROUGE-L recall of a generation: the share of the reference's words that it repeats in order.

Words as in the ``rouge_score`` package with its stemmer on, which the field's numbers use: lower case, letters a to z
and digits, stems of words longer than three letters. RWKU's own scripts use another package and other words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from letheon.metrics.interval import share
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.text import definition
from letheon.metrics.text.porter import stem
from letheon.metrics.text.scores import Scores, Value, each

WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Recall:
    """ROUGE-L recall of each item, and how many generations had no word at all: their recall is 0."""

    scores: Scores
    empty: Measurement


def words(text: str) -> list[str]:
    """The stemmed words that are compared."""
    return [stem(word) if len(word) > 3 else word for word in WORD.findall(text.lower())]


def common(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence, one bit for each word of ``first`` (Allison and Dix 1986)."""
    places: dict[str, int] = {}
    for i, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << i
    full = (1 << len(first)) - 1
    row = full
    for word in second:
        matched = row & places.get(word, 0)
        row = (row + matched | row - matched) & full
    return len(first) - row.bit_count()


def rouge_l_recall(generation: str, reference: str) -> Value:
    """LCS over the reference's length; undefined for a reference without words."""
    target = words(reference)
    if not target:
        return Undefined("the reference has no words")
    return common(target, words(generation)) / len(target)


def rouge_l_recalls(generations: Mapping[str, str], references: Mapping[str, str]) -> Recall:
    """Of each item, from its generation and its reference."""
    scores = Scores(definition("rouge_l_recall"), each(rouge_l_recall, generations, references))
    empty = sum(not words(text) for text in generations.values())
    return Recall(scores, share(empty, len(generations)))
