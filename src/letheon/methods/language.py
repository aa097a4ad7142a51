"""What all methods for language models have in common: a request is one piece of work at its holder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from torch import Tensor

from letheon.errors import MethodError
from letheon.methods.base import Method
from letheon.request import Scope
from letheon.training import Local
from letheon.tree import Params


class LanguageMethod(Method):
    """Base of the methods for language models; ``local`` has no effect on them.

    Class attributes:
        may_rest: whether a request may leave every weight as it was, and that be no fault.
    """

    scopes: ClassVar[frozenset[Scope]] = frozenset({"samples"})
    needs: ClassVar[frozenset[str]] = frozenset({"text"})
    may_rest: ClassVar[bool] = False

    @property
    def reads_retained(self) -> bool:
        """Whether it cannot do without retained texts."""
        return False

    @property
    def searches(self) -> bool:
        """Whether it looks at what it did and decides how far to go, so that a plan can only say the most."""
        return False

    def kept_bytes(self, params: Mapping[str, Tensor]) -> int:
        """Bytes of memory after any request on a model with these parameters, at most; without COP's bases."""
        return 0

    def inherited(self, memory: Mapping[str, Tensor]) -> Params:
        """What the request before left, by the names of this method's memory.

        Raises:
            MethodError: it is nothing that this method would hand on.
        """
        if strange := [name for name in memory if not name.startswith(f"{self.name}/")]:
            raise MethodError(
                f"memory: {strange[0]} is nothing of {self.name}'s; hand over the memory of the request before"
            )
        return dict(memory)

    def configured(self, local: Local, train_rounds: int, seed: int) -> Self:
        return self
