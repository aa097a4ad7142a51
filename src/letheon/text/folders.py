"""Unlearning from folder to folder: what a model's folder says of the requests that it has served."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from torch import Tensor, nn

from letheon import __version__, config, cop
from letheon.errors import ConfigError
from letheon.files import read_sealed, write, write_sealed
from letheon.journal import load_state, save_state
from letheon.methods.base import Method
from letheon.methods.descent import Descent
from letheon.phase import State
from letheon.runtimes.alone import threads as using
from letheon.text.encoding import Template
from letheon.text.language import loaded, read_model, save_model
from letheon.text.pairs import Pair, read_pairs
from letheon.unlearning import Unlearnt, digest, parsed
from letheon.unlearning import unlearn as unlearn_in_memory

log = logging.getLogger(__name__)

RECORD = "letheon.json"
BASES = "letheon-cop.safetensors"
MEMORY = "letheon-memory.safetensors"
"""Of a method that remembers something else than bases."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be forgotten of which model.

    Attributes:
        model: a folder or a hub name.
        forget: file of pairs.
        retain: file of pairs, or None.
        template: ``chat``, ``plain``, or None for the tokenizer's own if it has one.
        max_length: tokens of a text.
        device: where to compute.
    """

    model: str
    forget: Path
    retain: Path | None = None
    template: str | None = None
    max_length: int = 512
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.template is not None and self.template not in get_args(Template):
            raise ConfigError(f"--template {self.template}: use {' or '.join(get_args(Template))}")


def unlearn(
    asked: Asked, out: Path, *, method: str, settings: Sequence[str] = (), seed: int = 0, threads: int = 1
) -> dict[str, Any]:
    """Serve one request and write the model, what the method keeps of it, and a record; returns the record.

    Raises:
        ConfigError: ``out`` is not empty, or the model's folder holds bases or memory that are not its own.
    """
    chosen = parsed(method, settings)
    forget, retain = read_pairs(asked.forget), read_pairs(asked.retain) if asked.retain else ()
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: is not empty; choose another folder")
    model, tokenizer = read_model(asked.model), loaded(asked.model)
    served = _served(asked.model)
    memory = _memory(Path(asked.model), model, chosen) if served else {}
    with using(threads):
        found = unlearn_in_memory(
            model.to(asked.device),
            tokenizer,
            forget,
            retain,
            method=chosen,
            template=asked.template,  # type: ignore[arg-type]
            max_length=asked.max_length,
            memory=memory,
            seed=seed,
        )
    save_model(out, model.cpu(), tokenizer)
    record = _record(model, chosen, found, forget, retain) | {"seed": seed, "before": [*served]}
    record |= _room(chosen, found.memory)
    if found.memory:
        _keep(out, chosen, found.memory, model, [*(r["request"] for r in served), record["request"]])
    write_sealed(out / RECORD, record)
    return record


def _record(
    model: nn.Module, method: Method, found: Unlearnt, forget: Sequence[Pair], retain: Sequence[Pair]
) -> dict[str, Any]:
    return {
        "model": digest(model),
        "request": request_id(forget),
        "method": config.plain(method),
        "n_forget": len(forget),
        "n_retain": len(retain),
        "letheon": __version__,
        "forget_before": found.loss_before,
        "forget_after": found.loss_after,
        "retain_before": found.retain_before,
        "retain_after": found.retain_after,
        "epochs": [asdict(look) for look in found.epochs],
        "kept": found.kept,
    }


def _room(method: Method, memory: Mapping[str, Tensor]) -> dict[str, float | None]:
    """What COP leaves to later requests, and how much it holds of this one, as shares; None without it."""
    if not isinstance(method, Descent) or not memory:
        return {"dimensions_left": None, "energy_held": None}
    bases = method.bases(State({}, memory=dict(memory)))
    return {"dimensions_left": cop.least_free(bases), "energy_held": cop.least_held(bases)}


def request_id(pairs: Sequence[Pair]) -> str:
    """Names a request by the content of its texts, and tells nothing of them."""
    texts = sorted(f"{pair.question}\0{pair.answer}" for pair in pairs)
    return hashlib.sha256("\1".join(texts).encode()).hexdigest()[:16]


def _served(model: str) -> list[dict[str, Any]]:
    """The records of the requests that a model has served, the first one first."""
    path = Path(model) / RECORD
    if not path.is_file():
        return []
    record = read_sealed(path)
    own = {key: record[key] for key in ("request", "model", "method")}
    return [*record["before"], own]


def _memory(folder: Path, model: nn.Module, method: Method) -> dict[str, Tensor]:
    """What was settled before, for the method at hand; refused if it is of another model."""
    if (folder / BASES).is_file():
        if isinstance(method, Descent) and method.cop:
            bases, _ = cop.load(folder / BASES, model=digest(model))
            return method.remembered(cop.to_params(bases))
        log.warning(
            "%s: COP settled earlier requests, and %s alone does not leave them as they are, nor for later ones; use "
            "%s+cop to hold them",
            *(folder, method.name, method.name if isinstance(method, Descent) else "an objective"),
        )
    if (folder / MEMORY).is_file():
        state, told = load_state(folder / MEMORY)
        if told.get("method") == method.name:
            if told.get("model") != digest(model):
                raise ConfigError(f"{folder / MEMORY}: is of another model; remove it to begin anew")
            return state.memory
        log.warning(
            "%s: holds what %s remembers of earlier requests; %s does not carry it on, and later requests begin anew",
            *(folder, told.get("method"), method.name),
        )
    return {}


def _keep(
    folder: Path, method: Method, memory: Mapping[str, Tensor], model: nn.Module, requests: Sequence[str]
) -> None:
    if not isinstance(method, Descent):
        told = {"method": method.name, "model": digest(model)}
        write(folder / MEMORY, save_state(State({}, memory=dict(memory)), told))
        return
    assert method.cop is not None
    bases = method.bases(State({}, memory=dict(memory)))
    spaces, own = {space: (space,) for space in bases}, requests[-cop.served(bases) :]
    cop.save(folder / BASES, bases, cop.Provenance(digest(model), tuple(own), spaces, asdict(method.cop)))
