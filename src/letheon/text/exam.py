"""An examination: every score of every question of some sets, kept with what it is of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from letheon.errors import DataError, JournalError
from letheon.files import read_sealed, write_sealed
from letheon.metrics.measurement import Undefined
from letheon.metrics.text import VERSIONS, definition, mia
from letheon.metrics.text.degenerate import kind
from letheon.metrics.text.memorization import exact_memorizations, extraction_strengths
from letheon.metrics.text.probability import option_probabilities, probabilities
from letheon.metrics.text.rouge import rouge_l_recalls
from letheon.metrics.text.scores import Scores, Value
from letheon.metrics.text.truth_ratio import log_truth_ratios
from letheon.tasks.text import Questions, Reply
from letheon.text.answers import Reading, answers, read
from letheon.text.encoding import Encoder
from letheon.text.language import LanguageModel
from letheon.text.pairs import Pair

Row = Mapping[str, Scores]
"""Scores of one set by name: ``probability``, ``rouge``, ``em``, ``es``, ``es_openunlearning``, ``degenerate``.

And, where there are false answers, ``log_ratio``, ``log_ratio_arithmetic`` and ``log_ratio_original``, see
``of_ratios``. Of texts that are only read: ``probability``, ``em`` and the scores of membership inference,
``mia_loss``, ``mia_zlib``, ``mia_min_k`` and ``mia_min_k_plus_plus``.
"""

LOWEST = 0.2
"""Share of a text's tokens that Min-K looks at, as RWKU has it."""


@dataclass(frozen=True, slots=True)
class Exam:
    """What a model scored.

    Attributes:
        sets: by name of the set.
        identity: digests of the model and the questions, and the settings.
    """

    sets: Mapping[str, Row]
    identity: Mapping[str, str]


def examine(
    module: LanguageModel, encoder: Encoder, sets: Mapping[str, Questions], *, new: int, identity: Mapping[str, str]
) -> Exam:
    """Ask everything. Generation is greedy and ``new`` tokens long at most."""
    asked = {
        (name, item): pair
        for name, questions in sets.items()
        for item, pair in questions.pairs.items()
        if questions.reply != "none"
    }
    papers = _papers(module, encoder, asked)
    told = answers(module, encoder, {at: pair.question for at, pair in asked.items()}, new=new)
    rows = {}
    for name, questions in sets.items():
        if questions.reply == "none":
            rows[name] = _read(module, encoder, questions.pairs)
            continue
        own = {item: papers[name, item] for item in questions.pairs}
        rows[name] = _row(questions, own, {i: _counted(told[name, i], questions.reply) for i in questions.pairs})
    return Exam(rows, dict(identity))


def groups(scores: Scores) -> dict[str, Scores]:
    """The same scores by the groups that item ids name; empty if they name none."""
    found: dict[str, dict[str, Value]] = {}
    for item, value in scores.values.items():
        group, slash, _ = item.partition("/")
        if slash:
            found.setdefault(group, {})[item] = value
    return {group: replace(scores, values=values) for group, values in sorted(found.items())}


