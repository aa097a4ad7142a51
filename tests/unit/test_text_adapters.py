"""A LoRA adapter's folder as a model: merged as its settings say, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from letheon.errors import ConfigError
from letheon.runtimes.alone import threads
from letheon.tasks.base import params_of
from letheon.text import folders
from letheon.text.adapters import CONFIG, PICKLED, PREFIX, WEIGHTS, Adapter
from letheon.text.language import Language, LanguageModel, loaded, read_model, save_model
from text_toys import Toys, pair

TASK = Toys()
QUERY, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
PLAIN = {"peft_type": "LORA", "lora_alpha": 6, "r": 2, "revision": None, "bias": "none", "init_lora_weights": True}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, its output layer its own."""
    inner: Any = TASK.prototype().lm
    inner.config.tie_word_embeddings = False
    untied = type(inner)(inner.config)
    path = tmp_path_factory.mktemp("adapted") / "base"
    save_model(path, untied, TASK.encoder.tokenizer)
    return path


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def halves(model: Any, layer: str, rank: int = 2) -> dict[str, Tensor]:
    out, width = model.get_parameter(f"{layer}.weight").shape
    return {
        f"{PREFIX}{layer}.lora_A.weight": drawn(rank, width, seed=1),
        f"{PREFIX}{layer}.lora_B.weight": drawn(out, rank, seed=2),
    }


def written(folder: Path, base: Path, tensors: Mapping[str, Tensor], **settings: Any) -> Path:
    folder.mkdir()
    told = {**PLAIN, "base_model_name_or_path": str(base), **settings}
    (folder / CONFIG).write_text(json.dumps(told))
    save_file(dict(tensors), folder / WEIGHTS)
    return folder


@pytest.mark.parametrize(
    ("settings", "query", "down"),
    [
        ({}, 3.0, 6 / 4),
        ({"use_rslora": True}, 6 / 2**0.5, 3.0),
        ({"alpha_pattern": {"down_proj": 8}}, 3.0, 2.0),
        ({"alpha_pattern": {r"layers\.0\..*": 8, "proj": 99}}, 4.0, 6 / 4),
    ],
    ids=["plain", "rslora", "a layer's own alpha", "by pattern"],
)
def test_a_weight_gains_s_b_a(base: Path, tmp_path: Path, settings: Any, query: float, down: float) -> None:
    plain = read_model(str(base))
    tensors = halves(plain, QUERY) | halves(plain, DOWN, rank=4)
    found = read_model(str(written(tmp_path / "adapter", base, tensors, **settings)))
    for layer, scale in ((QUERY, query), (DOWN, down)):
        a, b = (tensors[f"{PREFIX}{layer}.lora_{half}.weight"].double() for half in "AB")
        wanted = plain.get_parameter(f"{layer}.weight").double() + scale * b @ a
        assert torch.allclose(found.get_parameter(f"{layer}.weight").double(), wanted, atol=1e-5)
    same = [name for name, p in plain.named_parameters() if torch.equal(p, found.get_parameter(name))]
    assert len(same) == len(list(plain.named_parameters())) - 2
    assert all(p.dtype == torch.float32 and p.requires_grad for p in found.parameters())


def test_a_layer_that_was_trained_whole_takes_its_place(base: Path, tmp_path: Path) -> None:
    plain = read_model(str(base))
    head = drawn(*plain.lm_head.weight.shape, seed=3)
    folder = written(tmp_path / "adapter", base, {f"{PREFIX}lm_head.weight": head, **halves(plain, QUERY)})
    assert torch.equal(read_model(str(folder)).lm_head.weight, head)


def test_an_adapter_is_a_model_wherever_one_is_named(base: Path, tmp_path: Path) -> None:
    folder = written(tmp_path / "adapter", base, halves(read_model(str(base)), QUERY))
    merged = LanguageModel(read_model(str(folder)))
    language = Language(str(folder), max_length=96)
    given = language.pretrained()
    assert given is not None
    assert all(torch.equal(p, given.get_parameter(n)) for n, p in merged.named_parameters())
    assert params_of(language.module(TASK.encoder)).keys() == params_of(merged).keys()
    assert loaded(str(folder)).get_vocab() == loaded(str(base)).get_vocab()
    rows = tmp_path / "forget.jsonl"
    rows.write_text(json.dumps({"question": pair(0).question, "answer": pair(0).answer}))
    settings = ["tuning.lr=1e-3", "tuning.epochs=1"]
    told = folders.unlearn(folders.Asked(str(folder), rows), tmp_path / "out", method="ga", settings=settings)
    alone = folders.unlearn(folders.Asked(str(base), rows), tmp_path / "other", method="ga", settings=settings)
    assert told["forget_before"] != alone["forget_before"]
    assert not (tmp_path / "out" / CONFIG).exists()
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "an adapter with use_dora is not merged here; merge it where it was trained"),
        ({"peft_type": "LOHA"}, "peft_type LOHA"),
        ({"bias": "all"}, "bias all"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights pissa"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"base_model_name_or_path": None}, "names no base model"),
        ({"base_model_name_or_path": "./nowhere"}, "./nowhere: no such folder"),
    ],
)
def test_what_is_not_plain_lora_is_refused_by_name(base: Path, tmp_path: Path, settings: Any, message: str) -> None:
    folder = written(tmp_path / "adapter", base, halves(read_model(str(base)), QUERY), **settings)
    with pytest.raises(ConfigError, match=message):
        read_model(str(folder))


