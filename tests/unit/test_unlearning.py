"""Unlearning on a model in memory and from folder to folder, with one's own texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import letheon
from letheon import cop
from letheon.cli import main
from letheon.client import Client, load
from letheon.errors import ConfigError, JournalError, MethodError, RequestError, RoundError
from letheon.journal import load_state
from letheon.methods.alkn import ALKN, USED
from letheon.methods.ascent import GA
from letheon.methods.base import fedavg
from letheon.methods.descent import Cop, Lora
from letheon.methods.noise import Noise
from letheon.methods.preference import NPO
from letheon.methods.steering import RMU
from letheon.phase import Phase, drive
from letheon.runtimes.alone import Alone, threads
from letheon.text import folders
from letheon.text.descent import Recipe, mean_loss
from letheon.text.language import LanguageModel, read_model, save_model
from letheon.text.pairs import Pair
from letheon.training import Local
from letheon.unlearning import digest, parsed, unlearn
from text_toys import NAMES, Toys, opened, pair, written

TASK = Toys()
FORGET, OTHER, KEPT = [pair(8), pair(9)], [pair(10), pair(11)], [pair(i) for i in range(8)]
SETTINGS = ("tuning.lr=0.002", "tuning.epochs=8", "cop.energy=1.0", "cop.rank=88", "cop.rank_total=99")
FAST = Recipe(lr=2e-3, epochs=8, batch_size=2)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small only lose by more, above all where other work waits for the cores."""
    with threads(1):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt all twelve pairs, in a folder."""
    module: Any = TASK.prototype()
    client = Client("holder", TASK.train(), TASK)
    local = Local(optimizer="adamw", lr=3e-3, batch_size=4, epochs=40)
    start = TASK.init(0)
    state = drive([Phase("train", fedavg(local, "all"))], Alone(client, module), start, seed=0)
    load(module, state.params, state.buffers)
    path = tmp_path_factory.mktemp("own") / "model"
    save_model(path, module.lm, TASK.encoder.tokenizer)
    return path


def test_a_model_in_memory_forgets_in_place_and_is_otherwise_as_it_was(folder: Path) -> None:
    model, tokenizer = opened(folder)
    model.eval()
    cached = model.config.use_cache
    found = unlearn(model, tokenizer, FORGET, KEPT, method=NPO(tuning=FAST, retain="nll"))
    assert found.loss_before < 0.8 < found.loss_after
    assert found.retain_after is not None
    assert found.retain_after < found.loss_after
    assert not model.training
    assert model.config.use_cache == cached
    assert all(p.requires_grad for p in model.parameters())
    again, _ = opened(folder)
    letheon.unlearn(again, tokenizer, [{"question": p.question, "answer": p.answer} for p in FORGET], KEPT,
                    method=NPO(tuning=FAST, retain="nll"))
    assert digest(again) == digest(model)


def test_with_cop_the_next_request_leaves_the_first_ones_answers(folder: Path) -> None:
    model, tokenizer = opened(folder)
    method = GA(tuning=FAST, cop=Cop(energy=1.0, rank=88, rank_total=10**6))
    first = unlearn(model, tokenizer, FORGET, KEPT, method=method)
    module, data = LanguageModel(model), TASK.encoder.data(FORGET)
    settled = mean_loss(module, data)
    second = unlearn(model, tokenizer, OTHER, KEPT, method=method, memory=first.memory)
    assert second.loss_after > second.loss_before + 0.05
    assert mean_loss(module, data) == pytest.approx(settled, abs=1e-3)
    free, _ = opened(folder)
    unlearn(free, tokenizer, FORGET, KEPT, method=GA(tuning=FAST))
    unlearn(free, tokenizer, OTHER, KEPT, method=GA(tuning=FAST))
    assert abs(mean_loss(LanguageModel(free), data) - settled) > 0.05


def test_weights_of_half_precision_are_trained_in_full(folder: Path) -> None:
    model, tokenizer = opened(folder)
    model.bfloat16()
    found = unlearn(model, tokenizer, FORGET, KEPT, method=GA(tuning=FAST))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert found.loss_after > found.loss_before + 0.5
    assert mean_loss(LanguageModel(model), TASK.encoder.data(FORGET)) > found.loss_before + 0.5


def test_an_update_that_rounding_undoes_is_an_error_that_names_the_tensors(folder: Path) -> None:
    model, tokenizer = opened(folder)
    model.bfloat16()
    with pytest.raises(MethodError, match=r"bfloat16 undid the whole update of model\.embed_tokens\.weight"):
        unlearn(model, tokenizer, FORGET, KEPT, method=GA(tuning=Recipe(lr=1e-9, epochs=1)))


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (([], KEPT, "npo"), RequestError, "nothing to unlearn"),
        ((FORGET, KEPT + FORGET[:1], "npo"), RequestError, "1 texts are to be both forgotten and retained"),
        ((["text"], KEPT, "npo"), RequestError, "row 1: pairs, or mappings"),
        ((FORGET, KEPT, Noise()), MethodError, "noise: is not for language models"),
        ((FORGET, KEPT, "npo+cup"), ConfigError, r"after \+ only cop"),
        ((FORGET, KEPT, "npoo"), ConfigError, "did you mean 'npo'"),
        ((FORGET, [], "graddiff"), RequestError, "retain: is empty, and graddiff has a loss on texts to keep"),
        ((FORGET, [], "alkn"), RequestError, "retain: is empty, and alkn has a loss on texts to keep"),
    ],
)
def test_what_cannot_be_unlearnt_is_refused(folder: Path, asked: Any, error: type[Exception], message: str) -> None:
    model, tokenizer = opened(folder)
    before, (forget, retain, method) = digest(model), asked
    with pytest.raises(error, match=message):
        unlearn(model, tokenizer, forget, retain, method=method)
    assert digest(model) == before


def test_what_fails_on_the_way_leaves_a_model_as_it_was(folder: Path) -> None:
    model, tokenizer = opened(folder)
    model.bfloat16().eval()
    before, cached = digest(model), model.config.use_cache
    with pytest.raises(RoundError, match="0 modules called"):
        unlearn(model, tokenizer, FORGET, KEPT, method=RMU(block="nowhere", tuning=FAST))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert digest(model) == before
    assert not model.training
    assert model.config.use_cache == cached


def test_a_model_of_which_nothing_may_train_is_refused_but_for_adapters(folder: Path) -> None:
    model, tokenizer = opened(folder)
    model.requires_grad_(False)
    with pytest.raises(MethodError, match=r"none of its parameters requires a gradient.*requires_grad_\(\)"):
        unlearn(model, tokenizer, FORGET, KEPT, method=GA(tuning=FAST))
    found = unlearn(model, tokenizer, FORGET, KEPT, method=GA(tuning=FAST, lora=Lora(rank=4)))
    assert found.loss_after > found.loss_before + 0.05
    assert not any(p.requires_grad for p in model.parameters())


def test_what_is_settled_holds_whichever_objective_comes_next(folder: Path) -> None:
    """The memory is of inputs: it is not tied to the objective that served the request."""
    model, tokenizer = opened(folder)
    whole = Cop(energy=1.0, rank=88, rank_total=10**6)
    first = unlearn(model, tokenizer, FORGET, KEPT, method=NPO(tuning=FAST, cop=whole))
    module, data = LanguageModel(model), TASK.encoder.data(FORGET)
    settled, before = mean_loss(module, data), digest(model)
    with pytest.raises(MethodError, match=r"ga alone would not leave it; use ga\+cop"):
        unlearn(model, tokenizer, OTHER, KEPT, method=GA(tuning=FAST), memory=first.memory)
    with pytest.raises(MethodError, match="lm_head is nothing of COP's"):
        unlearn(model, tokenizer, OTHER, KEPT, method="ga+cop", memory={"lm_head": torch.zeros(1)})
    assert digest(model) == before
    second = unlearn(model, tokenizer, OTHER, KEPT, method=GA(tuning=FAST, cop=whole), memory=first.memory)
    assert digest(model) != before
    assert mean_loss(module, data) == pytest.approx(settled, abs=1e-3)
    assert {name.partition("/")[0] for name in second.memory} == {"ga"}
    assert max(int(t.max()) for name, t in second.memory.items() if name.endswith("/requests")) == 1


def test_a_first_epoch_that_costs_too_much_is_an_error_and_leaves_the_model_alone(folder: Path) -> None:
    model, tokenizer = opened(folder)
    model.bfloat16()
    before = digest(model)
    method = GA(tuning=Recipe(lr=1e-2, epochs=3, batch_size=2, spare=1e-4))
    with pytest.raises(MethodError, match="nothing was unlearnt: the first epoch raised the loss on watched texts"):
        unlearn(model, tokenizer, FORGET, KEPT, method=method)
    assert digest(model) == before
    with pytest.raises(MethodError, match="0 texts are retained"):
        unlearn(model, tokenizer, FORGET, method=method)


def test_the_course_of_a_watched_descent_is_shown_and_kept(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments(folder, tmp_path, "watched", FORGET, "--set", "tuning.spare=9.0"))
    assert ended.value.code in (0, None)
    shown = capsys.readouterr().out
    record = json.loads((tmp_path / "watched" / folders.RECORD).read_text())
    assert record["kept"] == 8
    assert len(record["epochs"]) == 9
    assert record["epochs"][0]["forget"] == pytest.approx(record["forget_before"])
    assert record["epochs"][8]["forget"] == pytest.approx(record["forget_after"])
    line = next(line for line in shown.splitlines() if "kept" in line)
    assert line.split() == ["8", *(f"{record['epochs'][8][name]:.3f}" for name in ("forget", "retained")), "kept"]


def test_settings_are_those_of_an_experiments_file() -> None:
    method = parsed("ga+cop", ["tuning.lr=0.01", "cop.rank=8", "lora.rank=4"])
    assert method == GA(tuning=Recipe(lr=0.01), cop=Cop(rank=8), lora=Lora(rank=4))


def arguments(folder: Path, tmp_path: Path, out: str, pairs: list[Pair], *more: str) -> list[str]:
    forget, retain = written(tmp_path / f"{out}.jsonl", pairs), written(tmp_path / "keep.jsonl", KEPT)
    words = ["unlearn", "--model", str(folder), "--forget", str(forget), "--retain", str(retain)]
    tuning = [word for value in SETTINGS for word in ("--set", value)]
    return [*words, "--out", str(tmp_path / out), "--method", "ga+cop", *tuning, *more]


def bases(folder: Path) -> list[cop.Basis]:
    found, _ = cop.load(folder / folders.BASES, model=digest(read_model(str(folder))))
    return list(found.values())


def test_a_folder_serves_one_request_after_another(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments(folder, tmp_path, "one", FORGET), "--json"])
    assert ended.value.code in (0, None)
    told = json.loads(capsys.readouterr().out)
    assert told["forget_before"] < 0.8 < told["forget_after"]
    assert told["before"] == []
    with pytest.raises(SystemExit):
        main(arguments(tmp_path / "one", tmp_path, "two", OTHER))
    shown = capsys.readouterr().out
    assert "forget" in shown
    record = json.loads((tmp_path / "two" / folders.RECORD).read_text())
    assert [row["request"] for row in record["before"]] == [told["request"]]
    assert f"COP: {100 * record['dimensions_left']:.1f} % of the dimensions are left" in " ".join(shown.split())
    models = [LanguageModel(read_model(str(tmp_path / name))) for name in ("one", "two")]
    settled = [mean_loss(model, TASK.encoder.data(FORGET)) for model in models]
    assert settled[0] == pytest.approx(settled[1], abs=0.02)
    for name in NAMES:
        assert name not in (tmp_path / "two" / folders.RECORD).read_text()


def test_a_folder_whose_settled_requests_a_method_does_not_hold_says_so(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = folders.Asked(str(folder), written(tmp_path / "f.jsonl", FORGET))
    settings = ["tuning.lr=0.002", "tuning.epochs=1"]
    first = folders.unlearn(asked, tmp_path / "one", method="ga+cop", settings=settings)
    next_one = folders.Asked(str(tmp_path / "one"), written(tmp_path / "g.jsonl", OTHER))
    caplog.clear()
    second = folders.unlearn(next_one, tmp_path / "two", method="npo+cop", settings=settings)
    assert "COP settled earlier requests" not in caplog.text
    for record, name in ((first, "one"), (second, "two")):
        held = bases(tmp_path / name)
        assert record["dimensions_left"] == pytest.approx(min(1 - b.rank / len(b.vectors) for b in held))
        assert record["energy_held"] == pytest.approx(min(b.held for b in held))
    assert second["dimensions_left"] < first["dimensions_left"]
    third = folders.unlearn(next_one, tmp_path / "three", method="npo", settings=settings)
    assert third["dimensions_left"] is None
    assert "COP settled earlier requests, and npo alone does not leave them as they are" in caplog.text
    assert "use npo+cop to hold them" in caplog.text


def test_bases_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    asked = folders.Asked(str(folder), written(tmp_path / "f.jsonl", FORGET), written(tmp_path / "k.jsonl", KEPT))
    settings = ["tuning.lr=0.002", "tuning.epochs=1"]
    folders.unlearn(asked, tmp_path / "one", method="ga+cop", settings=settings)
    model, tokenizer = opened(tmp_path / "one")
    model.model.norm.weight.data *= 1.01
    save_model(tmp_path / "other", model, tokenizer)
    for name in (folders.RECORD, folders.BASES):
        (tmp_path / "other" / name).write_bytes((tmp_path / "one" / name).read_bytes())
    moved = folders.Asked(str(tmp_path / "other"), asked.forget, asked.retain)
    with pytest.raises(JournalError, match="belongs to model"):
        folders.unlearn(moved, tmp_path / "two", method="ga+cop", settings=settings)
    with pytest.raises(ConfigError, match="not empty"):
        folders.unlearn(asked, tmp_path / "one", method="ga+cop", settings=settings)
    with pytest.raises(ConfigError, match="use plain or chat"):
        folders.Asked(str(folder), asked.forget, template="chatty")


def test_alkns_masks_go_from_request_to_request_in_memory(folder: Path) -> None:
    model, tokenizer = opened(folder)
    method = ALKN(tuning=FAST)
    first = unlearn(model, tokenizer, FORGET, KEPT, method=method)
    assert first.loss_after > first.loss_before + 0.1
    assert first.memory
    assert all(name.startswith(USED) for name in first.memory)
    with pytest.raises(MethodError, match=r"alkn/used/lm\.model\.embed_tokens\.weight is nothing of COP's"):
        unlearn(model, tokenizer, OTHER, KEPT, method=GA(tuning=FAST), memory=first.memory)
    with pytest.raises(MethodError, match="ga/cop/x is nothing of alkn's"):
        unlearn(model, tokenizer, OTHER, KEPT, method=method, memory={"ga/cop/x": torch.zeros(1)})
    again, _ = opened(folder)
    unlearn(again, tokenizer, FORGET, KEPT, method=method)
    second = unlearn(model, tokenizer, OTHER, KEPT, method=method, memory=first.memory)
    unlearn(again, tokenizer, OTHER, KEPT, method=method)
    assert digest(again) != digest(model)  # without its memory a request does not shun what the first one used
    assert all(bool((second.memory[name] & bits == bits).all()) for name, bits in first.memory.items())


def test_alkns_masks_lie_beside_the_model_that_they_belong_to(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [written(tmp_path / f"{at}.jsonl", pairs) for at, pairs in enumerate((FORGET, OTHER, KEPT))]
    settings = ["tuning.lr=0.002", "tuning.epochs=4"]
    folders.unlearn(folders.Asked(str(folder), files[0], files[2]), tmp_path / "one", method="alkn", settings=settings)
    after = folders.Asked(str(tmp_path / "one"), files[1], files[2])
    record = folders.unlearn(after, tmp_path / "two", method="alkn", settings=settings)
    assert len(record["before"]) == 1
    assert record["dimensions_left"] is None
    kept = [load_state(tmp_path / name / folders.MEMORY)[0].memory for name in ("one", "two")]
    assert all(bool((kept[1][name] & bits == bits).all()) for name, bits in kept[0].items())
    model, tokenizer = opened(folder)
    shape = {"method": ALKN(tuning=Recipe(lr=0.002, epochs=4)), "template": "plain"}
    first = unlearn(model, tokenizer, FORGET, KEPT, **shape)  # type: ignore[arg-type]
    unlearn(model, tokenizer, OTHER, KEPT, memory=first.memory, **shape)  # type: ignore[arg-type]
    assert digest(model) == record["model"]
    assert caplog.text == ""
    (tmp_path / "two" / folders.MEMORY).write_bytes((tmp_path / "one" / folders.MEMORY).read_bytes())
    with pytest.raises(ConfigError, match="is of another model"):
        folders.unlearn(folders.Asked(str(tmp_path / "two"), *files[1:]), tmp_path / "no", method="alkn")
    folders.unlearn(after, tmp_path / "held", method="ga+cop", settings=settings)
    folders.unlearn(folders.Asked(str(tmp_path / "held"), *files[1:]), tmp_path / "end", method="alkn")
    assert "COP settled earlier requests, and alkn alone does not leave them as they are" in caplog.text
    assert "use an objective+cop to hold them" in caplog.text


def test_a_models_folder_is_whole_or_not_there(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = opened(folder)

    def fails(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokenizer, "save_pretrained", fails)
    with pytest.raises(OSError, match="No space"):
        save_model(tmp_path / "out", model, tokenizer)
    assert not (tmp_path / "out").exists()
