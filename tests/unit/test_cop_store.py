"""Bases on disk: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from letheon import __version__
from letheon.cop import Basis, Moments, Provenance, load, save, to_params
from letheon.errors import JournalError

SPACES = {"a": ("a", "b"), "c": ("c",)}
TOLD = Provenance("0123456789abcdef", ("req-1", "req-2"), SPACES, {"energy": 0.99, "rank": None})


def bases() -> dict[str, Basis]:
    tokens = torch.randn(9, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first = Basis.from_moments(Moments(tokens.mT @ tokens, 9, "unit", torch.float32))
    return {"a": first.extended(Moments(tokens.mT @ tokens, 9, "unit", torch.float32), request=1), "c": Basis.empty(5)}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    saved = bases()
    save(tmp_path / "deep" / "cop.safetensors", saved, TOLD)
    found, told = load(tmp_path / "deep" / "cop.safetensors", model=TOLD.model, spaces=SPACES)
    assert told == TOLD
    assert told.code == __version__
    assert found.keys() == saved.keys()
    assert all(torch.equal(tensor, to_params(saved)[name]) for name, tensor in to_params(found).items())
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["cop.safetensors"]


def test_other_models_and_other_spaces_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cop.safetensors"
    save(path, bases(), TOLD)
    with pytest.raises(JournalError, match="belongs to model 0123456789ab, not to fedcba"):
        load(path, model="fedcba")
    with pytest.raises(JournalError, match="the model at hand has"):
        load(path, model=TOLD.model, spaces={"a": ("a",), "c": ("c",)})


@pytest.mark.parametrize("part", ["tensor", "provenance"])
def test_altered_files_are_refused(tmp_path: Path, part: str) -> None:
    path = tmp_path / "cop.safetensors"
    save(path, bases(), TOLD)
    with safetensors.safe_open(str(path), framework="pt") as file:
        told = file.metadata()
    tensors = safetensors.torch.load_file(path)
    if part == "tensor":
        tensors["cop/a/values"][0] += 1
    else:
        told["provenance"] = json.dumps(json.loads(told["provenance"]) | {"requests": ["req-1", "req-9"]})
    path.write_bytes(safetensors.torch.save(tensors, told))
    with pytest.raises(JournalError, match="altered"):
        load(path, model=TOLD.model)


def test_truncated_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cop.safetensors"
    save(path, bases(), TOLD)
    path.write_bytes(path.read_bytes()[:-7])
    for name in ("cop.safetensors", "none.safetensors"):
        with pytest.raises(JournalError, match="missing, truncated or not"):
            load(tmp_path / name, model=TOLD.model)


def test_provenance_must_cover_the_bases(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bases are of 2 requests, provenance names 1"):
        save(tmp_path / "x", bases(), replace(TOLD, requests=("req-1",)))
    with pytest.raises(ValueError, match="but provenance of"):
        save(tmp_path / "x", {"a": bases()["a"]}, TOLD)
    assert not (tmp_path / "x").exists()
