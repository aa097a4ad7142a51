"""Texts of one's own, for a model that is in memory already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from letheon.data import Data
from letheon.phase import State
from letheon.tasks.base import buffers_of, params_of
from letheon.tasks.text import Questions, TextTask
from letheon.text.encoding import Encoder
from letheon.text.language import Language, LanguageModel
from letheon.text.pairs import Pair


@dataclass(frozen=True, eq=False)
class OwnTexts(TextTask):
    """Pairs to forget and pairs to retain, in this order: ids count through both.

    Attributes:
        forget: one request.
        retain: may be empty.
        given: tokenizer and template.
        module: the model; not copied.
    """

    name: ClassVar[str] = "own"

    forget: tuple[Pair, ...]
    retain: tuple[Pair, ...]
    given: Encoder
    module: LanguageModel
    language: Language = Language()

    def learnt(self) -> Mapping[int, Pair]:
        return dict(enumerate((*self.forget, *self.retain)))

    def requests(self) -> Sequence[Sequence[int]]:
        return [range(len(self.forget))]

    def questions(self) -> Mapping[str, Questions]:
        return {"retain": Questions({str(i): pair for i, pair in enumerate(self.retain)})}

    def unreported(self, ids: Tensor) -> Tensor:
        """All: nothing is examined here, and what is retained is told by its loss, drawn and watched together."""
        return torch.ones(len(ids), dtype=torch.bool)

    def test(self) -> Data:
        """The texts themselves: nothing is held out, and there may be nothing retained."""
        return self.train()

    def utility(self, name: str) -> Sequence[str]:
        return ("probability", "rouge")

    @cached_property
    def encoder(self) -> Encoder:
        return self.given

    def model(self) -> LanguageModel:
        return self.module

    def init(self, seed: int) -> State:
        return State(params_of(self.module), buffers_of(self.module))

    @cached_property
    def flops(self) -> int:
        """Two for each parameter and token: nothing is passed through a model that may be large."""
        tokens = (self.train().inputs >= 0).sum(1).double().mean()
        return round(2 * sum(p.numel() for p in self.module.parameters()) * float(tokens))
