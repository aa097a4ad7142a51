"""What a descent watches to know when to stop: retained texts that it neither draws nor is reported on."""

from __future__ import annotations

from dataclasses import asdict, fields

import torch
from torch import Tensor

from letheon.client import finite
from letheon.data import Data
from letheon.errors import MethodError
from letheon.phase import seed_of
from letheon.tasks.base import Task
from letheon.tasks.text import TextTask
from letheon.text.descent import Look, Trained
from letheon.tree import Params
from letheon.work import Average

WATCHED = 64
"""Retained texts that are watched, at most."""
EPOCHS, KEPT = "epochs", "kept"
"""What is logged of a descent that was watched: ``(epochs + 1, 2)`` losses, and after how many epochs the model is."""
NAMES = tuple(field.name for field in fields(Look))


def split(task: TextTask, retained: Data) -> dict[str, Data]:
    """Texts to draw from (``retain``) and texts to watch (``watched``), which training never sees."""
    watched = chosen(task, retained.ids)
    return {"retain": retained.take(~watched), "watched": retained.take(watched)}


def chosen(task: TextTask, ids: Tensor) -> Tensor:
    """``(n,)`` bool: which of the retained samples are watched; see ``held_out``.

    Raises:
        MethodError: there are too few.
    """
    watched = held_out(task, ids)
    if not watched.any():
        free = int(task.unreported(ids).sum())
        raise MethodError(
            f"tuning.spare: {len(ids)} texts are retained, of which {free} are not among the questions that are "
            "reported; one to watch and another to draw are needed. Retain more, or leave it out."
        )
    return watched


def held_out(task: TextTask, ids: Tensor) -> Tensor:
    """``(n,)`` bool: retained samples to look at and not to learn from; none where there are too few.

    A tenth, ``WATCHED`` at most, of those that no reported question asks for: by a hash of their ids, so that they are
    the same at every request.
    """
    watched = torch.zeros(len(ids), dtype=torch.bool)
    free = torch.nonzero(task.unreported(ids))[:, 0].tolist() if len(ids) > 1 else []
    order = sorted(free, key=lambda row: seed_of(f"watched|{int(ids[row])}"))
    watched[order[: min(WATCHED, -(-len(free) // 10))]] = True
    return watched


def check(task: Task) -> None:
    """Before anything is trained: that there will be something to watch once all requests are served.

    Raises:
        MethodError: there will not.
    """
    if isinstance(task, TextTask):
        gone = {i for ids in (*task.requests(), task.withheld()) for i in ids}
        chosen(task, torch.tensor([i for i in task.learnt() if i not in gone], dtype=torch.int64))


def metrics_of(done: Trained) -> dict[str, float]:
    """The course of a descent as metrics of a reply; none if nothing was watched."""
    rows = [asdict(look) for look in done.epochs]
    told = {f"{name}_{epoch}": finite(value) for epoch, row in enumerate(rows) for name, value in row.items()}
    return told | {KEPT: float(done.kept)} if told else {}


def logged(done: Average) -> Params:
    """The inverse, as what a method logs.

    Raises:
        MethodError: several holders each had a course of their own.
    """
    if KEPT not in done.metrics:
        return {}
    if len(done.clients) > 1:
        raise MethodError(f"tuning.spare: {len(done.clients)} clients hold data of the request; it serves one holder")
    count = sum(name.startswith(f"{NAMES[0]}_") for name in done.metrics)
    rows = [[done.metrics[f"{name}_{epoch}"] for name in NAMES] for epoch in range(count)]
    return {EPOCHS: torch.tensor(rows, dtype=torch.float64), KEPT: torch.tensor(round(done.metrics[KEPT]))}
