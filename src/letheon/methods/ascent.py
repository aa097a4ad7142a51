"""Gradient ascent on the texts to forget, alone or beside descent on retained ones (Jang et al.; TOFU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from letheon.methods.descent import Descent, Retain
from letheon.text.goal import Goal


@dataclass(frozen=True)
class GA(Descent):
    """Minus the mean loss over the answers' tokens: unbounded, so it ends where the recipe does."""

    name: ClassVar[str] = "ga"

    def goal(self) -> Goal:
        return self.aimed("ascent")


@dataclass(frozen=True)
class GradDiff(Descent):
    """GA, and the ordinary loss on as many retained texts."""

    name: ClassVar[str] = "graddiff"

    retain: Retain = "nll"

    def goal(self) -> Goal:
        return self.aimed("ascent")


@dataclass(frozen=True)
class GAKL(Descent):
    """GA, and the divergence from the reference model on as many retained texts."""

    name: ClassVar[str] = "ga-kl"

    retain: Retain = "kl"

    def goal(self) -> Goal:
        return self.aimed("ascent")


@dataclass(frozen=True)
class WGA(Descent):
    """GA in which a token counts p^β: what is unlikely already is left alone.

    Attributes:
        beta: β.
    """

    name: ClassVar[str] = "wga"

    retain: Retain = "nll"
    beta: float = 1.0

    def goal(self) -> Goal:
        return self.aimed("wga", beta=self.beta)
