"""From text to token ids and labels: what is masked, where a text ends, and how a batch is padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from letheon.data import Data
from letheon.errors import ConfigError, DataError
from letheon.text.pairs import Pair

PAD = -1
"""Stands for no token: no vocabulary has it, so padding can neither be learnt nor taken for an end token."""
MASKED = -100
"""The label of a token that the loss leaves out."""

Template = Literal["plain", "chat"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """One text.

    Attributes:
        ids: tokens, beginning with one start token where the tokenizer has one.
        labels: the same, with the prompt masked.
        end: whether the last token only ends the text.
    """

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    end: bool

    @property
    def answer(self) -> tuple[int, ...]:
        """The answer's tokens, with the end token if there is one."""
        return tuple(label for label in self.labels if label != MASKED)


@dataclass(frozen=True, eq=False)
class Encoder:
    """Encodes pairs with one tokenizer and one template.

    ``plain`` writes "Question: …", a line break and "Answer: …"; ``chat`` is the tokenizer's own chat template with
    the question as the user's turn and the answer as the assistant's. Without a question the text stands alone.

    Attributes:
        tokenizer: a fast one of transformers: its offsets say where the answer begins.
        template: how question and answer become one text.
        max_length: longer texts are cut at the end.
    """

    tokenizer: Any
    template: Template = "plain"
    max_length: int = 512

    def __post_init__(self) -> None:
        if self.template not in ("plain", "chat"):
            raise ConfigError(f"template: unknown {self.template!r}; use plain or chat")
        if not getattr(self.tokenizer, "is_fast", False):
            raise ConfigError("tokenizer: a fast one is needed, which knows where in the text each token lies")
        if self.template == "chat" and not getattr(self.tokenizer, "chat_template", None):
            raise ConfigError("template: the tokenizer has no chat template; use template = 'plain'")

    @property
    def stop(self) -> int | None:
        """The token that ends an answer; None if the tokenizer has none."""
        if self.template == "plain":
            return self.tokenizer.eos_token_id  # type: ignore[no-any-return]
        return self._tokens(self._texts("?", "!")[1])[0][-1]

    def prompt(self, question: str) -> str:
        """What the answer follows."""
        if not question:
            return ""
        if self.template == "plain":
            return f"Question: {question}\nAnswer:"
        turns = [{"role": "user", "content": question}]
        return str(self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    def prompt_ids(self, question: str) -> list[int]:
        """The prompt as tokens, as generation starts from them."""
        return self._started(self._tokens(self.prompt(question))[0])

    def encode(self, question: str, answer: str) -> Encoded:
        """The whole text. A token belongs to the answer if any of it does.

        Raises:
            DataError: the answer has no token, or none within ``max_length``.
        """
        prompt, text = self._texts(question, answer)
        ids, ends = self._tokens(text)
        labels = [i if end > len(prompt) else MASKED for i, end in zip(ids, ends, strict=True)]
        stop = self.tokenizer.eos_token_id
        closed = self.template == "chat" and bool(question)
        if stop is not None and not closed:
            ids, labels = [*ids, stop], [*labels, stop]
        started = self._started(ids)
        labels = [MASKED] * (len(started) - len(ids)) + labels
        whole = len(started) <= self.max_length
        started, labels = started[: self.max_length], labels[: self.max_length]
        if all(label == MASKED for label in labels[1:]):
            raise DataError(
                f"the answer to {question[:60]!r} has no token within {self.max_length} tokens; raise max_length"
            )
        return Encoded(tuple(started), tuple(labels), end=whole and (closed or stop is not None))

    def data(self, pairs: Sequence[Pair], ids: Sequence[int] | None = None) -> Data:
        """Right-padded pairs as samples: inputs and targets ``(n, length)`` int64; ids count from 0 by default."""
        encoded = [self.encode(pair.question, pair.answer) for pair in pairs]
        inputs = padded([e.ids for e in encoded], PAD)
        targets = padded([e.labels for e in encoded], MASKED)
        return Data(inputs, targets, torch.tensor(range(len(pairs)) if ids is None else list(ids), dtype=torch.int64))

    def decode(self, ids: Sequence[int]) -> str:
        """Tokens back to text."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def _texts(self, question: str, answer: str) -> tuple[str, str]:
        prompt = self.prompt(question)
        if self.template == "plain" or not question:
            return prompt, f"{prompt} {answer}" if prompt else answer
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        text = str(self.tokenizer.apply_chat_template(turns, tokenize=False)).rstrip("\n")
        if not text.startswith(prompt):
            raise ConfigError(
                "template: with this chat template a conversation does not begin with its own prompt, so that the "
                "answer cannot be told from it; use template = 'plain'"
            )
        return prompt, text

    def _tokens(self, text: str) -> tuple[list[int], list[int]]:
        """Ids, and where in the text each token ends."""
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(found["input_ids"]), [end for _, end in found["offset_mapping"]]

    def _started(self, ids: list[int]) -> list[int]:
        start = self.tokenizer.bos_token_id
        return ids if start is None or ids[:1] == [start] else [start, *ids]


def best(tokenizer: Any, template: str | None, max_length: int = 512) -> Encoder:
    """An encoder with this template or, if none is named, with the tokenizer's chat template where it has one."""
    found = template or ("chat" if getattr(tokenizer, "chat_template", None) else "plain")
    return Encoder(tokenizer, found, max_length)  # type: ignore[arg-type]


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """``(n, longest)`` int64, filled up on the right."""
    longest = max(map(len, rows), default=0)
    filled = [[*row, *[value] * (longest - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.int64).reshape(len(rows), longest)


def trimmed(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Both without the columns that are padding in every row."""
    longest = int((inputs != PAD).sum(1).max()) if len(inputs) else 0
    return inputs[:, :longest], targets[:, :longest]


def lengths(inputs: Tensor) -> Tensor:
    """``(n,)`` tokens of each row."""
    return (inputs != PAD).sum(1)
