"""What the methods that descend a forgetting loss of a language model share: one request is one descent at its holder.

With ``cop`` the descent is held where earlier requests left it (Continual Orthogonal Projection): see ``letheon.cop``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from letheon import cop, tree
from letheon.client import Client, client_work, finite
from letheon.cop import Adapters, Basis, Guard, Selection
from letheon.data import Data
from letheon.errors import ConfigError, MethodError
from letheon.methods.language import LanguageMethod
from letheon.methods.watch import WATCHED, check, logged, metrics_of, split
from letheon.phase import Phase, State
from letheon.tasks.base import Task, params_of
from letheon.tasks.text import TextTask
from letheon.text.descent import Held, Recipe, descend
from letheon.text.goal import Goal
from letheon.text.passes import first, passes
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Reply, Scalar, Work, average, separate

Trains = Literal["all", "linear"]
Retain = Literal["", "nll", "kl", "stay"]
MOMENTS = 2**30
"""Bytes of second moments that are held at a time; more spaces are collected in further passes."""


@dataclass(frozen=True)
class Cop:
    """What COP protects of each request.

    Attributes:
        energy: ε, the share of the inputs' energy to hold.
        rank: r_max, directions that one request may add to an input space; None: an eighth of the width, at most 64.
        rank_total: directions in all; None: half of the width.
    """

    energy: float = 0.99
    rank: int | None = None
    rank_total: int | None = None

    def __post_init__(self) -> None:
        _ = self.selection  # refuses what it cannot be

    @property
    def selection(self) -> Selection:
        """How many directions are taken."""
        return Selection(self.energy, self.rank, self.rank_total)

    def options(self) -> dict[str, Scalar]:
        """As scalars that a ``Work`` can carry."""
        values = {"energy": self.energy, "rank": self.rank, "rank_total": self.rank_total}
        return {f"cop_{name}": value for name, value in values.items() if value is not None}

    @staticmethod
    def selected(options: Mapping[str, Scalar]) -> Selection:
        """The selection that ``options`` carry."""
        rank, total = (options.get(f"cop_{name}") for name in ("rank", "rank_total"))
        return Selection(
            float(options["cop_energy"]), None if rank is None else int(rank), None if total is None else int(total)
        )


@dataclass(frozen=True)
class Lora:
    """A fresh low-rank adapter on every linear layer for each request, merged into the weights at its end.

    Attributes:
        rank: r.
        scale: s = α/r.
    """

    rank: int = 8
    scale: float = 2.0

    def __post_init__(self) -> None:
        if self.rank < 1 or self.scale <= 0:
            raise ConfigError(f"lora: rank and scale must be positive, got {self.rank} and {self.scale}")


@dataclass(frozen=True)
class Descent(LanguageMethod):
    """Base of the language methods; leaves name a loss. The reference model is the one that the request began with.

    Attributes:
        tuning: optimizer and schedule.
        retain: loss on retained texts, one drawn for each text to forget: ``nll``, ``kl`` to the reference, or none.
        retain_weight: α.
        forget_weight: γ.
        trains: ``all`` parameters, or the weights of ``linear`` layers only. COP trains no others from the second
            request on, since nothing could hold what embeddings and norms do.
        lora: train an adapter instead of the weights; None: the weights.
        cop: hold what earlier requests settled; None: the loss alone.
        local: has no effect here; the recipe is ``tuning``.
    """

    tuning: Recipe = Recipe()
    retain: Retain = ""
    retain_weight: float = 1.0
    forget_weight: float = 1.0
    trains: Trains = "all"
    lora: Lora | None = None
    cop: Cop | None = None
    local: Local | None = None

    def __post_init__(self) -> None:
        if self.retain_weight < 0 or self.forget_weight <= 0:
            raise ConfigError(f"{self.name}: retain_weight must not be negative and forget_weight must be positive")
        if self.trains not in ("all", "linear"):
            raise ConfigError(f"{self.name}.trains: unknown {self.trains!r}; use all or linear")
        _ = self.goal().terms  # refuses unknown losses

    @abstractmethod
    def goal(self) -> Goal:
        """The losses with their constants."""

    def aimed(self, loss: str, *, block: str = "", **constants: float) -> Goal:
        """The named loss beside the retain term, with their weights.

        Raises:
            ConfigError: β is not positive.
        """
        if "beta" in constants and constants["beta"] <= 0:
            raise ConfigError(f"{self.name}.beta: must be positive, got {constants['beta']}")
        return Goal(loss, self.retain, self.forget_weight, self.retain_weight, constants, block)

    @property
    def label(self) -> str:
        """As tables call it."""
        return f"{self.name}{'+cop' if self.cop else ''}"

    @property
    def reads_retained(self) -> bool:
        return "retain" in self.goal().texts

    @property
    def searches(self) -> bool:
        return self.tuning.ceiling is not None or self.tuning.spare is not None

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        if self.tuning.spare is not None:
            check(task)
        protect = [Phase("protect", self._protect)] if self.cop else []
        return [Phase("descend", self._descend), *protect]

    def _descend(self, federation: Federation, state: State, t: int) -> State:
        done = average(federation.run(self._work("descend", state)))
        return state.moved(done.tensors).logged(**logged(done))

    def _protect(self, federation: Federation, state: State, t: int) -> State:
        replies = separate(federation.run(self._work("protect", state)), 1)[0]
        if len(replies) != 1:
            raise MethodError(f"{self.label}: {len(replies)} clients hold data of the request; COP serves one holder")
        return replace(state.logged(), memory=self.remembered(replies[0].tensors))

    def inherited(self, memory: Mapping[str, Tensor]) -> Params:
        """What COP settled, whichever objective served the requests before."""
        own = {name.partition("/")[2]: tensor for name, tensor in memory.items()}
        if strange := [name for name in memory if not name.partition("/")[2].startswith("cop/")]:
            raise MethodError(f"memory: {strange[0]} is nothing of COP's; hand over the memory of the request before")
        if memory and self.cop is None:
            raise MethodError(
                f"memory: is what COP settled, and {self.name} alone would not leave it; use {self.name}+cop, or leave "
                "memory out"
            )
        return self.remembered(own)

    def remembered(self, bases: Mapping[str, Tensor]) -> Params:
        """Bases as named tensors, by the names that the method's memory has."""
        return {f"{self.name}/{name}": tensor for name, tensor in bases.items()}

    def bases(self, state: State) -> dict[str, Basis]:
        """What the requests so far protect, by input space; empty before the first."""
        return cop.from_params({name.removeprefix(f"{self.name}/"): tensor for name, tensor in state.memory.items()})

    def _work(self, kind: str, state: State) -> Work:
        goal = self.goal()
        options: dict[str, Scalar] = {"forget": goal.forget, "retain": goal.retain, "block": goal.block}
        options |= {"forget_weight": goal.forget_weight, "retain_weight": goal.retain_weight, "trains": self.trains}
        options |= {**self.tuning.options(), **goal.options, **(self.cop.options() if self.cop else {})}
        if self.lora:
            options |= {"lora_rank": self.lora.rank, "lora_scale": self.lora.scale}
        extras = cop.to_params(self.bases(state))
        return Work(kind, state.params, state.buffers, "forget", options=options, extras=extras)


