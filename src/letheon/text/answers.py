"""What a model says of questions: how it reads given answers, and its own. Texts of like length share a batch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from letheon.metrics.measurement import Undefined
from letheon.text.encoding import MASKED, PAD, Encoded, Encoder, padded
from letheon.text.language import LanguageModel, generated

Item = TypeVar("Item", bound=Hashable)

TOKENS = 4096
"""Tokens, padding included, that pass at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A given answer as the model reads it, token by token.

    Attributes:
        log_probs: ``(t,)`` log p(y_t | x, y_<t), the end token last if the text has one.
        labels: ``(t,)`` the answer's tokens.
        likeliest: ``(t,)`` what the model would have said.
        end: whether the last token only ends the text.
        around: ``(2, t)`` mean and standard deviation of log p over the vocabulary at each place, if asked for.
    """

    log_probs: NDArray[np.float64]
    labels: tuple[int, ...]
    likeliest: tuple[int, ...]
    end: bool
    around: NDArray[np.float64] | None = None

    @property
    def loss(self) -> float | Undefined:
        """Mean of −log p in nats."""
        from letheon.metrics.text.probability import answer_loss

        return answer_loss(self.log_probs)

    @property
    def words(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Labels and likeliest tokens without the end token."""
        last = len(self.labels) - self.end
        return self.labels[:last], self.likeliest[:last]


@torch.no_grad()
def read(module: LanguageModel, texts: Sequence[Encoded], *, around: bool = False) -> list[Reading]:
    """How the model reads each text, in the order given; ``around`` also keeps what Min-K%++ needs."""
    from letheon.metrics.text.mia import moments

    module.eval()
    device = next(module.parameters()).device
    found: dict[int, Reading] = {}
    for rows in _chunks([len(text.ids) for text in texts]):
        ids = padded([texts[i].ids for i in rows], PAD).to(device)
        labels = padded([texts[i].labels for i in rows], MASKED)[:, 1:]
        logits = module(ids)[:, :-1].float()
        log_probs = F.log_softmax(logits, 2).cpu()
        picked = log_probs.gather(2, labels.clamp_min(0)[:, :, None])[:, :, 0].double()
        likeliest = logits.argmax(2).cpu()
        for at, i in enumerate(rows):
            counted = labels[at] != MASKED
            found[i] = Reading(
                picked[at][counted].numpy(),
                tuple(labels[at][counted].tolist()),
                tuple(likeliest[at][counted].tolist()),
                texts[i].end,
                moments(log_probs[at][counted].numpy()) if around else None,
            )
    return [found[i] for i in range(len(texts))]


def answers(module: LanguageModel, encoder: Encoder, questions: Mapping[Item, str], *, new: int) -> dict[Item, str]:
    """The model's own answers, greedy, ``new`` tokens at most. Prompts of equal length go together: none is padded."""
    prompts = {item: encoder.prompt_ids(question)[: encoder.max_length - 1] for item, question in questions.items()}
    by_length: dict[int, list[Item]] = {}
    for item, prompt in prompts.items():
        by_length.setdefault(len(prompt), []).append(item)
    told: dict[Item, str] = {}
    for length, items in sorted(by_length.items()):
        room = min(new, encoder.max_length - length)
        size = max(1, TOKENS // (length + room))
        for start in range(0, len(items), size):
            chosen = items[start : start + size]
            ids = generated(module, [prompts[i] for i in chosen], new=room, stop=encoder.stop)
            told |= {item: encoder.decode(row) for item, row in zip(chosen, ids, strict=True)}
    return {item: told[item] for item in questions}


def _chunks(sizes: Sequence[int]) -> list[list[int]]:
    """Positions in batches of like length, each of ``TOKENS`` at most with its padding."""
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i], i))
    chunks: list[list[int]] = []
    for i in order:
        if chunks and (len(chunks[-1]) + 1) * sizes[i] <= TOKENS:
            chunks[-1].append(i)
        else:
            chunks.append([i])
    return chunks
