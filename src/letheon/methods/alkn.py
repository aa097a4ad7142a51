"""ALKN: tune towards the texts to forget, where retained texts are not harmed, and go the same way backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from letheon import tree
from letheon.client import Client, client_work, finite
from letheon.data import Data
from letheon.errors import ConfigError, DataError, MethodError
from letheon.methods.language import LanguageMethod
from letheon.phase import Phase, State
from letheon.tasks.base import Task, params_of
from letheon.tasks.text import TextTask
from letheon.text.descent import Recipe
from letheon.text.negation import Localization, localize, packed, unpacked
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Reply, Work, average

USED = "alkn/used/"
"""Memory: for each parameter, the entries that the requests so far have used, eight to a byte."""
UPDATE, MASK = "update/", "used/"


@dataclass(frozen=True)
class ALKN(LanguageMethod):
    """Adaptive Localization of Knowledge Negation (Wuerkaixi et al., ICML 2025): new = start − c·(tuned − start).

    The holder tunes a copy of the model towards what it knows of the texts to forget, each step on the entries whose
    negation harms the retained texts least, and the server negates what that changed. Later requests shun the entries
    that earlier ones used. The authors' text was not at hand: constants and rules are those of their code, but for the
    sign of the importance (see ``letheon.text.negation``; ``keeps = "aligned"`` is theirs) and for what counts as used:
    entries that the last step let move and that did move.

    Attributes:
        tuning: optimizer and schedule of the tuning, without ``ceiling`` and ``spare``: the tuned model is not the one
            that is left. Weight decay is negated, too. The authors: 2e-5, 5 epochs, batches of 64, decay 0.01.
        scale: c.
        localization: what is tuned towards, and where.
        local: has no effect here; the recipe is ``tuning``.
    """

    name: ClassVar[str] = "alkn"
    remembers: ClassVar[bool] = True

    tuning: Recipe = Recipe(lr=2e-5)
    scale: float = 1.0
    localization: Localization = Localization()
    local: Local | None = None

    def __post_init__(self) -> None:
        if self.scale < 0:
            raise ConfigError(f"alkn.scale: must not be negative, got {self.scale}")
        if self.tuning.ceiling is not None or self.tuning.spare is not None:
            raise ConfigError("alkn.tuning: ceiling and spare look at the model that is tuned, not at the negated one")

    @property
    def reads_retained(self) -> bool:
        return True

    def kept_bytes(self, params: Mapping[str, Tensor]) -> int:
        return sum(-(-tensor.numel() // 8) for tensor in params.values())

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        return [Phase("negate", self._negate)]

    def _negate(self, federation: Federation, state: State, t: int) -> State:
        used = _used(state)
        # Named like what is to come back, so that replies are checked; the parameters travel once all the same.
        extras = _under(UPDATE, state.params) | _under(MASK, used)
        options = {**self.tuning.options(), **self.localization.options()}
        work = Work("localize", state.params, state.buffers, "forget", options=options, extras=extras)
        done = average(federation.run(work))
        if len(done.clients) > 1:
            raise MethodError(f"alkn: {len(done.clients)} clients hold data of the request; it serves one holder")
        memory = state.memory | _under(USED, _of(MASK, done.tensors))
        return replace(state.moved(_of(UPDATE, done.tensors), -self.scale), memory=memory)


def _used(state: State) -> Params:
    """For each parameter the entries that earlier requests used, packed; nothing at the first.

    Raises:
        MethodError: the memory is of another model.
    """
    blank = {name: packed(torch.zeros(tensor.shape, dtype=torch.bool)) for name, tensor in state.params.items()}
    used = _of(USED, state.memory) or blank
    try:
        tree.check_same(blank, used, "used entries")
    except ValueError as error:
        raise MethodError(f"alkn: what earlier requests used is of another model ({error})") from error
    return used


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> Params:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _of(prefix: str, tensors: Mapping[str, Tensor]) -> Params:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """A pass for p₀, the gradient on as many retained texts, and the training; training counts as three passes."""
    trained = (1 + Recipe.from_options(work.options).epochs) * n
    return {"samples": float(n + trained), "flops": task.flops * (n + 3.0 * trained)}


@client_work("localize", _cost, answers="extras")
def _localize(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """One request: tune towards it. Replies tuned − w_sent and the entries used so far, by the names in ``extras``."""
    if not isinstance(client.task, TextTask):
        raise MethodError("this method is for language models; the task has no text")
    retained = client.part(replace(work, part="retain"))
    if not len(retained):
        raise DataError("alkn: needs retain texts and there are none; choose another method")
    before = {name: unpacked(bits, work.params[name].shape) for name, bits in _of(MASK, work.extras).items()}
    done = localize(
        module,
        {"forget": data, "retain": retained},
        Localization.from_options(work.options),
        Recipe.from_options(work.options),
        used=before,
        seed=seed,
    )
    update = tree.sub(params_of(module), work.params)
    used = {name: packed(before[name] | (mask & (update[name] != 0))) for name, mask in done.kept.items()}
    metrics = {"loss": finite(done.loss), "steps": float(done.steps)}
    return Reply(0, client.name, _under(UPDATE, update) | _under(MASK, used), metrics=metrics)
