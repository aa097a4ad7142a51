"""TFR-Net on a model in memory and from folder to folder: what it hands on, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from letheon.errors import ConfigError, MethodError
from letheon.methods.descent import Cop
from letheon.methods.preference import NPO
from letheon.methods.tfr import TFRNet
from letheon.runtimes.alone import threads
from letheon.text import folders
from letheon.text.descent import Recipe
from letheon.text.language import save_model
from letheon.text.pairs import Pair
from letheon.text.trajectory import Suppression
from letheon.unlearning import digest, unlearn
from text_toys import Toys, opened, pair, written

TASK = Toys()
FORGET, OTHER, KEPT = [pair(8), pair(9)], [pair(10), pair(11)], [pair(i) for i in range(8)]
METHOD = TFRNet(Suppression(hot=0.7, level=0.7, first_budget=0.05, budget=0.05))
SETTINGS = [f"suppression.{name}" for name in ("hot=0.7", "level=0.7", "first_budget=0.05", "budget=0.05")]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights: closing channels does not need one that has learnt."""
    path, module = tmp_path_factory.mktemp("own") / "model", TASK.prototype()
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    save_model(path, module.lm, TASK.encoder.tokenizer)
    return path


def asked(model: Path, forget: list[Pair], place: Path) -> folders.Asked:
    files = [written(place / f"{name}.jsonl", pairs) for name, pairs in (("forget", forget), ("retain", KEPT))]
    return folders.Asked(str(model), files[0], files[1])


def test_a_second_request_goes_on_from_the_memory_of_the_first_in_memory_and_in_folders(
    folder: Path, tmp_path: Path
) -> None:
    model, tokenizer = opened(folder)
    first = unlearn(model, tokenizer, FORGET, KEPT, method=METHOD)
    after_first = digest(model)
    assert after_first != digest(opened(folder)[0])
    second = unlearn(model, tokenizer, OTHER, KEPT, method=METHOD, memory=first.memory)
    one, two = tmp_path / "one", tmp_path / "two"
    told = folders.unlearn(asked(folder, FORGET, tmp_path), one, method="tfr-net", settings=SETTINGS)
    assert (told["model"], told["dimensions_left"], told["epochs"]) == (after_first, None, [])
    told = folders.unlearn(asked(one, OTHER, tmp_path), two, method="tfr-net", settings=SETTINGS)
    assert told["model"] == digest(model)
    assert len(told["before"]) == 1
    state, said = folders.load_state(two / folders.MEMORY)
    assert said["method"] == "tfr-net"
    assert all(torch.equal(state.memory[name], tensor) for name, tensor in second.memory.items())


def test_memory_of_another_model_or_method_is_refused_and_left_memory_is_told(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = tmp_path / "one"
    folders.unlearn(asked(folder, FORGET, tmp_path), one, method="tfr-net", settings=SETTINGS)
    request = asked(one, OTHER, tmp_path)
    with caplog.at_level(logging.WARNING):
        folders.unlearn(request, tmp_path / "npo", method="npo", settings=["tuning.epochs=1", "tuning.lr=0.001"])
    assert "holds what tfr-net remembers of earlier requests; npo does not carry it on" in caplog.text
    assert not (tmp_path / "npo" / folders.MEMORY).exists()
    model, _ = opened(one)
    model.lm_head.weight.data += 1
    model.save_pretrained(one)
    with pytest.raises(ConfigError, match=r"letheon-memory\.safetensors: is of another model"):
        folders.unlearn(request, tmp_path / "two", method="tfr-net", settings=SETTINGS)


def test_memory_of_cop_and_of_tfr_net_are_not_taken_for_each_other(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tokenizer = opened(folder)
    npo = NPO(tuning=Recipe(epochs=1, lr=1e-3), cop=Cop(rank=2))
    settled = unlearn(model, tokenizer, FORGET, KEPT, method=npo).memory
    with pytest.raises(MethodError, match=r"memory: npo/cop/.* is nothing of tfr-net's"):
        unlearn(model, tokenizer, OTHER, KEPT, method=METHOD, memory=settled)
    gates = unlearn(model, tokenizer, FORGET, KEPT, method=METHOD).memory
    with pytest.raises(MethodError, match="is nothing of COP's"):
        unlearn(model, tokenizer, OTHER, KEPT, method=npo, memory=gates)
    folders.unlearn(asked(folder, FORGET, tmp_path), tmp_path / "npo", method="npo+cop", settings=["tuning.lr=0.001"])
    with caplog.at_level(logging.WARNING):
        folders.unlearn(asked(tmp_path / "npo", OTHER, tmp_path), tmp_path / "tfr", method="tfr-net", settings=SETTINGS)
    assert "COP settled earlier requests, and tfr-net alone does not leave them as they are" in caplog.text


def test_without_retained_texts_it_suppresses_and_opens_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tokenizer = opened(folder)
    before = digest(model)
    with caplog.at_level(logging.WARNING):
        found = unlearn(model, tokenizer, FORGET, method=METHOD)
    assert "nothing is opened again" in caplog.text
    assert found.retain_after is None
    assert digest(model) != before


def test_weights_of_half_precision_keep_it_and_a_request_without_effect_is_no_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tokenizer = opened(folder)
    model.bfloat16()
    before = digest(model)
    idle = TFRNet(Suppression(first_budget=0.0, budget=0.05))
    with caplog.at_level(logging.WARNING):
        unlearn(model, tokenizer, FORGET, KEPT, method=idle)
    assert digest(model) == before
    assert "suppressed nothing" in caplog.text
    unlearn(model, tokenizer, FORGET, KEPT, method=METHOD)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert digest(model) != before


def test_the_default_budget_of_a_narrow_model_is_refused_before_it_is_touched(folder: Path) -> None:
    model, tokenizer = opened(folder)
    before = digest(model)
    with pytest.raises(MethodError, match="less than one"):
        unlearn(model, tokenizer, FORGET, KEPT, method="tfr-net")
    assert digest(model) == before