def _goal(options: Mapping[str, Scalar]) -> Goal:
    forget, retain, block = (str(options[name]) for name in ("forget", "retain", "block"))
    weights = [float(options[name]) for name in ("forget_weight", "retain_weight")]
    return Goal(forget, retain, weights[0], weights[1], options, block)


def _descend_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """If no epoch ends the descent early, and as many retained texts are watched as there may be."""
    recipe = Recipe.from_options(work.options)
    looked = 0 if recipe.spare is None else (recipe.epochs + 1) * (n + WATCHED)
    return _spent(task, work, n, recipe.steps(n), looked=looked)


def _spent(task: Task, work: Work, n: int, steps: int, *, looked: int) -> dict[str, float]:
    goal, recipe = _goal(work.options), Recipe.from_options(work.options)
    seen = recipe.epochs * n * (steps / recipe.steps(n))
    once = looked + (len(goal.texts - {"retain"}) * n if "sums" in goal.needs else 0)
    texts = sum(len(loss.texts) for _, loss in goal.terms)
    references = sum(len(loss.texts) for _, loss in goal.terms if loss.needs & {"logits", "hidden"})
    passes = 3.0 * texts + references  # training counts as three forward passes
    return {"samples": float(seen * texts + once), "flops": task.flops * (seen * passes + once)}


