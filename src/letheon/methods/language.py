"""What all methods for language models have in common: a request is one piece of work at its holder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

from torch import Tensor

from letheon.methods.base import Method
from letheon.request import Scope
from letheon.text.descent import Recipe
from letheon.training import Local
from letheon.tree import Params


class LanguageMethod(Method):
    """Leaves have a field ``tuning``, the recipe of one request; ``local`` has no effect on them."""

    scopes: ClassVar[frozenset[Scope]] = frozenset({"samples"})
    needs: ClassVar[frozenset[str]] = frozenset({"text"})

    tuning: Recipe

    @property
    @abstractmethod
    def reads_retained(self) -> bool:
        """Whether it cannot do without retained texts."""

    @abstractmethod
    def inherited(self, memory: Mapping[str, Tensor]) -> Params:
        """What the request before left, by the names of this method's memory.

        Raises:
            MethodError: it is nothing that this method would hand on.
        """

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        return self
