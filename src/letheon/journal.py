"""The state after each round on disk: atomic, checksummed, resumable."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import safetensors
import safetensors.torch
from torch import Tensor

from letheon import tree
from letheon.errors import JournalError
from letheon.files import sweep, write
from letheon.phase import State

log = logging.getLogger(__name__)

VERSION = "3"
KEPT = 2
_PARTS = ("params", "buffers", "memory", "scratch")


class Companion(Protocol):
    """Something that must survive with the state: a curve, a meter."""

    def dump(self) -> Any:
        """As plain data."""
        ...

    def load(self, data: Any) -> None:
        """The inverse of ``dump``."""
        ...


def save_state(state: State, metadata: Mapping[str, str]) -> bytes:
    """A state as the bytes of a safetensors file with a checksum over tensors and metadata."""
    named = {f"{part}/{name}": t for part in _PARTS for name, t in getattr(state, part).items()}
    # Cloned: safetensors refuses tensors that share memory. Named in order: it sorts them, and sums depend on order.
    tensors = {name: tensor.contiguous() for name, tensor in tree.clone(named).items()}
    told = {**metadata, "order": json.dumps(list(tensors))}
    return safetensors.torch.save(tensors, told | {"sha256": checksum(tensors, told)})


def load_state(path: Path) -> tuple[State, dict[str, str]]:
    """The inverse of ``save_state``.

    Raises:
        JournalError: the file is truncated, altered or not of this kind.
    """
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, safetensors.SafetensorError) as error:
        raise JournalError(f"{path}: truncated or not a state file ({error})") from error
    if metadata.pop("sha256", None) != checksum(tensors, metadata):
        raise JournalError(f"{path}: checksum differs; the file was altered after it was written")
    parts: dict[str, tree.Params] = {part: {} for part in _PARTS}
    for name in json.loads(metadata.pop("order")):
        part, _, rest = name.partition("/")
        parts[part][rest] = tensors[name]
    return State(**parts), metadata


def checksum(tensors: tree.Params, metadata: Mapping[str, str]) -> str:
    """Of a safetensors file: over its tensors and the rest of its header."""
    text = json.dumps(dict(metadata), sort_keys=True)
    return hashlib.sha256((tree.digest(tensors) + text).encode()).hexdigest()


class _Memory:
    """The memory of the kept rounds: what a round adds goes into one file, and is written once.

    A history grows by some tensors a round; written with every state it would be written as often as there are rounds.
    A tensor is named by its file and the digest of its content. A file goes when no kept round needs any of it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, str] = {}
        self._last: dict[str, tuple[Tensor, str]] = {}
        self._kept: deque[set[str]] = deque(maxlen=KEPT)

    def save(self, memory: Mapping[str, Tensor]) -> dict[str, str]:
        """``file/digest`` of each entry; a tensor that is the same object as in the round before is not read."""
        digests = {}
        for name, tensor in memory.items():
            last, digest = self._last.get(name, (None, ""))
            digests[name] = digest if last is tensor else tree.digest({"": tensor})
        new = {d: memory[n].detach().clone().contiguous() for n, d in digests.items() if d not in self._places}
        if new:
            file = hashlib.sha256(" ".join(sorted(new)).encode()).hexdigest()[:32]
            write(self._path(file), safetensors.torch.save(new))
            self._places |= dict.fromkeys(new, file)
        self._last = {name: (tensor, digests[name]) for name, tensor in memory.items()}
        return {name: f"{self._places[digest]}/{digest}" for name, digest in digests.items()}

    def load(self, named: Mapping[str, str]) -> tree.Params:
        """The inverse of ``save``. A damaged file is removed: it cannot be what is written next under its name.

        Raises:
            JournalError: a file is missing, or a tensor is not what its name says.
        """
        files = {file: self._read(file) for file in {place.partition("/")[0] for place in named.values()}}
        memory, digests, places = {}, {}, {}
        for name, place in named.items():
            file, _, digest = place.partition("/")
            tensor = files[file].get(digest)
            if tensor is None or tree.digest({"": tensor}) != digest:
                self._path(file).unlink(missing_ok=True)
                raise JournalError(f"{self._path(file)}: was altered after it was written")
            memory[name], digests[name], places[digest] = tensor, digest, file
        self._places = places
        self._last = {name: (tensor, digests[name]) for name, tensor in memory.items()}
        self._kept.append(set(files))
        return memory

    def _read(self, file: str) -> tree.Params:
        path = self._path(file)
        try:
            return safetensors.torch.load(path.read_bytes())
        except (OSError, safetensors.SafetensorError) as error:
            path.unlink(missing_ok=True)
            raise JournalError(f"{path}: missing or damaged ({error})") from error

    def sweep(self, named: Mapping[str, str]) -> None:
        """Forget what neither this round nor the kept one before it has."""
        self._kept.append({place.partition("/")[0] for place in named.values()})
        needed = set().union(*self._kept)
        self._places = {digest: file for digest, file in self._places.items() if file in needed}
        for path in self._folder.glob("memory-*.safetensors"):
            if path.stem.removeprefix("memory-") not in needed:
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget everything."""
        for path in self._folder.glob("memory-*.safetensors"):
            path.unlink(missing_ok=True)

    def _path(self, file: str) -> Path:
        return self._folder / f"memory-{file}.safetensors"


class DiskJournal:
    """Keeps the last rounds of one stage.

    Args:
        folder: created when the first round is saved.
        owner: digest of what is being run. A file of another owner is refused, and the round before it used.
        companions: saved and restored together with the state.
    """

    def __init__(self, folder: Path, *, owner: str, companions: Mapping[str, Companion] | None = None) -> None:
        self._folder = folder
        self._owner = owner
        self._companions = dict(companions or {})
        self._memory = _Memory(folder)
        sweep(folder)
        self._count = max((_number(path) for path in self._files()), default=0)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("round-*.safetensors"), reverse=True) if self._folder.is_dir() else []

    def load(self) -> tuple[str, int, State] | None:
        """The last good round, with the companions restored; files that are refused are named in the log."""
        for path in self._files():
            try:
                state, metadata = load_state(path)
                self._check_owner(path, metadata)
                memory = self._memory.load(json.loads(metadata["memory"]))
            except JournalError as error:
                log.warning("journal: %s; using the round before it", error)
                continue
            companions = json.loads(metadata["companions"])
            for name, companion in self._companions.items():
                companion.load(companions[name])
            self._count = _number(path)  # the next round is written over the ones that were refused
            log.info("journal: resumed after %s round %s (%s)", metadata["phase"], metadata["done"], path.name)
            return metadata["phase"], int(metadata["done"]), replace(state, memory=memory)
        return None

    def _check_owner(self, path: Path, metadata: Mapping[str, str]) -> None:
        if metadata.get("version") != VERSION or metadata.get("owner") != self._owner:
            raise JournalError(f"{path}: belongs to run {metadata.get('owner')}, not to {self._owner}")

    def save(self, phase: str, done: int, state: State) -> None:
        """Write the round under the next number, then drop the oldest."""
        companions = {name: companion.dump() for name, companion in self._companions.items()}
        memory = self._memory.save(state.memory)
        metadata = {
            "version": VERSION,
            "owner": self._owner,
            "phase": phase,
            "done": str(done),
            "companions": json.dumps(companions),
            "memory": json.dumps(memory),
        }
        content = save_state(replace(state, memory={}), metadata)
        write(self._folder / f"round-{self._count + 1:06d}.safetensors", content)
        self._count += 1
        for path in self._files()[KEPT:]:
            path.unlink(missing_ok=True)
        self._memory.sweep(memory)

    def clear(self) -> None:
        """Forget all rounds: the stage is complete and kept elsewhere."""
        for path in self._files():
            path.unlink(missing_ok=True)
        self._memory.clear()


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("round-")
    return int(digits) if digits.isdigit() else 0
