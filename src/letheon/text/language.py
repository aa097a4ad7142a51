"""Where language models come from and go to: the one file that imports transformers."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from letheon.errors import ConfigError, LetheonError
from letheon.text.adapters import Adapter
from letheon.text.encoding import PAD, Encoder, Template

START, END = "<s>", "</s>"


@dataclass(frozen=True)
class Small:
    """A Llama of this shape with random weights, and byte-level BPE trained on the task's own text.

    Attributes:
        vocabulary: tokens at most.
        width: d of the residual stream.
        mlp: of the hidden layer; None: 8/3 of the width, as Llama has it, in steps of 8.
        layers: blocks.
        heads: of attention.
    """

    vocabulary: int = 1024
    width: int = 128
    mlp: int | None = None
    layers: int = 4
    heads: int = 4

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "layers", "heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name}: must be at least 1, got {getattr(self, name)}")
        if self.vocabulary < 300:
            raise ConfigError(f"model.vocabulary: {self.vocabulary} does not hold the 256 bytes; 300 is the least")
        if self.width % (2 * self.heads):
            raise ConfigError(f"model.width: {self.width} is not an even multiple of {self.heads} heads")


@dataclass(frozen=True)
class Language:
    """Which model, and how it is talked to.

    Attributes:
        model: a folder in Hugging Face's layout or with a LoRA adapter, a name on the hub, or the shape of a small
            model to train anew.
        template: ``plain`` or ``chat``, see ``Encoder``.
        max_length: tokens of a text.
        checkpointing: recompute activations in the backward pass: less memory, more time, the same numbers.
    """

    model: str | Small = Small()
    template: Template = "plain"
    max_length: int = 512
    checkpointing: bool = False

    def encoder(self, texts: Iterable[str]) -> Encoder:
        """The model's tokenizer; of a small model, one trained on ``texts``."""
        tokenizer = trained(self.model.vocabulary, texts) if isinstance(self.model, Small) else loaded(self.model)
        return Encoder(tokenizer, self.template, self.max_length)

    def module(self, encoder: Encoder) -> LanguageModel:
        """The architecture; a small model draws its weights from torch's generator."""
        transformers = _transformers()
        if isinstance(self.model, Small):
            inner = transformers.LlamaForCausalLM(_llama(self.model, encoder.tokenizer, self.max_length))
        else:
            found = _config(self.model)
            inner = transformers.AutoModelForCausalLM.from_config(found, dtype=torch.float32)
        return LanguageModel(inner, checkpointing=self.checkpointing)

    def pretrained(self) -> LanguageModel | None:
        """The model with its weights, in float32; None for one that is to be trained anew."""
        if isinstance(self.model, Small):
            return None
        return LanguageModel(read_model(self.model), checkpointing=self.checkpointing)


class LanguageModel(nn.Module):
    """From token ids to logits: a causal language model of transformers as a module with one tensor in and out.

    Padding is on the right and never attended to, since attention is causal; its logits mean nothing.
    """

    def __init__(self, inner: nn.Module, *, checkpointing: bool = False) -> None:
        super().__init__()
        self.lm = inner
        self.lm.config.use_cache = False  # type: ignore[union-attr]
        if checkpointing:
            # Not re-entrant: otherwise frozen embeddings would cut the graph, and adapters get no gradient.
            inner.activation_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]

    def forward(self, ids: Tensor) -> Tensor:
        """``(n, length)`` ids, ``PAD`` on the right, to ``(n, longest, vocabulary)`` logits; none is all padding."""
        longest = int((ids != PAD).sum(1).max())
        logits: Tensor = self.lm(input_ids=ids[:, :longest].clamp_min(0)).logits
        return logits


