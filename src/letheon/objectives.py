"""Named losses: what a client may be asked to minimise besides its task's own loss.

Code does not travel, names do: ``Work.options["objective"]`` is a name in ``OBJECTIVES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from letheon.errors import LetheonError
from letheon.registry import did_you_mean
from letheon.training import Loss

Objective = Callable[[Tensor, Tensor, Loss], Tensor]
"""From outputs, targets and the task's loss to a scalar."""


def task(outputs: Tensor, targets: Tensor, task_loss: Loss) -> Tensor:
    """The task's own loss."""
    return task_loss(outputs, targets)


def ascent(outputs: Tensor, targets: Tensor, task_loss: Loss) -> Tensor:
    """Minus the task's loss: unbounded, so whoever minimises it needs a limit of another kind."""
    return -task_loss(outputs, targets)


def uce(outputs: Tensor, targets: Tensor, task_loss: Loss) -> Tensor:
    """FedOSD's unlearning cross-entropy, −log(1 − p_y/2): from ln 2 at p_y = 1 down to 0 at p_y = 0, batch mean.

    Args:
        outputs: ``(n, classes)`` logits.
        targets: ``(n,)`` labels that are to become unlikely.
        task_loss: not used.
    """
    probabilities = F.softmax(outputs, dim=1).gather(1, targets[:, None])
    return -torch.log1p(-probabilities / 2).mean()  # log1p: p_y/2 is lost in 1 − p_y/2 once it is below 1e-7


OBJECTIVES: Mapping[str, Objective] = {"task": task, "ascent": ascent, "uce": uce}


def objective(name: str, task_loss: Loss) -> Loss:
    """The loss called ``name``, for a task with ``task_loss``.

    Raises:
        LetheonError: there is none.
    """
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise LetheonError(f"unknown objective {name!r}{did_you_mean(name, OBJECTIVES)} Known objectives: {known}")
    chosen = OBJECTIVES[name]
    return lambda outputs, targets: chosen(outputs, targets, task_loss)
