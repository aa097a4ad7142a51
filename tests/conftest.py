"""Fixtures that several kinds of tests share, and the way to the toys beside this file."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Machines are shared: how long an example takes says nothing.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _undo_log() -> Iterator[None]:
    """Commands and drivers set what Letheon logs; that belongs to a process, which here many of them share."""
    log = logging.getLogger("letheon")
    handlers, level, propagate = list(log.handlers), log.level, log.propagate
    yield
    log.handlers, log.propagate = handlers, propagate
    log.setLevel(level)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The directory that LETHEON_DATA names; the test is skipped without it, or fails if LETHEON_REQUIRE_DATA=1."""
    root = os.environ.get("LETHEON_DATA", "")
    if root and Path(root).is_dir():
        return Path(root)
    reason = f"LETHEON_DATA is {root!r}, which is no directory" if root else "LETHEON_DATA is not set"
    if os.environ.get("LETHEON_REQUIRE_DATA") == "1":
        pytest.fail(f"{reason}, and LETHEON_REQUIRE_DATA=1 asks for the data")
    pytest.skip(reason)