def loaded(name: str) -> Any:
    """The tokenizer of a folder or a hub name; an adapter without one has its base's."""
    transformers = _transformers()
    adapter = Adapter.at(name)
    if adapter and not (adapter.folder / "tokenizer_config.json").is_file():
        with _telling(adapter.base, "tokenizer"):
            return transformers.AutoTokenizer.from_pretrained(_local(adapter.base), **_revision(adapter))
    with _telling(name, "tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(_local(name))


def read_model(name: str) -> Any:
    """A causal language model from a folder or the hub, in float32. Code from a repository is never run.

    A folder that holds a LoRA adapter gives its base with the adapter merged in: a plain model.
    """
    transformers = _transformers()
    adapter = Adapter.at(name)
    base = adapter.base if adapter else name
    with _telling(base, "model"), _quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            _local(base), dtype=torch.float32, **_revision(adapter)
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ConfigError(f"{base}: is an adapter on the hub; download it and name its folder")
    if adapter:
        adapter.merge(model)
    return model


def save_model(folder: Path, inner: Any, tokenizer: Any) -> None:
    """Write model and tokenizer in Hugging Face's layout: whole or not at all.

    Raises:
        ConfigError: the folder exists and is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: is not empty; choose another folder")
    temporary = folder.with_name(folder.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    with _quiet():
        inner.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    if folder.exists():
        folder.rmdir()
    temporary.rename(folder)


@lru_cache(maxsize=8)
def _trained(vocabulary: int, texts: tuple[str, ...]) -> Any:
    import tokenizers

    transformers = _transformers()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[START, END],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=START, eos_token=END)


def trained(vocabulary: int, texts: Iterable[str]) -> Any:
    """Byte-level BPE of at most so many tokens, a function of the texts: nothing is unknown to it."""
    return _trained(vocabulary, tuple(texts))


def _llama(small: Small, tokenizer: Any, max_length: int) -> Any:
    return _transformers().LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=small.width,
        intermediate_size=small.mlp or -(-8 * small.width // 24) * 8,
        num_hidden_layers=small.layers,
        num_attention_heads=small.heads,
        num_key_value_heads=small.heads,
        max_position_embeddings=max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )


def _config(name: str) -> Any:
    transformers = _transformers()
    adapter = Adapter.at(name)
    base = adapter.base if adapter else name
    with _telling(base, "configuration"):
        return transformers.AutoConfig.from_pretrained(_local(base), **_revision(adapter))


def _revision(adapter: Adapter | None) -> dict[str, str]:
    return {"revision": adapter.revision} if adapter and adapter.revision else {}


def _local(name: str) -> str:
    """A folder is named by its path; what looks like a path and is none is not looked for on the hub."""
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")):
        raise ConfigError(f"{name}: no such folder; a model's folder holds config.json, weights and a tokenizer")
    return name


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars: who runs this shows its own."""
    told = _transformers().utils.logging
    before = told.is_progress_bar_enabled()
    told.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            told.enable_progress_bar()


@contextmanager
def _telling(name: str, what: str) -> Iterator[None]:
    """Turns what a loader raises into a message that says what was looked for."""
    try:
        yield
    except (OSError, ValueError) as error:
        told = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"{name}: no {what} could be loaded from a folder or the hub ({told}); check the name, or download the "
            "model once and name its folder"
        ) from error


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise LetheonError("language models need transformers; install letheon[llm]") from error
    return transformers


@torch.no_grad()
def generated(
    module: LanguageModel, prompts: Sequence[Sequence[int]], *, new: int, stop: int | None
) -> list[list[int]]:
    """Greedy continuations of prompts of equal length: ``new`` tokens at most, without the end token."""
    device = next(module.parameters()).device
    ids = torch.tensor(prompts, dtype=torch.int64, device=device)
    length = ids.shape[1]
    inner: Any = module.lm
    inner.eval()
    # max_length and sampling settings that a checkpoint brings along do not count here.
    generation = _transformers().GenerationConfig(
        do_sample=False, max_new_tokens=new, use_cache=True, eos_token_id=stop, pad_token_id=0 if stop is None else stop
    )
    found = inner.generate(ids, attention_mask=torch.ones_like(ids), generation_config=generation)[:, length:].tolist()
    return [row[: row.index(stop)] if stop in row else row for row in found]
