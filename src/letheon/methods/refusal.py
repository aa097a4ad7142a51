"""IDK: learn to refuse the questions whose answers are to be forgotten (TOFU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from letheon.methods.descent import Descent
from letheon.text.goal import Goal


@dataclass(frozen=True)
class IDK(Descent):
    """The ordinary loss on a refusal drawn for each question.

    TOFU joins refusals and retained texts into one batch, so that their weights follow token counts; here each is a
    mean over its own tokens, and ``retain_weight`` says how they weigh.
    """

    name: ClassVar[str] = "idk"

    def goal(self) -> Goal:
        return self.aimed("refusal")
