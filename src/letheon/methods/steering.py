"""Methods that change what a layer holds or what a distribution says, not the likelihood of an answer alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from letheon.errors import ConfigError
from letheon.methods.descent import Descent, Retain
from letheon.text.goal import Goal


@dataclass(frozen=True)
class RMU(Descent):
    """Steer a block's output on texts to forget towards c·u, and hold it on retained ones (arXiv 2403.03218).

    Attributes:
        block: name of the block, for instance ``model.layers.7``.
        steer: c; it depends on the model.
        direction_seed: of the random direction u, which is fixed once.
    """

    name: ClassVar[str] = "rmu"

    retain: Retain = "stay"
    block: str = "model.layers.7"
    steer: float = 2.0
    direction_seed: int = 0

    def goal(self) -> Goal:
        if not self.block:
            raise ConfigError("rmu.block: missing; name a block of the model, for instance model.layers.7")
        return self.aimed("rmu", block=self.block, steer=self.steer, direction_seed=self.direction_seed)


@dataclass(frozen=True)
class UNDIAL(Descent):
    """Distil the reference model with the true token's logit lowered by β.

    Attributes:
        beta: β.
    """

    name: ClassVar[str] = "undial"

    beta: float = 10.0

    def goal(self) -> Goal:
        return self.aimed("undial", beta=self.beta)