def test_an_adapter_of_another_model_or_damaged_is_refused(base: Path, tmp_path: Path) -> None:
    pairs = halves(read_model(str(base)), QUERY)
    a, b = pairs
    cases: dict[str, tuple[dict[str, Tensor], str]] = {
        "half": ({a: pairs[a]}, "q_proj has only one half"),
        "wide": ({a: drawn(2, 7, seed=1), b: pairs[b]}, r"q_proj is \(32, 7\), and .* has \(32, 32\)"),
        "strange": ({name.replace("q_proj", "qkv"): t for name, t in pairs.items()}, "qkv.weight is nowhere in"),
        "dora": ({**pairs, f"{PREFIX}{QUERY}.lora_magnitude_vector": drawn(32, seed=1)}, "magnitude_vector is nowhere"),
    }
    for name, (tensors, message) in cases.items():
        with pytest.raises(ConfigError, match=message):
            read_model(str(written(tmp_path / name, base, tensors)))
    (tmp_path / "half" / WEIGHTS).write_bytes(b"cut")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_model(str(tmp_path / "half"))
    (tmp_path / "half" / WEIGHTS).rename(tmp_path / "half" / PICKLED)
    with pytest.raises(ConfigError, match="a pickle can run code and is not opened"):
        read_model(str(tmp_path / "half"))
    (tmp_path / "half" / CONFIG).write_text("{")
    with pytest.raises(ConfigError, match="no adapter's settings"):
        read_model(str(tmp_path / "half"))


def test_a_tied_weight_is_not_changed_at_both_ends(tmp_path: Path) -> None:
    inner: Any = TASK.prototype().lm
    save_model(tmp_path / "tied", inner, TASK.encoder.tokenizer)
    folder = written(tmp_path / "adapter", tmp_path / "tied", halves(inner, "lm_head"))
    with pytest.raises(ConfigError, match=r"lm_head.weight is tied to model.embed_tokens.weight"):
        read_model(str(folder))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft 0.21 uses what transformers 5 is about to rename
@pytest.mark.parametrize("kind", ["llama", "rslora", "embedding", "gpt2"])
def test_the_merged_model_is_the_one_that_peft_makes(base: Path, tmp_path: Path, kind: str) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed; what it writes is written by hand elsewhere")
    import transformers

    where = base
    if kind == "gpt2":
        shape = transformers.GPT2Config(
            vocab_size=320, bos_token_id=0, eos_token_id=1, n_positions=96, n_embd=32, n_layer=2, n_head=2
        )
        where = tmp_path / "gpt2"
        save_model(where, transformers.GPT2LMHeadModel(shape), TASK.encoder.tokenizer)
    targets = {"gpt2": ["c_attn", "c_fc"], "embedding": ["embed_tokens", "v_proj"]}.get(kind, ["q_proj", "down_proj"])
    own: dict[str, Any] = {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"down_proj": 5}}
    settings = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=targets,
        use_rslora=kind == "rslora",
        init_lora_weights=False,
        fan_in_fan_out=kind == "gpt2",
        **(own if "down_proj" in targets else {}),
    )
    model = peft.get_peft_model(read_model(str(where)), settings)
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=kind == "embedding")
    found, wanted = read_model(str(tmp_path / "adapter")), model.merge_and_unload()
    assert Adapter.at(str(tmp_path / "adapter")) is not None
    plain = read_model(str(where))
    moved = 0
    for name, parameter in wanted.named_parameters():
        assert torch.allclose(found.get_parameter(name), parameter, atol=1e-6), name
        moved += not torch.equal(parameter, plain.get_parameter(name))
    assert moved == (3 if kind == "embedding" else 4)
