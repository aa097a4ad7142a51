"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from letheon import files
from letheon.errors import JournalError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_overwritten_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x"
    for content in (b"first", b"second", b""):
        files.write(path, content)
        assert path.read_bytes() == content
    assert names(path.parent) == ["x"]


def test_content_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        order.append("sync")
        sync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        order.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", renamed)
    files.write(tmp_path / "x", b"1")
    assert order == ["sync", "rename", "sync"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["fsync", "write", "open"])
def test_on_any_failure_the_old_file_stays_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, call: str
) -> None:
    files.write(tmp_path / "x", b"old")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(error, os.strerror(error))

    class Failing:
        def __init__(self, path: Path) -> None:
            self._file = open(path, "wb")  # noqa: SIM115 (closed by __exit__)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        write = fail

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    elif call == "open":
        monkeypatch.setattr(Path, "open", fail)
    else:
        monkeypatch.setattr(Path, "open", lambda self, mode: Failing(self))
    with pytest.raises(JournalError, match=rf"x: cannot be written \({os.strerror(error)}\).*kept.*--resume"):
        files.write(tmp_path / "x", b"new content")
    monkeypatch.undo()
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_a_folder_that_is_a_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    for path in (tmp_path / "a" / "x", tmp_path / "a" / "x" / "y"):
        with pytest.raises(JournalError, match=rf"cannot be written \({tmp_path / 'a'} is a file, not a folder\)"):
            files.write(path, b"")


def test_threads_that_write_the_same_file_do_not_mix(tmp_path: Path) -> None:
    contents = [bytes([i]) * 100_000 for i in range(8)]
    threads = [threading.Thread(target=files.write, args=(tmp_path / "x", content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "x").read_bytes() in contents
    assert names(tmp_path) == ["x"]


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        pass
    return process.pid


def test_only_what_dead_writers_of_this_machine_left_is_swept(tmp_path: Path) -> None:
    here, dead = platform.node(), dead_pid()
    stale = f".round-000001.safetensors.{here}.{dead}.7.tmp"
    kept = [
        f".x.{here}.{os.getpid()}.7.tmp",  # a live writer
        f".x.elsewhere.{dead}.7.tmp",  # another machine in the same folder
        ".someone-elses.tmp",
        "x",
    ]
    for name in (stale, *kept):
        (tmp_path / name).write_bytes(b"1")
    files.sweep(tmp_path)
    assert names(tmp_path) == sorted(kept)
    files.sweep(tmp_path / "not there")


def test_json_is_sorted_and_refuses_what_is_no_number(tmp_path: Path) -> None:
    files.write_json(tmp_path / "x.json", {"b": 1, "a": [0.1]})
    assert list(json.loads((tmp_path / "x.json").read_text())) == ["a", "b"]
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(tmp_path / "y.json", float("nan"))
    assert names(tmp_path) == ["x.json"]


CONTENT = {"b": [0.1, 1e300, -0.0, 5], "a": {"nested": (1, "é")}, "none": None}


def test_sealed_json_comes_back_as_it_was(tmp_path: Path) -> None:
    files.write_sealed(tmp_path / "x.json", CONTENT)
    assert files.read_sealed(tmp_path / "x.json") == json.loads(json.dumps(CONTENT))


def test_any_changed_byte_of_a_sealed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.write_sealed(path, CONTENT)
    whole = path.read_bytes()
    for at in range(len(whole) - 1):
        if chr(whole[at]).isspace():
            continue  # another space is the same content
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(JournalError, match=r"x\.json: (checksum differs|unreadable or incomplete)"):
            files.read_sealed(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{}", b'{"sha256": "0"}', b"\xff", bytes(100)])
def test_what_is_no_sealed_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(JournalError):
        files.read_sealed(tmp_path / "x.json")
    with pytest.raises(JournalError, match="unreadable"):
        files.read_sealed(tmp_path / "missing.json")
