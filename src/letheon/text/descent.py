"""Training a language model on what is to be forgotten and what is to be kept, one batch of each a step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Self

import torch
from torch import Tensor, nn

from letheon.data import Data
from letheon.errors import ConfigError, DataError, MethodError
from letheon.phase import seed_of
from letheon.text.encoding import MASKED, trimmed
from letheon.text.losses import FORGET, RETAIN, Loss, Options, Seen, named, seen, text_sums
from letheon.training import Local, batches, clipped
from letheon.work import Scalar

CHUNK = 16
"""Texts that pass at once where no gradient is needed."""

Change = Callable[[Sequence[Tensor | None]], None]


@dataclass(frozen=True)
class Recipe:
    """How one request is trained away: AdamW, learning rate rising and then falling in a straight line.

    Attributes:
        lr: the highest learning rate.
        epochs: passes over the data to forget.
        batch_size: texts to forget a step; as many retained ones are drawn beside them.
        part_size: texts that pass at once; None: the whole batch. Never changes the gradient but by rounding.
        weight_decay: decoupled.
        warmup: share of the steps in which the learning rate rises.
        clip: limit of the gradient's norm.
        ceiling: stop after the first epoch at whose end the mean loss on the data to forget (nats a token) is above;
            None: never.
    """

    lr: float = 1e-5
    epochs: int = 5
    batch_size: int = 8
    part_size: int | None = None
    weight_decay: float = 0.0
    warmup: float = 0.1
    clip: float | None = 1.0
    ceiling: float | None = None

    def __post_init__(self) -> None:
        for name in ("lr", "epochs", "batch_size", "part_size", "clip", "ceiling"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"recipe.{name}: must be positive, got {value}")
        if self.weight_decay < 0 or not 0 <= self.warmup < 1:
            raise ConfigError("recipe: weight_decay must not be negative, and warmup must lie in [0, 1)")

    def options(self) -> dict[str, Scalar]:
        """As scalars that a ``Work`` can carry; unset fields are left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_options(cls, options: Options) -> Self:
        """The inverse of ``options``; other keys are ignored."""
        given = {f.name: options.get(f.name) for f in fields(cls)}
        return cls(**given)  # type: ignore[arg-type]

    def steps(self, n: int) -> int:
        """How many steps ``n`` texts give, if no ceiling ends them."""
        return self.epochs * -(-n // self.batch_size)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = max(1, round(self.warmup * steps)) if self.warmup else 0
        if step < rising:
            return self.lr * (step + 1) / rising
        return self.lr * (steps - step) / (steps - rising + (rising == 0))


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
class Held:
    """What holds a step back: COP's guard, or nothing.

    Attributes:
        project: changes the gradients in place, before clipping.
        restore: after each step.
    """

    project: Change = lambda gradients: None
    restore: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Trained:
    """How a descent went.

    Attributes:
        steps: that were taken.
        loss: mean objective over the steps.
    """

    steps: int
    loss: float


def descend(
    module: nn.Module, goal: Goal, texts: Mapping[str, Data], recipe: Recipe, *, held: Held | None = None, seed: int
) -> Trained:
    """Minimise ``goal`` over the trainable parameters of ``module``, in place. The reference is the model as given.

    Args:
        module: a ``LanguageModel``; what requires no gradient stays.
        goal: the losses.
        texts: ``forget``, and ``refusal`` (row by row the same questions) and ``retain`` where the goal needs them.
        recipe: optimizer and schedule.
        held: what is applied around each step.
        seed: of the order of texts and the draw of retained ones.

    Raises:
        MethodError: a parameter to train is stored below float32, so that an update would be rounded away.
        DataError: the goal needs texts that are not there.
    """
    if missing := sorted(name for name in goal.texts if not len(texts.get(name, ()))):
        raise DataError(f"{goal.forget}: needs {', '.join(missing)} texts and there are none; choose another loss")
    held = held or Held()
    trainable = [p for p in module.parameters() if p.requires_grad]
    _check_precision(module)
    slope = _Slope(module, goal, texts, recipe.part_size, _Reference.of(module, goal, texts))
    optimizer = torch.optim.AdamW(trainable, lr=recipe.lr, weight_decay=recipe.weight_decay)
    module.train()
    done, total, steps = 0, 0.0, recipe.steps(len(texts["forget"]))
    for index in _batches(texts, recipe, seed):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(done, steps)
        gradients, value = slope.at(index, trainable)
        held.project(gradients)
        for parameter, gradient in zip(trainable, clipped(gradients, recipe.clip), strict=True):
            parameter.grad = gradient
        optimizer.step()
        held.restore()
        done, total = done + 1, total + value
        per_epoch = steps // recipe.epochs
        if recipe.ceiling and done % per_epoch == 0 and mean_loss(module, texts["forget"]) > recipe.ceiling:
            break
    for parameter in trainable:
        parameter.grad = None
    return Trained(done, total / done)


@torch.no_grad()
def mean_loss(module: nn.Module, data: Data) -> float:
    """Mean loss over the answers' tokens, nats."""
    total, count = 0.0, 0
    for chunk in torch.arange(len(data)).split(CHUNK):
        found = _pass(module, data.take(chunk))
        total, count = total + float(found.losses.double().sum()), count + int(found.counted.sum())
    return total / count


def _batches(texts: Mapping[str, Data], recipe: Recipe, seed: int) -> Iterator[dict[str, Tensor]]:
    """For each step the rows of each kind of text; a retained one is drawn for every one to forget."""
    order = torch.Generator().manual_seed(seed_of(f"{seed}|order"))
    drawn = torch.Generator().manual_seed(seed_of(f"{seed}|retain"))
    local = Local(batch_size=recipe.batch_size, epochs=recipe.epochs)
    for rows in batches(len(texts["forget"]), local, order):
        retained = torch.randint(max(1, len(texts.get("retain", ()))), (len(rows),), generator=drawn)
        yield {"forget": rows, "refusal": rows, "retain": retained}


@dataclass(frozen=True, slots=True)
class _Slope:
    """The goal's gradient on batches, passed ``part`` texts at a time."""

    module: nn.Module
    goal: Goal
    texts: Mapping[str, Data]
    part: int | None
    reference: _Reference

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


class _Reference:
    """The model as it was: sums of losses, computed once, or a frozen copy where its logits are needed."""

    def __init__(self, module: nn.Module | None, sums: Mapping[str, Tensor], block: str) -> None:
        self._module, self._sums, self._block = module, sums, block

    @classmethod
    @torch.no_grad()
    def of(cls, module: nn.Module, goal: Goal, texts: Mapping[str, Data]) -> _Reference:
        sums: dict[str, Tensor] = {}
        if "sums" in goal.needs:
            module.eval()
            for name in sorted(goal.texts - {"retain"}):
                chunks = torch.arange(len(texts[name])).split(CHUNK)
                sums[name] = torch.cat([text_sums(_pass(module, texts[name].take(chunk))) for chunk in chunks])
        frozen = copy.deepcopy(module).eval().requires_grad_(False) if goal.needs & {"logits", "hidden"} else None
        return cls(frozen, sums, goal.block)

    def seen(self, module: nn.Module, name: str, data: Data, rows: Tensor, loss: Loss) -> Seen:
        """What the model, and where the loss needs it the reference, gives for some rows."""
        chosen = data.take(rows)
        block = self._block if "hidden" in loss.needs else ""
        found = _pass(module, chosen, block=block)
        more: dict[str, Tensor | None] = {"hidden": found.hidden}
        if "sums" in loss.needs:
            more["sums"] = self._sums[name][rows]
        if self._module is not None and loss.needs & {"logits", "hidden"}:
            with torch.no_grad():
                theirs = _pass(self._module, chosen, block=block)
            more |= {"reference": theirs.logits, "reference_hidden": theirs.hidden}
        return Seen(found.logits, found.labels, **more)


def _pass(module: nn.Module, data: Data, *, block: str = "") -> Seen:
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


def _check_precision(module: nn.Module) -> None:
    coarse = [n for n, p in module.named_parameters() if p.requires_grad and torch.finfo(p.dtype).bits < 32]
    if coarse:
        told = ", ".join(coarse[:3]) + (f" and {len(coarse) - 3} more" if len(coarse) > 3 else "")
        raise MethodError(
            f"{told}: stored below float32, where an update of this learning rate is rounded away; convert the model "
            "with .float() before unlearning, and back afterwards"
        )


def answered(data: Data) -> int:
    """Tokens that count, over all texts."""
    return int((data.targets[:, 1:] != MASKED).sum())
