"""Losses that come from preference optimisation: bounded, unlike ascent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from letheon.methods.descent import Descent, Retain
from letheon.text.goal import Goal


@dataclass(frozen=True)
class NPO(Descent):
    """Negative preference optimisation (arXiv 2404.05868), on the sum of a text's losses.

    Attributes:
        beta: β; towards 0 it becomes ascent.
    """

    name: ClassVar[str] = "npo"

    beta: float = 0.1

    def goal(self) -> Goal:
        return self.aimed("npo", beta=self.beta)


@dataclass(frozen=True)
class SimNPO(Descent):
    """NPO on the mean of a text's losses and without a reference model (arXiv 2410.07163).

    The authors' weights for TOFU's forget05 are β = 2.5 and γ = 0.1375 beside a retain term.

    Attributes:
        beta: β.
        margin: δ.
    """

    name: ClassVar[str] = "simnpo"

    beta: float = 2.5
    margin: float = 0.0

    def goal(self) -> Goal:
        return self.aimed("simnpo", beta=self.beta, margin=self.margin)


@dataclass(frozen=True)
class DPO(Descent):
    """A refusal of the question preferred to its answer.

    Attributes:
        beta: β.
    """

    name: ClassVar[str] = "dpo"

    retain: Retain = "nll"
    beta: float = 0.1

    def goal(self) -> Goal:
        return self.aimed("dpo", beta=self.beta)
