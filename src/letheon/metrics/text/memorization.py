"""Exact memorisation (EM) and extraction strength (ES), from teacher-forced predictions of an answer's tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from letheon.metrics.measurement import Undefined
from letheon.metrics.text import definition
from letheon.metrics.text.scores import Scores, Value, each

Ids = Sequence[int]
Rule = Literal["strict", "openunlearning"]


def without_end(labels: Ids, end: Collection[int]) -> int:
    """How many labels are left when end tokens (end of turn, end of text) at the end of the answer are not scored."""
    kept = len(labels)
    while kept and labels[kept - 1] in end:
        kept -= 1
    return kept


def hits(labels: Ids, predicted: Ids, *, end: Collection[int] = ()) -> list[bool] | Undefined:
    """Which of the answer's tokens are the most likely ones, given all before; end tokens left out."""
    if len(labels) != len(predicted):
        raise ValueError(f"{len(labels)} labels, {len(predicted)} predictions")
    kept = without_end(labels, end)
    if not kept:
        return Undefined("the answer has no tokens")
    return [int(label) == int(guess) for label, guess in zip(labels[:kept], predicted[:kept], strict=True)]


def exact_memorization(found: Sequence[bool]) -> float:
    """Share of the tokens that are right."""
    return sum(found) / len(found)


def extraction_strength(found: Sequence[bool], *, rule: Rule = "strict") -> float:
    """1 − k/T for the shortest prefix k after which all that follows is right.

    Args:
        found: the T outcomes.
        rule: ``strict`` gives 0 where the last token is wrong. OpenUnlearning's search ends at k = T − 1, so it gives
            1/T there, and 1 to a single wrong token; published tables use it.
    """
    n = len(found)
    prefix = next((n - i for i, is_right in enumerate(reversed(found)) if not is_right), 0)
    if rule == "openunlearning":
        prefix = min(prefix, n - 1)
    return (n - prefix) / n


def exact_memorizations(
    labels: Mapping[str, Ids], predicted: Mapping[str, Ids], *, end: Collection[int] = ()
) -> Scores:
    """EM of each item."""

    def em(ours: Ids, guesses: Ids) -> Value:
        found = hits(ours, guesses, end=end)
        return found if isinstance(found, Undefined) else exact_memorization(found)

    return Scores(definition("exact_memorization"), each(em, labels, predicted))


def extraction_strengths(
    labels: Mapping[str, Ids], predicted: Mapping[str, Ids], *, end: Collection[int] = (), rule: Rule = "strict"
) -> Scores:
    """ES of each item by one of the two rules, which are never compared with each other."""

    def es(ours: Ids, guesses: Ids) -> Value:
        found = hits(ours, guesses, end=end)
        return found if isinstance(found, Undefined) else extraction_strength(found, rule=rule)

    return Scores(definition("extraction_strength", rule), each(es, labels, predicted))
