"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from letheon.errors import JournalError


def write(path: Path, content: bytes) -> None:
    """Write under a temporary name, fsync, rename. On any failure the old file, if any, is untouched.

    Raises:
        JournalError: the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise JournalError(
            f"{path}: cannot be written ({error.strerror}); what was there before is kept. "
            "Free space or choose another --out, then run again with --resume."
        ) from error


def write_json(path: Path, content: Any) -> None:
    """JSON with sorted keys, one value a line; NaN and infinities are refused."""
    write(path, (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