@client_work("descend", _descend_cost)
def _descend(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """One request: descend the forgetting loss, held by the bases in ``extras``. Replies w − w_sent."""
    task, goal, recipe = client.task, _goal(work.options), Recipe.from_options(work.options)
    if not isinstance(task, TextTask):
        raise MethodError("this method is for language models; the task has no text")
    texts = {"forget": data}
    if "refusal" in goal.texts:
        texts["refusal"] = task.refusals(data.ids, seed)
    if "retain" in goal.texts or recipe.spare is not None:
        texts["retain"] = client.part(replace(work, part="retain"))
    if recipe.spare is not None:
        texts |= split(task, texts["retain"])
    with _constrained(module, work, data, seed) as (held, guard):
        done = descend(module, goal, texts, recipe, held=held, seed=seed)
        metrics = {"loss": finite(done.loss), "steps": float(done.steps), **metrics_of(done), **_told(guard)}
    cost = _spent(task, work, len(data), done.steps, looked=done.looked)
    return Reply(0, client.name, tree.sub(params_of(module), work.params), metrics=metrics | cost)


@contextmanager
def _constrained(module: nn.Module, work: Work, data: Data, seed: int) -> Iterator[tuple[Held, Guard | None]]:
    """The module with what may train, and what holds it; afterwards all weights are its own again and may train."""
    device = next(module.parameters()).device
    bases = cop.from_params(work.extras)
    rank = int(work.options.get("lora_rank", 0))
    trainable = {name for name, p in module.named_parameters() if p.requires_grad}
    spaces = cop.find_spaces(module, first(data, device))
    adapters = None
    if rank:
        names = [name for members in spaces.values() for name in members]
        adapters = Adapters(module, names, rank=rank, scale=float(work.options["lora_scale"]), seed=seed)
    guard = None
    try:
        if adapters or bases or work.options["trains"] == "linear":
            cop.freeze(module, spaces, adapters=adapters.pairs if adapters else None)
        if bases:
            guard = Guard(module, spaces, bases, adapters=adapters.pairs if adapters else None)
        yield Held(guard.project, guard.restore) if guard else Held(), guard
    finally:
        if adapters:
            adapters.merge()
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in trainable)


def _told(guard: Guard | None) -> dict[str, float]:
    """How far a response has drifted at most, and the largest share of gradients that was taken away."""
    if guard is None:
        return {}
    return {"drift": max(guard.drifts().values()), "blocked": max(guard.blocked().values())}


def _protect_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    return {"samples": 2.0 * n, "flops": 2.0 * task.flops * n}


@client_work("protect", _protect_cost, answers="free")
def _protect(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Extend the bases in ``extras`` by the directions of this request's inputs. Replies all bases."""
    device = next(module.parameters()).device
    bases = cop.from_params({name: tensor.to(device) for name, tensor in work.extras.items()})
    spaces = cop.find_spaces(module, first(data, device))
    widest = max(module.get_parameter(f"{space}.weight").shape[1] for space in spaces)
    grown = cop.protect(
        module,
        passes(data, device),
        spaces,
        bases,
        request=cop.served(bases),
        selection=Cop.selected(work.options),
        at_once=max(1, MOMENTS // (8 * widest**2)),
    )
    return Reply(0, client.name, {name: tensor.cpu() for name, tensor in cop.to_params(grown).items()})
