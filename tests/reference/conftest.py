"""The federation that the tests of this folder redo by hand, and the way to its module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from of_three import Small, federation_of_three


@pytest.fixture(params=[False, True], ids=["plain", "norm"])
def small(request: pytest.FixtureRequest) -> Iterator[Small]:
    with federation_of_three(norm=request.param) as found:
        yield found


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Slow loops run in the main thread, whose kernels would wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
