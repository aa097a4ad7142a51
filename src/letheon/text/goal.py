"""What a descent minimises, and the gradient of it on batches that pass in parts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from letheon.data import Data
from letheon.errors import MethodError
from letheon.text.encoding import trimmed
from letheon.text.losses import FORGET, RETAIN, Loss, Options, Seen, named, seen, text_sums

CHUNK = 16
"""Texts that pass at once where no gradient is needed."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is minimised: γ·L_f + α·L_r.

    Attributes:
        forget: name in ``losses.FORGET``.
        retain: name in ``losses.RETAIN``; empty for none.
        forget_weight: γ.
        retain_weight: α.
        options: of the losses: ``beta``, ``margin``, ….
        block: name of the block whose output RMU steers, for instance ``model.layers.7``.
    """

    forget: str
    retain: str = ""
    forget_weight: float = 1.0
    retain_weight: float = 1.0
    options: Options = field(default_factory=dict)
    block: str = ""

    @property
    def terms(self) -> list[tuple[float, Loss]]:
        """Weights and losses."""
        found = [(self.forget_weight, named(self.forget, FORGET))]
        return [*found, (self.retain_weight, named(self.retain, RETAIN))] if self.retain else found

    @property
    def texts(self) -> set[str]:
        """Which texts a step needs."""
        return {name for _, loss in self.terms for name in loss.texts}

    @property
    def needs(self) -> set[str]:
        """What it needs of the reference model."""
        return {need for _, loss in self.terms for need in loss.needs}


@dataclass(frozen=True, slots=True)
class Slope:
    """The goal's gradient on batches, passed ``part`` texts at a time."""

    module: nn.Module
    goal: Goal
    texts: Mapping[str, Data]
    part: int | None
    reference: Reference

    def at(self, index: Mapping[str, Tensor], trainable: Sequence[Tensor]) -> tuple[list[Tensor], float]:
        """The gradient of the goal over one batch, and the goal's value."""
        sums, value = [torch.zeros_like(p) for p in trainable], 0.0
        size = self.part or len(index["forget"])
        for weight, loss in self.goal.terms:
            name = loss.texts[-1]
            count = loss.count(self.texts[name].targets[index[name]])
            for start in range(0, len(index["forget"]), size):
                rows = {name: index[name][start : start + size] for name in loss.texts}
                share = weight / count * loss.total(self._seen(rows, loss), self.goal.options)
                torch._foreach_add_(sums, torch.autograd.grad(share, trainable, materialize_grads=True))
                value += float(share.detach())
        return sums, value

    def _seen(self, rows: Mapping[str, Tensor], loss: Loss) -> dict[str, Seen]:
        return {
            name: self.reference.seen(self.module, name, self.texts[name], index, loss) for name, index in rows.items()
        }


class Reference:
    """The model as it was: sums of losses, computed once, or a frozen copy where its logits are needed."""

    def __init__(self, module: nn.Module | None, sums: Mapping[str, Tensor], block: str) -> None:
        self._module, self._sums, self._block = module, sums, block

    @classmethod
    @torch.no_grad()
    def of(cls, module: nn.Module, goal: Goal, texts: Mapping[str, Data]) -> Reference:
        sums: dict[str, Tensor] = {}
        if "sums" in goal.needs:
            module.eval()
            for name in sorted(goal.texts - {"retain"}):
                chunks = torch.arange(len(texts[name])).split(CHUNK)
                sums[name] = torch.cat([text_sums(passed(module, texts[name].take(chunk))) for chunk in chunks])
        frozen = copy.deepcopy(module).eval().requires_grad_(False) if goal.needs & {"logits", "hidden"} else None
        return cls(frozen, sums, goal.block)

    def seen(self, module: nn.Module, name: str, data: Data, rows: Tensor, loss: Loss) -> Seen:
        """What the model, and where the loss needs it the reference, gives for some rows."""
        chosen = data.take(rows)
        block = self._block if "hidden" in loss.needs else ""
        found = passed(module, chosen, block=block)
        more: dict[str, Tensor | None] = {"hidden": found.hidden}
        if "sums" in loss.needs:
            more["sums"] = self._sums[name][rows]
        if self._module is not None and loss.needs & {"logits", "hidden"}:
            with torch.no_grad():
                theirs = passed(self._module, chosen, block=block)
            more |= {"reference": theirs.logits, "reference_hidden": theirs.hidden}
        return Seen(found.logits, found.labels, **more)


def passed(module: nn.Module, data: Data, *, block: str = "") -> Seen:
    """What a model gives for some texts; with ``block``, what that block puts out, too."""
    device = next(module.parameters()).device
    inputs, targets = trimmed(data.inputs, data.targets)
    with _listening(module, block) as heard:
        logits = module(inputs.to(device))
    hidden = heard[0][:, :-1] if heard else None
    return seen(logits, targets.to(device), hidden=hidden)


@contextmanager
def _listening(module: nn.Module, block: str) -> Iterator[list[Tensor]]:
    """While open, the output of the block is kept."""
    heard: list[Tensor] = []
    if not block:
        yield heard
        return
    names = [name for name, _ in module.named_modules() if name == block or name.endswith(f".{block}")]
    if len(names) != 1:
        raise MethodError(f"rmu: the model has {len(names)} modules called {block!r}; name one, see named_modules()")

    def hear(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        heard.append(output if isinstance(output, Tensor) else output[0])

    handle = module.get_submodule(names[0]).register_forward_hook(hear)
    try:
        yield heard
    finally:
        handle.remove()
