"""States on disk: complete, checked, and in the order in which they were."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from letheon import tree
from letheon.errors import JournalError
from letheon.files import write
from letheon.journal import KEPT, DiskJournal, load_state, save_state
from letheon.phase import State

PARTS = ("params", "buffers", "memory", "scratch")


def state(value: float = 1.0) -> State:
    return State(
        {"z.weight": torch.full((3, 2), value), "a.bias": torch.tensor([value, -0.0])},
        {"n.running_mean": torch.tensor([value]), "n.count": torch.tensor(7)},
        {"basis/of/x": torch.ones(2, dtype=torch.float64)},
        {"log": torch.tensor([float("nan"), float("inf")]), "empty": torch.empty(0, 3)},
    )


def same(a: State, b: State) -> bool:
    pairs = [(getattr(a, part), getattr(b, part)) for part in PARTS]
    return all(list(x) == list(y) and tree.digest(x) == tree.digest(y) for x, y in pairs)


class Kept:
    """A companion that holds one value."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def dump(self) -> Any:
        return self.value

    def load(self, data: Any) -> None:
        self.value = data


def journal(folder: Path, owner: str = "me", **companions: Kept) -> DiskJournal:
    return DiskJournal(folder, owner=owner, companions=companions)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_state_comes_back_bit_for_bit_and_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(save_state(state(), {"owner": "me"}))
    loaded, metadata = load_state(path)
    assert same(loaded, state())
    assert metadata == {"owner": "me"}
    assert loaded.buffers["n.count"].shape == ()


def test_tensors_that_share_memory_or_are_views_are_saved(tmp_path: Path) -> None:
    shared = torch.arange(12.0).reshape(3, 4)
    given = State({"w": shared, "row": shared[1], "turned": shared.T}, memory={"start": shared})
    (tmp_path / "x").write_bytes(save_state(given, {}))
    assert same(load_state(tmp_path / "x")[0], given)


def test_a_parameter_that_wants_a_gradient_is_saved(tmp_path: Path) -> None:
    given = State({"w": torch.ones(2, requires_grad=True)})
    (tmp_path / "x").write_bytes(save_state(given, {}))
    assert not load_state(tmp_path / "x")[0].params["w"].requires_grad


def test_no_bit_can_be_flipped_unnoticed(tmp_path: Path) -> None:
    content = save_state(state(), {"owner": "me", "companions": json.dumps({"curve": [1.5]})})
    path, rng = tmp_path / "x", random.Random(0)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(JournalError, match=r"truncated or not a state file|checksum differs"):
            load_state(path)


