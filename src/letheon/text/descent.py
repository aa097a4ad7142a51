"""Training a language model on what is to be forgotten and what is to be kept, one batch of each a step."""

from __future__ import annotations

import logging
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

log = logging.getLogger(__name__)

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
        spare: the most that the mean loss on the retained texts that are watched (nats a token) may rise above the
            start. The model goes back to the last epoch that kept within it, and training stops there. None: nothing
            is watched.
    """

    lr: float = 1e-5
    epochs: int = 5
    batch_size: int = 8
    part_size: int | None = None
    weight_decay: float = 0.0
    warmup: float = 0.1
    clip: float | None = 1.0
    ceiling: float | None = None
    spare: float | None = None

    def __post_init__(self) -> None:
        for name in ("lr", "epochs", "batch_size", "part_size", "clip", "ceiling"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"recipe.{name}: must be positive, got {value}")
        if self.spare is not None and not self.spare >= 0:
            raise ConfigError(f"recipe.spare: must not be negative, got {self.spare}")
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
class Look:
    """What a model knew between two epochs, as mean losses in nats a token.

    Attributes:
        forget: on the texts to forget.
        retained: on the retained texts that are watched.
    """

    forget: float
    retained: float


@dataclass(frozen=True, slots=True)
class Trained:
    """How a descent went.

    Attributes:
        steps: that were taken, those of an epoch that was given up included.
        loss: mean objective over the steps that led to the model as it is; 0 if there are none.
        epochs: the model at the start and after each epoch; empty without ``spare``.
        kept: after how many epochs the model was as it is.
        looked: texts that passed to see how it went.
    """

    steps: int
    loss: float
    epochs: tuple[Look, ...]
    kept: int
    looked: int


def descend(
    module: nn.Module, goal: Goal, texts: Mapping[str, Data], recipe: Recipe, *, held: Held | None = None, seed: int
) -> Trained:
    """Minimise ``goal`` over the trainable parameters of ``module``, in place. The reference is the model as given.

    Args:
        module: a ``LanguageModel``; what requires no gradient stays.
        goal: the losses.
        texts: ``forget``, and ``refusal`` (row by row the same questions) and ``retain`` where the goal needs them;
            with ``recipe.spare`` also ``watched``: retained texts that are not among ``retain``.
        recipe: optimizer and schedule.
        held: what is applied around each step.
        seed: of the order of texts and the draw of retained ones.

    Raises:
        MethodError: a parameter to train is stored below float32, so that an update would be rounded away.
        DataError: texts are needed that are not there.
    """
    _check_texts(goal, texts, recipe)
    held = held or Held()
    trainable = [p for p in module.parameters() if p.requires_grad]
    check_precision(module)
    slope = Slope(module, goal, texts, recipe.part_size, Reference.of(module, goal, texts))
    optimizer = torch.optim.AdamW(trainable, lr=recipe.lr, weight_decay=recipe.weight_decay)
    course = _Course(module, texts, recipe, trainable)
    module.train()
    values, steps = list[float](), recipe.steps(len(texts["forget"]))
    for index in _batches(texts, recipe, seed):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(len(values), steps)
        gradients, value = slope.at(index, trainable)
        held.project(gradients)
        for parameter, gradient in zip(trainable, clipped(gradients, recipe.clip), strict=True):
            parameter.grad = gradient
        optimizer.step()
        held.restore()
        values.append(value)
        if len(values) % (steps // recipe.epochs) == 0 and course.ends():
            break
    for parameter in trainable:
        parameter.grad = None
    led = values[: course.kept * (steps // recipe.epochs)]
    return Trained(len(values), sum(led) / max(1, len(led)), tuple(course.looks), course.kept, course.looked)


class _Course:
    """Looks at the model after every epoch, and has it back at the last one that spared what is watched.

    Weights are kept as they are once what holds them was applied, so that going back keeps what COP promises.

    Attributes:
        looks: the model at the start and after each epoch; empty where nothing is watched.
        kept: epochs behind the model as it is.
        looked: texts that passed.
    """

    def __init__(
        self, module: nn.Module, texts: Mapping[str, Data], recipe: Recipe, trainable: Sequence[Tensor]
    ) -> None:
        self._module, self._texts, self._recipe, self._trainable = module, texts, recipe, trainable
        self.looks, self.kept, self.looked = list[Look](), 0, 0
        self._best: list[Tensor] = []
        if recipe.spare is not None:
            self._look()
            self._keep()

    def ends(self) -> bool:
        """After an epoch: whether it is the last one."""
        spare, ceiling = self._recipe.spare, self._recipe.ceiling
        if spare is None:
            self.kept += 1
            return ceiling is not None and self._loss("forget") > ceiling
        now = self._look()
        if not now.retained - self.looks[0].retained <= spare:  # a loss that is no number spares nothing
            self._go_back()
            return True
        self.kept += 1
        self._keep()
        return ceiling is not None and now.forget > ceiling

    def _look(self) -> Look:
        self.looks.append(Look(self._loss("forget"), self._loss("watched")))
        return self.looks[-1]

    def _loss(self, name: str) -> float:
        self.looked += len(self._texts[name])
        return mean_loss(self._module, self._texts[name])

    def _keep(self) -> None:
        self._best = [parameter.detach().clone() for parameter in self._trainable]

    @torch.no_grad()
    def _go_back(self) -> None:
        for parameter, best in zip(self._trainable, self._best, strict=True):
            parameter.copy_(best)
        if not self.kept:
            log.warning(
                "the first epoch raised the loss on watched texts by more than tuning.spare = %g: the model is as it "
                "was and nothing is forgotten; lower tuning.lr, or raise tuning.spare",
                self._recipe.spare,
            )


@torch.no_grad()
def mean_loss(module: nn.Module, data: Data) -> float:
    """Mean loss over the answers' tokens, nats, in evaluation mode."""
    total, count, mode = 0.0, 0, module.training
    module.eval()
    for chunk in torch.arange(len(data)).split(CHUNK):
        found = passed(module, data.take(chunk))
        total, count = total + float(found.losses.double().sum()), count + int(found.counted.sum())
    module.train(mode)
    return total / count


