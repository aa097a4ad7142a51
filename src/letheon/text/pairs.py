"""Questions and answers: what a language model is fine-tuned on, and what is asked of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from letheon.errors import DataError

FALSE_ANSWERS = "perturbed_answer"
PARAPHRASE = "paraphrased_answer"


@dataclass(frozen=True, slots=True)
class Pair:
    """One question with its answer.

    Attributes:
        question: may be empty: plain text to learn, all of it answer.
        answer: not empty.
        paraphrase: the answer in other words; empty where there is none.
        false: wrong answers of the same shape.
    """

    question: str
    answer: str
    paraphrase: str = ""
    false: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.answer.strip():
            raise DataError(f"the answer to {self.question[:60]!r} is empty; there is nothing to learn or to forget")


def read_pairs(path: Path) -> tuple[Pair, ...]:
    """The pairs of a file: one JSON object a line, or one JSON array.

    Keys are TOFU's: ``question`` and ``answer``, or ``prompt`` and ``completion``, or ``text`` alone; and, where there
    are any, ``paraphrased_answer`` and ``perturbed_answer`` (a list). Other keys are ignored.

    Raises:
        DataError: no file, no JSON, no pair, or a row without an answer; the first bad row is named.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    rows = _rows(path, text)
    pairs = tuple(_pair(row, f"{path}, row {number}") for number, row in enumerate(rows, 1))
    if not pairs:
        raise DataError(f"{path}: holds no row; one JSON object a line is wanted, with question and answer")
    return pairs


def _rows(path: Path, text: str) -> Sequence[Any]:
    if text.lstrip().startswith("["):
        return [*_parsed(path, text, 1)]
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return [_parsed(path, line, number) for number, line in lines]


def _parsed(path: Path, text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}, line {line}: no JSON ({error}); one object a line is wanted") from error


def _pair(row: Any, where: str) -> Pair:
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: a {type(row).__name__}; an object with question and answer is wanted")
    question = row.get("question", row.get("prompt", ""))
    answer = row.get("answer", row.get("completion", row.get("text")))
    paraphrase, false = row.get(PARAPHRASE, ""), row.get(FALSE_ANSWERS, ())
    if not isinstance(question, str) or not isinstance(answer, str):
        known = ", ".join(map(str, row))
        raise DataError(f"{where}: keys {known}; question and answer, prompt and completion, or text are wanted")
    if not isinstance(paraphrase, str) or isinstance(false, str) or not all(isinstance(x, str) for x in false):
        raise DataError(f"{where}: {PARAPHRASE} must be text and {FALSE_ANSWERS} a list of texts")
    try:
        return Pair(question, answer, paraphrase, tuple(false))
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
