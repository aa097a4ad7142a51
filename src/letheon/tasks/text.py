"""Learning problems of language models: pairs to learn, requests against some of them, and questions to ask."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from letheon.data import Data
from letheon.phase import State, seed_of
from letheon.tasks.base import Task, buffers_of, params_of
from letheon.text.encoding import MASKED, Encoder
from letheon.text.language import Language, LanguageModel, Small
from letheon.text.pairs import Pair
from letheon.text.refusals import REFUSALS

FORGET = "forget"
"""The set of a request's questions that tables are about."""

Reply = Literal["text", "line", "none"]


@dataclass(frozen=True, slots=True)
class Questions:
    """Pairs that a model is examined on.

    Attributes:
        pairs: by item id; what stands before a slash in an id is the group that the item is reported with.
        options: whether an answer's probability is taken among the false answers: multiple choice, as TOFU does on
            real authors and world facts.
        reply: what counts of what the model writes: all its ``text``, the first ``line``, or ``none``: it only reads
            the answers, as texts that it may have been trained on (membership inference).
    """

    pairs: Mapping[str, Pair]
    options: bool = False
    reply: Reply = "text"


class TextTask(Task):
    """A task whose samples are texts; a sample's id is its position in the whole data set, whatever part is used.

    Leaves have a field ``language``.
    """

    membership: ClassVar[tuple[str, str] | None] = None
    """Two sets of ``asked`` with reply ``none``: texts of what is to be forgotten, and texts that are never learnt."""
    head: ClassVar[str] = "lm.lm_head"
    classes: ClassVar[int] = 1
    bright: ClassVar[float | tuple[float, ...]] = 1.0

    language: Language

    @abstractmethod
    def learnt(self) -> Mapping[int, Pair]:
        """What Origin is trained on, by id."""

    @abstractmethod
    def requests(self) -> Sequence[Sequence[int]]:
        """The ids that each request is for, in the order of requests."""

    @abstractmethod
    def questions(self) -> Mapping[str, Questions]:
        """By name, the sets that utility is measured on; none of them is asked to be forgotten."""

    def asked(self) -> Sequence[Mapping[str, Questions]]:
        """For each request the sets that are about it: ``FORGET``, and others to be reported apart.

        By default the very texts that were learnt. Item ids differ between requests.
        """
        learnt = self.learnt()
        return [{FORGET: Questions({str(i): learnt[i] for i in ids})} for ids in self.requests()]

    def withheld(self) -> Sequence[int]:
        """What Origin learns, no request is for, and no method may train on: to measure what is kept without help."""
        return ()

    def unreported(self, ids: Tensor) -> Tensor:
        """``(n,)`` bool: samples that no question of ``questions`` or ``asked`` is about.

        A method may look at these to choose between models, and the report stays blind to the choice.
        """
        sets = [*self.questions().values(), *(found for asked in self.asked() for found in asked.values())]
        reported = {_what(pair) for found in sets for pair in found.pairs.values()}
        learnt = self.learnt()
        return torch.tensor([_what(learnt[i]) not in reported for i in ids.tolist()], dtype=torch.bool)

    def utility(self, name: str) -> Sequence[str]:
        """Which scores of a set of ``questions`` enter model utility; none: the set is reported apart."""
        return ("probability", "rouge", "truth_ratio")

    def needs(self) -> dict[str, tuple[str, ...]]:
        """What model utility is the mean of: scores by set."""
        return {name: tuple(scores) for name in self.questions() if (scores := self.utility(name))}

    @cached_property
    def encoder(self) -> Encoder:
        """The tokenizer with its template; that of a small model is trained on what Origin learns."""
        pairs = self.learnt().values() if isinstance(self.language.model, Small) else ()
        return self.language.encoder([f"Question: {p.question}\nAnswer: {p.answer}" for p in pairs])

    def train(self) -> Data:
        learnt = self.learnt()
        return self.encoder.data(list(learnt.values()), list(learnt))

    def test(self) -> Data:
        found = next(iter(self.questions().values()))
        return self.encoder.data(list(found.pairs.values()), range(-len(found.pairs), 0))

    def model(self) -> LanguageModel:
        return self.language.module(self.encoder)

    def init(self, seed: int) -> State:
        """The pretrained weights, or fresh ones of a small model, a function of ``seed`` alone."""
        given = self.language.pretrained()
        return Task.init(self, seed) if given is None else State(params_of(given), buffers_of(given))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over the answers' tokens: ``(n, t, vocabulary)`` logits and ``(n, t or longer)`` labels to a scalar."""
        labels = targets[:, 1 : outputs.shape[1]]
        return F.cross_entropy(outputs[:, :-1].transpose(1, 2), labels, ignore_index=MASKED)

    def correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``(n,)`` bool: whose every answer token is the likeliest one, given the text before it."""
        labels = targets[:, 1 : outputs.shape[1]]
        found = outputs[:, :-1]
        right = (found.argmax(2) == labels) & found.isfinite().all(2)
        return (right | (labels == MASKED)).all(1)

    def refusals(self, ids: Tensor, seed: int) -> Data:
        """The questions of these samples, each with a refusal drawn for it."""
        drawn = torch.Generator().manual_seed(seed_of(f"{seed}|refusals"))
        chosen = torch.randint(len(REFUSALS), (len(ids),), generator=drawn).tolist()
        pairs = [Pair(self.refused(i), REFUSALS[c]) for i, c in zip(ids.tolist(), chosen, strict=True)]
        return self.encoder.data(pairs, ids.tolist())

    def refused(self, i: int) -> str:
        """The question to refuse where a sample is to be forgotten."""
        return self.learnt()[i].question

    @cached_property
    def flops(self) -> int:
        """FLOPs of one forward pass of one text of mean length: the first one's, in proportion to its tokens."""
        from torch.utils.flop_counter import FlopCounterMode

        inputs = self.train().inputs
        tokens = (inputs >= 0).sum(1)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            self.prototype().eval()(inputs[:1])
        return int(counter.get_total_flops() * float(tokens.double().mean()) / float(tokens[0]))


def _what(pair: Pair) -> str:
    """What a pair asks, or the text itself where it asks nothing."""
    return pair.question or pair.answer