def _check_texts(goal: Goal, texts: Mapping[str, Data], recipe: Recipe) -> None:
    if missing := sorted(name for name in goal.texts if not len(texts.get(name, ()))):
        raise DataError(f"{goal.forget}: needs {', '.join(missing)} texts and there are none; choose another loss")
    if recipe.spare is not None and not len(texts.get("watched", ())):
        raise DataError("tuning.spare: needs retained texts to watch and there are none; give some, or leave it out")


def _batches(texts: Mapping[str, Data], recipe: Recipe, seed: int) -> Iterator[dict[str, Tensor]]:
    """For each step the rows of each kind of text; a retained one is drawn for every one to forget."""
    order = torch.Generator().manual_seed(seed_of(f"{seed}|order"))
    drawn = torch.Generator().manual_seed(seed_of(f"{seed}|retain"))
    local = Local(batch_size=recipe.batch_size, epochs=recipe.epochs)
    for rows in batches(len(texts["forget"]), local, order):
        retained = torch.randint(max(1, len(texts.get("retain", ()))), (len(rows),), generator=drawn)
        yield {"forget": rows, "refusal": rows, "retain": retained}


def check_precision(module: nn.Module) -> None:
    """Raise ``MethodError`` if a parameter to train is stored below float32."""
    coarse = [n for n, p in module.named_parameters() if p.requires_grad and torch.finfo(p.dtype).bits < 32]
    if coarse:
        told = ", ".join(coarse[:3]) + (f" and {len(coarse) - 3} more" if len(coarse) > 3 else "")
        raise MethodError(
            f"{told}: stored below float32, where an update of this learning rate is rounded away; convert the model "
            "with .float() before unlearning, and back afterwards"
        )
