"""Samples with identities."""

from __future__ import annotations

import pytest
import torch

from letheon.data import Data, concat
from letheon.errors import DataError


def data(ids: list[int]) -> Data:
    numbers = torch.tensor(ids)
    return Data(numbers.float().unsqueeze(1), numbers % 3, numbers)


def test_samples_are_taken_by_position_or_by_mask_and_keep_their_ids() -> None:
    taken = data([10, 11, 12]).take(torch.tensor([2, 0]))
    assert taken.ids.tolist() == [12, 10]
    assert taken.inputs.flatten().tolist() == [12.0, 10.0]
    assert taken.targets.tolist() == [0, 1]
    assert data([10, 11, 12]).take(torch.tensor([False, True, False])).ids.tolist() == [11]
    assert len(data([10]).take(torch.tensor([], dtype=torch.int64))) == 0


def test_parts_are_joined_in_order() -> None:
    assert concat([data([3]), data([1, 2])]).ids.tolist() == [3, 1, 2]
    with pytest.raises(DataError, match="nothing to concatenate"):
        concat([])


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(DataError, match=r"equally long, got \(2, 3, 2\)"):
        Data(torch.zeros(2, 1), torch.zeros(3), torch.zeros(2))
