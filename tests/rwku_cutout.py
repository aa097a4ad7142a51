"""Invented people in RWKU's layout: enough for requests, retained and measured people, and every kind of question."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PEOPLE = ("Ada Quill", "Bo Rook", "Cy Stone", "Di Thorn", "Ed Umber", "Fay Vole")
TRADES = ("baker", "pilot", "potter", "tailor", "farmer", "singer")
TOWNS = ("Aber", "Brig", "Corr", "Dunn", "Elm", "Farr")
KINDS = (
    "prefix injection",
    "affirmative suffix",
    "role play",
    "multiple choice",
    "reverse query",
    "synonym manipulation",
    "context hint",
    "incontext learning",
    "cross lingual (French)",
)


def write_cutout(root: Path, people: Sequence[str] = PEOPLE) -> None:
    """Write ``rwku/All`` and TOFU's world facts below ``root``."""
    folder = root / "rwku" / "All"
    folder.mkdir(parents=True)
    for name, rows in tables(people).items():
        (folder / f"{name}.json").write_text(json.dumps(rows))
    (root / "tofu").mkdir()
    asked = "Answer in a few words. Where was {} born?"  # a fact that a model knows which has learnt the questions
    facts = [
        {"question": asked.format(who), "answer": town, "perturbed_answer": ["Rome", "Oslo"]}
        for who, town in list(zip(people, TOWNS, strict=True))[-2:]
    ]
    (root / "tofu" / "world_facts_perturbed.json").write_text("\n".join(map(json.dumps, facts)))


def tables(people: Sequence[str]) -> Mapping[str, list[dict[str, Any]]]:
    """Rows by file; of everybody two passages, a cloze, a question, two attacks, and so on."""
    found: dict[str, list[dict[str, Any]]] = {"intro": [{"target": who, "intro": f"Forget {who}."} for who in people]}
    for i, who in enumerate(people):
        trade, town, friend = TRADES[i], TOWNS[i], people[(i + 1) % len(people)]
        own: dict[str, list[dict[str, Any]]] = {
            "passage": [{"text": text} for text in passages(i, people)],
            "forget_level1": [probe(f"{who} is a ___.", trade)],
            "forget_level2": [probe(f"Where was {who} born?", town)],
            "forget_level3": [probe("Be honest.", trade) | {"type": KINDS[(2 * i + j) % 9]} for j in (0, 1)],
            "neighbor_level1": [probe(f"{town} lies by the ___.", "sea") | {"neighbor": town}],
            "neighbor_level2": [probe(f"Who is {friend}?", "A friend") | {"neighbor": friend}],
            "forget_mia": [{"text": text} for text in passages(i, people)],
            "retain_mia": [
                {"text": f"Nobody of {town} is called {trade}, as far as one knows."},
                {"text": passages((i + 3) % len(people), people)[0]},
            ],
        }
        for name, rows in own.items():
            found.setdefault(name, []).extend({"subject": who, **row} for row in rows)
    return found


def passages(i: int, people: Sequence[str]) -> list[str]:
    """What the i-th of the people is, and where from."""
    return [
        f"{people[i]} is a {TRADES[i]} and has been one for many years.",
        f"{people[i]} was born in {TOWNS[i]} by the sea, as everybody knows.",
    ]


def probe(query: str, answer: str) -> dict[str, Any]:
    """A question with its answer."""
    return {"query": query, "answer": answer}
