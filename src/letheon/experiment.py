"""An experiment: frozen, strict, and named by its digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from letheon import config, schema
from letheon.cohort import cohort_size
from letheon.errors import ConfigError, MethodError
from letheon.methods.base import Method, demand_given
from letheon.methods.detach import Detach
from letheon.methods.retrain import Retrain
from letheon.outliers import demand_factor
from letheon.request import free
from letheon.runtimes.terms import Deployment
from letheon.tasks.base import Task
from letheon.tasks.partition import Partition
from letheon.tasks.population import Population, populate
from letheon.tasks.target import Target
from letheon.training import Local


@dataclass(frozen=True)
class Experiment:
    """The whole life of a federation: train, request, unlearn, continue, evaluate.

    Attributes:
        task: data, model and loss.
        method: the method of interest.
        compare: methods run beside it, from the same Origin. Retrain, the reference, and detach, the control for what
            continued training forgets by itself, always run.
        seed: of the partition, the initial weights and every random draw.
        clients: number of clients K.
        partition: who holds what.
        request: what is to be forgotten; its ``also`` goes with it, in one pass.
        then: requests that follow, served one after another on the model that the one before left. Continued training
            comes after the last.
        local: a client's recipe for one round; methods may have their own.
        train_rounds: FedAvg rounds before the request.
        continue_rounds: FedAvg rounds on the retained data after unlearning.
        minimum: usable replies that a round needs for each of its works; one for work on the data to forget.
        title: for people.
        flower: run on Flower, in processes of their own; never changes a result. None: in this process.
        outlier_factor: quarantine a reply whose update is more than so many times as long as the median of those to
            the same work. None: replies are not compared.
        participation: share of the clients that trains in a round of FedAvg, drawn anew each time; holders of data to
            forget always take part in work on that, and everybody in the work that is a method's own, such as FUSED's
            adapters. None: everybody trains in every round.
    """

    task: Task
    method: Method
    compare: tuple[Method, ...] = ()
    seed: int = 0
    clients: int = 10
    partition: Partition = Partition()
    request: Target = Target()
    local: Local = Local()
    train_rounds: int = 60
    continue_rounds: int = 20
    minimum: int = 1
    title: str = ""
    then: tuple[Target, ...] = ()
    flower: Deployment | None = None
    outlier_factor: float | None = None
    participation: float | None = None

    def __post_init__(self) -> None:
        for name in ("clients", "train_rounds", "continue_rounds", "minimum"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        demand_factor(self.outlier_factor)
        if self.participation is not None and not 0.0 < self.participation <= 1.0:
            raise ConfigError(f"participation: must lie in (0, 1], got {self.participation}")
        if self.seed < 0:
            raise ConfigError(f"seed: must not be negative, got {self.seed}")
        for method in (self.method, *self.compare):
            self._check_served(method)
        recording = [m.name for m in (self.method, *self.compare) if type(m).training is not Method.training]
        if len(set(recording)) < len(recording):
            raise ConfigError(f"compare: two settings of {recording[0]} would record under one name; run them apart")
        targets = [each for target in (self.request, *self.then) for each in target.members]
        corners = [target.trigger.corner for target in targets if target.scope != "class" and target.trigger]
        if len(set(corners)) < len(corners):
            raise ConfigError(
                "request: two of them paint their triggers in the same corner, and one would undo the other; give each "
                "its own trigger.corner"
            )

    def _check_served(self, method: Method) -> None:
        if self.flower:
            demand_given(method, self.flower.gives)
        for target in (self.request, *self.then):
            scopes = {each.scope for each in target.members}
            if refused := sorted(scopes - method.scopes):
                raise MethodError(
                    f"{method.name} does not serve requests of scope {refused[0]!r}; "
                    f"it serves {', '.join(sorted(method.scopes))}"
                )
            if len(scopes) > 1 and not method.mixes:
                raise MethodError(
                    f"{method.name} serves requests of one scope together, not {' and '.join(sorted(scopes))}; "
                    "serve them one after another with `then`, or leave it out"
                )
        if self.then and not method.repeats:
            raise MethodError(f"{method.name} serves one request only; leave it out, or leave out `then`")

    @cached_property
    def digest(self) -> str:
        """Names the run: everything that can change a result, and nothing else."""
        return config.digest(replace(self, title="", flower=None))

    @cached_property
    def methods(self) -> dict[str, Method]:
        """By label, Retrain first, each with the experiment's recipe filled in.

        Whatever is listed, Retrain is among them, and detach: the reference, and what training forgets by itself.
        """
        chosen = [self.method, *self.compare]
        if not any(isinstance(method, Detach) for method in chosen):
            chosen.append(Detach())
        if not any(isinstance(method, Retrain) for method in chosen):
            chosen.insert(0, Retrain())
        chosen.sort(key=lambda method: not isinstance(method, Retrain))
        continued = replace(self.local, first_round=self.train_rounds)
        labels = _labels(chosen)
        return {
            label: method.configured(continued, self.train_rounds, self.seed)
            for label, method in zip(labels, chosen, strict=True)
        }

    def populate(self) -> Population:
        """Clients, request and test sets: a function of the experiment and the data alone.

        Raises:
            ConfigError: fewer clients have something to retain, or take part in a round, than a round needs replies.
        """
        population = populate(
            self.task, self.partition, self.request, clients=self.clients, seed=self.seed, then=self.then
        )
        left = sum(bool(free(population.requests, *client).any()) for client in population.clients.items())
        if left < self.minimum:
            raise ConfigError(
                f"minimum: each round needs {self.minimum} replies, but once the data are forgotten {left} of "
                f"{self.clients} clients have any to train on; lower it"
            )
        if self.participation is not None and (asked := cohort_size(left, self.participation)) < self.minimum:
            raise ConfigError(
                f"minimum: each round needs {self.minimum} replies, but of {left} clients with data left a share of "
                f"participation = {self.participation:g} is {asked}; lower it, or raise participation"
            )
        return population

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = ()) -> Experiment:
        """Read an experiment file, with ``--set`` overrides such as ``method.gamma.beta=0.2``."""
        table: dict[str, Any] = config.read(path)
        for override in overrides:
            table = config.override(table, override)
        return config.build(cls, table, path.name)


def _labels(methods: Sequence[Method]) -> list[str]:
    """The name of each method; where a name occurs twice, with what differs from the method's defaults."""
    names = [method.name for method in methods]
    labels = []
    for method in methods:
        label = method.name
        if names.count(method.name) > 1:
            default = schema.flat(config.plain(type(method)()))
            own = {k: v for k, v in schema.flat(config.plain(method)).items() if default.get(k) != v}
            label += f"({', '.join(f'{k}={v}' for k, v in own.items())})" if own else ""
        labels.append(label)
    repeated = {label for label in labels if labels.count(label) > 1}
    if repeated:
        raise ConfigError(f"compare: {sorted(repeated)[0]} is listed twice with the same settings")
    return labels