def digest(sets: Mapping[str, Questions], *, new: int) -> str:
    """Names what is asked, by which definitions, by content."""
    asked = {
        name: [
            [item, p.question, p.answer, p.paraphrase, list(p.false), questions.options, questions.reply]
            for item, p in questions.pairs.items()
        ]
        for name, questions in sets.items()
    }
    text = json.dumps([asked, new, VERSIONS], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Place = tuple[str, str]
Paper = Mapping[str, list[Reading]]
"""How the model reads one item's answer, paraphrase and false answers."""


def _papers(module: LanguageModel, encoder: Encoder, asked: Mapping[Place, Pair]) -> dict[Place, Paper]:
    """All in one go, so that texts of like length share a batch."""
    texts = [
        (at, role, encoder.encode(pair.question, answer))
        for at, pair in asked.items()
        for role, given in _given(pair).items()
        for answer in given
    ]
    papers: dict[Place, dict[str, list[Reading]]] = {at: {role: [] for role in _ROLES} for at in asked}
    for (at, role, _), reading in zip(texts, read(module, [text for _, _, text in texts]), strict=True):
        papers[at][role].append(reading)
    return dict(papers)


def _row(asked: Questions, papers: Mapping[str, Paper], told: Mapping[str, str]) -> Row:
    pairs = asked.pairs
    own = {item: paper["answer"][0] for item, paper in papers.items()}
    losses = {role: {item: [r.loss for r in paper[role]] for item, paper in papers.items()} for role in _ROLES}
    labels, likeliest = ({item: reading.words[side] for item, reading in own.items()} for side in (0, 1))
    loss = {item: reading.loss for item, reading in own.items()}
    row = {
        "probability": option_probabilities(loss, losses["false"]) if asked.options else probabilities(loss),
        "rouge": rouge_l_recalls(told, {item: pair.answer for item, pair in pairs.items()}).scores,
        "em": exact_memorizations(labels, likeliest),
        "es": extraction_strengths(labels, likeliest),
        "es_openunlearning": extraction_strengths(labels, likeliest, rule="openunlearning"),
        "degenerate": Scores(definition("degenerate"), {i: float(kind(text) is not None) for i, text in told.items()}),
    }
    if all(pair.false for pair in pairs.values()):
        answer, paraphrase = ({item: losses[role][item][0] for item in pairs} for role in ("answer", "paraphrase"))
        row |= {
            "log_ratio": log_truth_ratios(paraphrase, losses["false"]),
            "log_ratio_arithmetic": log_truth_ratios(paraphrase, losses["false"], mean="arithmetic"),
            "log_ratio_original": log_truth_ratios(answer, losses["false"], truth="answer"),
        }
    return row


def _read(module: LanguageModel, encoder: Encoder, texts: Mapping[str, Pair]) -> Row:
    """Texts as membership inference looks at them."""
    encoded = [encoder.encode(pair.question, pair.answer) for pair in texts.values()]
    own = dict(zip(texts, read(module, encoded, around=True), strict=True))
    labels, likeliest = ({item: reading.words[side] for item, reading in own.items()} for side in (0, 1))
    log_probs = {item: reading.log_probs for item, reading in own.items()}
    around = {item: reading.around for item, reading in own.items() if reading.around is not None}
    return {
        "probability": probabilities({item: reading.loss for item, reading in own.items()}),
        "em": exact_memorizations(labels, likeliest),
        "mia_loss": mia.loss_scores(log_probs),
        "mia_zlib": mia.zlib_scores(log_probs, {item: pair.answer for item, pair in texts.items()}),
        "mia_min_k": mia.min_k_scores(log_probs, LOWEST),
        "mia_min_k_plus_plus": mia.min_k_plus_plus_scores(log_probs, around, LOWEST),
    }


def _counted(text: str, reply: Reply) -> str:
    return text.strip().partition("\n")[0] if reply == "line" else text


_ROLES = ("answer", "paraphrase", "false")


def _given(pair: Pair) -> dict[str, list[str]]:
    """The answers to read; where there is no paraphrase the answer itself stands for it, as TOFU has it."""
    return {"answer": [pair.answer], "paraphrase": [pair.paraphrase or pair.answer], "false": list(pair.false)}


def write_exam(path: Path, exam: Exam) -> None:
    """One file, whole or not at all."""
    sets = {name: {score: _plain(found) for score, found in row.items()} for name, row in exam.sets.items()}
    write_sealed(path, {"identity": dict(exam.identity), "sets": sets})


def read_exam(path: Path, identity: Mapping[str, str]) -> Exam | None:
    """The examination in a file; None if it has to be made again.

    That is if there is none, if it is damaged or half-written, or of another model, of other questions or by other
    definitions.
    """
    try:
        content = read_sealed(path)
        if content["identity"] != dict(identity):
            return None
        sets = {
            name: {score: _scores(found) for score, found in row.items()} for name, row in content["sets"].items()
        }
    except (JournalError, DataError, KeyError, TypeError, ValueError, OSError):
        return None
    return Exam(sets, identity)


def _plain(scores: Scores) -> dict[str, Any]:
    values = {
        item: {"undefined": value.reason, "status": value.status} if isinstance(value, Undefined) else value
        for item, value in scores.values.items()
    }
    return {"definition": scores.definition, "unit": scores.unit, "values": values}


def _scores(found: Mapping[str, Any]) -> Scores:
    values = {
        item: Undefined(value["undefined"], value["status"]) if isinstance(value, dict) else float(value)
        for item, value in found["values"].items()
    }
    return Scores(found["definition"], values, found["unit"])
