"""Texts as they pass through a model while COP looks at what enters its layers."""

from __future__ import annotations

import torch
from torch import Tensor

from letheon.cop import Batch, damped
from letheon.data import Data
from letheon.text.encoding import lengths, trimmed

ROWS = 16
"""Texts that pass at once."""


def passes(data: Data, device: torch.device) -> list[Batch]:
    """All texts: prompts count, padding does not, and the prefix that all of them share counts once."""
    shared, chunks = _shared(data.inputs), torch.arange(len(data)).split(ROWS)
    return [_batch(data.take(rows), device=device, shared=shared, count=len(data)) for rows in chunks]


def first(data: Data, device: torch.device) -> Batch:
    """The first text alone, to see which layers it meets."""
    return _batch(data.take(torch.arange(1)), device=device)


def _batch(data: Data, *, device: torch.device, shared: int = 0, count: int = 1) -> Batch:
    inputs, _ = trimmed(data.inputs, data.targets)
    counted = torch.arange(inputs.shape[1]) < lengths(inputs)[:, None]
    return Batch(inputs.to(device), damped(counted.double(), first=shared, factor=1.0 / count))


def _shared(inputs: Tensor) -> int:
    """Tokens that all texts begin with: the template's."""
    same = (inputs == inputs[:1]).all(0)
    return int(same.long().cumprod(0).sum()) if len(inputs) > 1 else 0
