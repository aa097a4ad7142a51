"""Training a language model on what is to be forgotten and what is to be kept, one batch of each a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor, nn

from letheon.data import Data
from letheon.errors import ConfigError, DataError, MethodError
from letheon.phase import seed_of
from letheon.text.goal import CHUNK, Goal, Reference, Slope, passed
from letheon.text.losses import Options
from letheon.training import Local, batches, clipped
from letheon.work import Scalar

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
    slope = Slope(module, goal, texts, recipe.part_size, Reference.of(module, goal, texts))
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
        found = passed(module, data.take(chunk))
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


def _check_precision(module: nn.Module) -> None:
    coarse = [n for n, p in module.named_parameters() if p.requires_grad and torch.finfo(p.dtype).bits < 32]
    if coarse:
        told = ", ".join(coarse[:3]) + (f" and {len(coarse) - 3} more" if len(coarse) > 3 else "")
        raise MethodError(
            f"{told}: stored below float32, where an update of this learning rate is rounded away; convert the model "
            "with .float() before unlearning, and back afterwards"
        )
