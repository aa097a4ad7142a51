"""Samples with identities: the one shape in which data reaches clients, requests and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from letheon.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """A set of samples, decoded and in memory.

    Attributes:
        inputs: ``(n, …)`` model inputs.
        targets: ``(n, …)`` what the loss compares with (class labels, or token labels).
        ids: ``(n,)`` int64, unique over the whole task. Requests name samples by id, never by position.
    """

    inputs: Tensor
    targets: Tensor
    ids: Tensor

    def __post_init__(self) -> None:
        if not len(self.inputs) == len(self.targets) == len(self.ids):
            sizes = (len(self.inputs), len(self.targets), len(self.ids))
            raise DataError(f"data: inputs, targets and ids must be equally long, got {sizes}")

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Tensor) -> Data:
        """The samples at ``index`` (integer positions or a boolean mask)."""
        return Data(self.inputs[index], self.targets[index], self.ids[index])


def concat(parts: Sequence[Data]) -> Data:
    """All samples of ``parts``, in order. At least one part is needed."""
    if not parts:
        raise DataError("data: nothing to concatenate")
    return Data(
        torch.cat([p.inputs for p in parts]),
        torch.cat([p.targets for p in parts]),
        torch.cat([p.ids for p in parts]),
    )
