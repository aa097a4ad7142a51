"""Losses that come from preference optimisation: bounded, unlike ascent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from letheon.errors import ConfigError
from letheon.methods.descent import Descent
from letheon.text.goal import Goal

Retain = Literal["", "nll", "kl", "stay"]


def _positive(name: str, value: float) -> float:
    if value <= 0:
        raise ConfigError(f"{name}: must be positive, got {value}")
    return value


@dataclass(frozen=True)
class NPO(Descent):
    """Negative preference optimisation (arXiv 2404.05868), on the sum of a text's losses.

    Attributes:
        beta: β; towards 0 it becomes ascent.
    """

    name: ClassVar[str] = "npo"

    beta: float = 0.1

    def goal(self) -> Goal:
        beta = _positive("npo.beta", self.beta)
        return Goal("npo", self.retain, self.forget_weight, self.retain_weight, {"beta": beta})


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
        options = {"beta": _positive("simnpo.beta", self.beta), "margin": self.margin}
        return Goal("simnpo", self.retain, self.forget_weight, self.retain_weight, options)


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
        beta = _positive("dpo.beta", self.beta)
        return Goal("dpo", self.retain, self.forget_weight, self.retain_weight, {"beta": beta})
