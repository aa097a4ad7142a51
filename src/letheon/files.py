"""Files that are there whole or not at all, and JSON that says whether it is still what was written."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from letheon.errors import ConfigError, JournalError


def write(path: Path, content: bytes) -> None:
    """Write under a temporary name, fsync, rename. On any failure the old file, if any, is untouched.

    Raises:
        JournalError: the disk is full or the folder cannot be written.
    """
    writer = f"{platform.node()}.{os.getpid()}.{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}.{writer}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise JournalError(
            f"{path}: cannot be written ({_cause(path, error)}); what was there before is kept. Free space or make it "
            "writable, and repeat the command, a run with --resume; or choose another --out."
        ) from error


def _cause(path: Path, error: OSError) -> str:
    in_the_way = next((parent for parent in path.parents if parent.is_file()), None)
    return f"{in_the_way} is a file, not a folder" if in_the_way else error.strerror or str(error)


def sweep(folder: Path) -> None:
    """Remove what writers on this machine had begun in ``folder`` when they were killed."""
    for path in folder.glob(".*.tmp"):
        name, *numbers = path.name.removesuffix(".tmp").rsplit(".", 2)
        is_ours = name.endswith(f".{platform.node()}") and all(number.isdigit() for number in numbers)
        if is_ours and not _is_alive(int(numbers[0])):
            path.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While open, no other process can be alone in ``folder``; a process that dies, however, is no longer in it.

    Raises:
        ConfigError: another process is.
        JournalError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / ".lock").open("ab")
    except OSError as error:
        raise JournalError(f"{folder}: cannot be written ({_cause(folder, error)}); make it writable") from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"{folder}: another run is at work there; wait until it has ended, or stop it and repeat the command"
            ) from error
        yield


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_json(path: Path, content: Any) -> None:
    """JSON with sorted keys, one value a line; NaN and infinities are refused."""
    write(path, _text(content).encode())


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """JSON with a checksum of itself under the key ``sha256``."""
    write_json(path, {**content, "sha256": _seal(content)})


def read_sealed(path: Path) -> dict[str, Any]:
    """The inverse of ``write_sealed``.

    Raises:
        JournalError: the file cannot be read, is incomplete, or was altered.
    """
    try:
        content = json.loads(path.read_text())
        is_whole = isinstance(content, dict) and content.pop("sha256", None) == _seal(content)
    except (OSError, ValueError) as error:
        raise JournalError(f"{path}: unreadable or incomplete ({error})") from error
    if not is_whole:
        raise JournalError(f"{path}: checksum differs; the file was altered after it was written")
    return dict(content)


def _text(content: Any) -> str:
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(content).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