def test_no_part_of_a_file_passes_for_the_whole(tmp_path: Path) -> None:
    content, path = save_state(state(), {"owner": "me"}), tmp_path / "x"
    for size in (*range(0, len(content), 7), len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(JournalError):
            load_state(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(JournalError):
        load_state(path)
    with pytest.raises(JournalError):
        load_state(tmp_path / "missing")


def test_a_safetensors_file_of_another_origin_is_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file({"params/w": torch.ones(2)}, tmp_path / "x")
    with pytest.raises(JournalError, match="checksum differs"):
        load_state(tmp_path / "x")


def test_the_last_round_is_found_again_with_its_companions(tmp_path: Path) -> None:
    written = journal(tmp_path, curve=Kept([1, 2.5, "x"]), meter=Kept({"a": None}))
    written.save("train", 1, state(1.0))
    written.save("train", 2, state(2.0))
    curve, meter = Kept(), Kept()
    saved = journal(tmp_path, curve=curve, meter=meter).load()
    assert saved is not None
    assert saved[:2] == ("train", 2)
    assert same(saved[2], state(2.0))
    assert (curve.value, meter.value) == ([1, 2.5, "x"], {"a": None})


def test_an_empty_journal_has_nothing(tmp_path: Path) -> None:
    assert journal(tmp_path / "none").load() is None
    assert not (tmp_path / "none").exists()


def test_only_the_last_rounds_are_kept_and_none_after_clearing(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    for done in range(1, 6):
        kept.save("train", done, state())
    assert rounds(tmp_path) == [f"round-{i:06d}.safetensors" for i in (4, 5)]
    assert KEPT == 2
    kept.clear()
    assert list(tmp_path.iterdir()) == []


def rounds(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("round-*"))


def memories(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("memory-*")}


def grown(entries: int) -> State:
    """A state with a history of so many entries."""
    return State({"w": torch.tensor([float(entries)])}, memory={f"h/{i}": ENTRIES[i] for i in range(entries)})


ENTRIES = [torch.full((5,), float(i)) for i in range(6)]


def test_a_history_that_grows_is_written_once_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def noted(path: Path, content: bytes) -> None:
        written.append(path.name)
        write(path, content)

    monkeypatch.setattr("letheon.journal.write", noted)
    kept = journal(tmp_path)
    for done in range(1, 6):
        kept.save("train", done, grown(done))
    assert len([name for name in written if name.startswith("memory-")]) == 5
    again = journal(tmp_path)
    saved = again.load()
    assert saved is not None
    assert same(saved[2], grown(5))
    again.save("train", 6, replace(saved[2], memory=saved[2].memory | {"h/5": ENTRIES[5]}))
    assert len([name for name in written if name.startswith("memory-")]) == 6
    saved = journal(tmp_path).load()
    assert saved is not None
    assert list(saved[2].memory) == [f"h/{i}" for i in range(6)]
    assert tree.digest(saved[2].memory) == tree.digest(grown(6).memory)


def test_what_memory_has_dropped_is_off_the_disk_when_no_kept_round_has_it(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    kept.save("train", 1, grown(1))
    kept.save("train", 2, grown(4))
    assert len(memories(tmp_path)) == 2  # what a round adds goes into one file
    kept.save("train", 3, grown(1))
    assert len(memories(tmp_path)) == 2  # the round before has them still
    resumed = journal(tmp_path)
    assert resumed.load() is not None
    resumed.save("train", 4, grown(1))
    assert len(memories(tmp_path)) == 1
    resumed.clear()
    assert list(tmp_path.iterdir()) == []


def altered(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize("harm", [Path.unlink, altered])
def test_a_round_whose_memory_is_damaged_is_skipped_and_written_anew(
    harm: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = journal(tmp_path)
    kept.save("train", 1, grown(1))
    before = memories(tmp_path)
    kept.save("train", 2, grown(2))
    (latest,) = memories(tmp_path) - before
    harm(tmp_path / latest)
    again = journal(tmp_path)
    saved = again.load()
    assert saved is not None
    assert same(saved[2], grown(1))
    assert latest in warnings(caplog)[0]
    again.save("train", 2, grown(2))
    saved = journal(tmp_path).load()
    assert saved is not None
    assert same(saved[2], grown(2))


def test_a_tensor_whose_file_is_gone_is_written_again(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    kept.save("train", 1, grown(1))
    kept.save("train", 2, grown(3))
    kept.save("train", 3, grown(1))
    kept.save("train", 4, grown(1))
    kept.save("train", 5, grown(3))
    saved = journal(tmp_path).load()
    assert saved is not None
    assert same(saved[2], grown(3))


def test_equal_tensors_are_kept_once_under_all_their_names(tmp_path: Path) -> None:
    given = State({"w": torch.ones(1)}, memory={name: torch.arange(4.0) for name in "abc"})
    journal(tmp_path).save("train", 1, given)
    saved = journal(tmp_path).load()
    assert saved is not None
    assert same(saved[2], given)


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_damaged_round_is_named_skipped_and_written_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written = journal(tmp_path)
    written.save("train", 1, state(1.0))
    written.save("train", 2, state(2.0))
    second = tmp_path / "round-000002.safetensors"
    damaged(second)
    again = journal(tmp_path)
    saved = again.load()
    assert saved is not None
    assert (saved[1], same(saved[2], state(1.0))) == (1, True)
    assert len(warnings(caplog)) == 1
    assert str(second) in warnings(caplog)[0]
    again.save("train", 2, state(2.5))
    assert load_state(second)[0].params["z.weight"][0, 0] == 2.5
    assert (tmp_path / "round-000001.safetensors").exists()  # the good round did not make way for the damaged one


def test_when_every_round_is_damaged_all_are_named_and_new_ones_are_still_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = journal(tmp_path)
    for done in (1, 2, 3):
        written.save("train", done, state())
    for name in rounds(tmp_path):
        damaged(tmp_path / name)
    again = journal(tmp_path)
    assert again.load() is None
    assert len(warnings(caplog)) == 2
    again.save("train", 1, state(5.0))
    saved = journal(tmp_path).load()
    assert saved is not None
    assert same(saved[2], state(5.0))


def test_rounds_of_another_owner_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine, curve = journal(tmp_path, curve=Kept("mine")), Kept("untouched")
    mine.save("train", 1, state(1.0))
    journal(tmp_path, "somebody", curve=Kept("theirs")).save("train", 9, state(9.0))
    assert journal(tmp_path, "third", curve=curve).load() is None
    assert curve.value == "untouched"
    saved = journal(tmp_path, curve=curve).load()
    assert saved is not None
    assert (saved[1], curve.value) == (1, "mine")
    assert "belongs to run somebody, not to me" in caplog.text


def test_a_round_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("letheon.journal.VERSION", "0")
    journal(tmp_path).save("train", 1, state())
    monkeypatch.undo()
    assert journal(tmp_path).load() is None


def test_a_round_that_cannot_be_written_leaves_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = journal(tmp_path)
    for done in (1, 2):
        kept.save("train", done, state(float(done)))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(JournalError, match="No space left on device"):
        kept.save("train", 3, state(3.0))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    kept.save("train", 3, state(3.0))
    saved = journal(tmp_path).load()
    assert saved is not None
    assert saved[1] == 3
