"""Unlearning on a language model that is in memory or in a folder: one request after another, whoever trained it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from letheon import config, tree
from letheon.client import Client, load
from letheon.errors import ConfigError, MethodError, RequestError
from letheon.methods.base import Method
from letheon.methods.descent import Descent
from letheon.methods.language import LanguageMethod
from letheon.methods.watch import EPOCHS, KEPT
from letheon.middleware import Excluding, Quorum
from letheon.phase import State, drive, seed_of
from letheon.request import Request
from letheon.runtimes.alone import Alone
from letheon.stage import Logs
from letheon.tasks.base import buffers_of, params_of
from letheon.tasks.own import OwnTexts
from letheon.text.descent import Look, mean_loss
from letheon.text.encoding import Template, best
from letheon.text.language import LanguageModel
from letheon.text.pairs import Pair
from letheon.tree import Params

Rows = Iterable[Pair | Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Unlearnt:
    """What one request did.

    Attributes:
        loss_before: mean loss on the texts to forget, nats a token.
        loss_after: the same afterwards; random guessing is the logarithm of the vocabulary's size.
        retain_before: mean loss on all retained texts, those trained on and those watched; None without any.
        retain_after: the same afterwards.
        epochs: how the descent went, the start first; empty without ``tuning.spare``.
        kept: after how many epochs the model is; None without.
        memory: what the method has to know at the next request: hand it to it. Derived from what was forgotten.
    """

    loss_before: float
    loss_after: float
    retain_before: float | None
    retain_after: float | None
    epochs: tuple[Look, ...] = ()
    kept: int | None = None
    memory: Params = field(default_factory=dict)


def unlearn(
    model: nn.Module,
    tokenizer: Any,
    forget: Rows,
    retain: Rows = (),
    *,
    method: str | Method = "npo",
    template: Template | None = None,
    max_length: int = 512,
    memory: Mapping[str, torch.Tensor] | None = None,
    seed: int = 0,
) -> Unlearnt:
    """Make a causal language model of transformers forget some texts, in place.

    Args:
        model: on whatever device. Weights below float32 are converted while training, and back.
        tokenizer: the model's own, a fast one.
        forget: pairs, or mappings with ``question`` and ``answer``.
        retain: texts to keep, where the method has a term for them.
        method: a name as ``letheon methods`` lists them, with ``+cop`` to hold what earlier requests settled; or a
            method with its settings.
        template: how a pair becomes a text; None: the tokenizer's chat template if it has one, else ``plain``.
        max_length: tokens of a text.
        memory: of the request before: for a method with ``+cop``, whichever objective served it; else the method's own.
        seed: of every random draw.

    Raises:
        RequestError: nothing to forget, nothing to keep where the method needs it, or a text that is to be both.
        MethodError: the method is not for language models, nothing of the model may train, ``memory`` is there and the
            method would not keep it, COP cannot hold what this model would train, or the first epoch already cost
            more than ``tuning.spare``.
    """
    chosen = parsed(method) if isinstance(method, str) else method
    if not isinstance(chosen, LanguageMethod):
        raise MethodError(f"{chosen.name}: is not for language models; see `letheon methods`")
    pairs, kept = _pairs(forget), _pairs(retain)
    _check(pairs, kept)
    _check_served(chosen, model, kept)
    settled = chosen.inherited(memory or {})
    coarse = {name: p.dtype for name, p in model.named_parameters() if torch.finfo(p.dtype).bits < 32}
    before = {name: model.get_parameter(name).detach().clone() for name in coarse}
    with _in_full(model, coarse):
        task = OwnTexts(pairs, kept, best(tokenizer, template, max_length), LanguageModel(model))
        found = _unlearnt(task, chosen, settled, seed)
    if isinstance(chosen, Descent) and found.kept == 0:
        raise _refusal(found, chosen.tuning.spare)
    if not chosen.may_rest:
        _check_moved(model, coarse, before)
    return found


def parsed(text: str, settings: Sequence[str] = ()) -> Method:
    """A method by its name, ``NAME`` or ``NAME+cop``, with settings as in ``tuning.lr=1e-4``."""
    name, plus, what = text.partition("+")
    if plus and what != "cop":
        raise ConfigError(f"--method {text}: after + only cop can stand")
    table: dict[str, Any] = {"name": name} | ({"cop": {}} if plus else {})
    for setting in settings:
        table = config.override(table, setting)
    method: Method = config.build(Method, table, "--method")  # type: ignore[type-abstract]
    return method


def _unlearnt(task: OwnTexts, method: LanguageMethod, memory: Params, seed: int) -> Unlearnt:
    module, data = task.module, task.train()
    client = Client("holder", data, task)
    request = Request("samples", samples=tuple(range(len(task.forget))))
    client.admit(request)
    covered = request.mask(client.name, data)
    forget, retain = data.take(covered), data.take(~covered)
    before = [mean_loss(module, part) if len(part) else None for part in (forget, retain)]
    state = State(params_of(module), buffers_of(module), memory)
    federation = Excluding(Quorum(Alone(client, module)), request=request.id)
    logs = Logs()
    phases, place = method.phases(state, task), seed_of(f"{seed}|unlearn")
    state = drive(phases, federation, state, seed=place, observers=[logs.observe])
    load(module, state.params, state.buffers)
    after = [mean_loss(module, part) if len(part) else None for part in (forget, retain)]
    assert before[0] is not None
    assert after[0] is not None
    epochs = tuple(Look(*row) for rows in logs.entries.get(EPOCHS, ()) for row in rows)
    kept = next(iter(logs.entries.get(KEPT, ())), None)
    return Unlearnt(before[0], after[0], before[1], after[1], epochs, kept, state.memory)


def _pairs(rows: Rows) -> tuple[Pair, ...]:
    found = []
    for number, row in enumerate(rows, 1):
        if isinstance(row, Pair):
            found.append(row)
            continue
        if not isinstance(row, Mapping) or not isinstance(row.get("answer"), str):
            raise RequestError(f"row {number}: pairs, or mappings with question and answer, are wanted")
        found.append(Pair(str(row.get("question", "")), row["answer"]))
    return tuple(found)


def _check(forget: Sequence[Pair], retain: Sequence[Pair]) -> None:
    if not forget:
        raise RequestError("forget: is empty; there is nothing to unlearn")
    both = {(p.question, p.answer) for p in forget} & {(p.question, p.answer) for p in retain}
    if both:
        question = min(both)[0]
        raise RequestError(
            f"{len(both)} texts are to be both forgotten and retained, for instance {question[:60]!r}; take them out "
            "of what is retained"
        )


def _check_served(method: LanguageMethod, model: nn.Module, retain: Sequence[Pair]) -> None:
    if method.reads_retained and not retain:
        raise RequestError(
            f"retain: is empty, and {method.name} has a loss on texts to keep; give some (--retain FILE), or take a "
            "method without one"
        )
    adapts = isinstance(method, Descent) and method.lora is not None
    if not adapts and not any(p.requires_grad for p in model.parameters()):
        raise MethodError(
            "model: none of its parameters requires a gradient, so nothing can be unlearnt; call "
            "model.requires_grad_(), or train adapters (lora)"
        )


@contextmanager
def _in_full(model: nn.Module, coarse: Mapping[str, torch.dtype]) -> Iterator[None]:
    """The model in float32; afterwards, whatever happened, in the precision, mode and settings that it had."""
    mode, cached = model.training, getattr(model.config, "use_cache", None)
    try:
        model.float()
        yield
    finally:
        model.train(mode)
        model.config.use_cache = cached  # type: ignore[union-attr]
        for name, dtype in coarse.items():
            parameter = model.get_parameter(name)
            parameter.data = parameter.data.to(dtype)


def _check_moved(model: nn.Module, coarse: Mapping[str, torch.dtype], before: Params) -> None:
    """An update that rounding to the stored precision undid everywhere was none."""
    if before and all(torch.equal(model.get_parameter(name), tensor) for name, tensor in before.items()):
        told = ", ".join(list(before)[:3])
        raise MethodError(
            f"rounding to {next(iter(coarse.values()))} undid the whole update of {told} and the rest: nothing was "
            "unlearnt. Keep the model in float32, or raise tuning.lr."
        )


def _refusal(found: Unlearnt, spare: float | None) -> MethodError:
    rise = found.epochs[1].retained - found.epochs[0].retained
    return MethodError(
        f"nothing was unlearnt: the first epoch raised the loss on watched texts by {rise:.3g} nats a token, more "
        f"than tuning.spare = {spare:g}; lower tuning.lr, or raise tuning.spare"
    )


def digest(model: nn.Module) -> str:
    """Names a model by the content of its parameters."""
    return tree.digest({name: p.detach().cpu() for name, p in model.named_parameters()})
