"""A federation in service: train, and whenever something is to be forgotten, unlearn and train on.

The server holds no data. What it knows of a model's worth, the sites tell: accuracy on what they hold.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from letheon import config, tree
from letheon.errors import ConfigError
from letheon.files import alone_in, write_json
from letheon.life import has_own_training, seen_by, stage_folder, stage_seed
from letheon.methods.base import Method, demand_given, fedavg
from letheon.middleware import Excluding, Metered, Quorum, fault
from letheon.outliers import demand_factor
from letheon.phase import Phase, State
from letheon.request import Part, Request, Scope
from letheon.runtimes.records import Admitted
from letheon.runtimes.terms import Terms, given
from letheon.stage import Outcome, Stage, finished
from letheon.tasks.base import Task
from letheon.training import Local
from letheon.work import Federation, Work

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    from letheon.curve import Point
    from letheon.runtimes.flower import Flower

log = logging.getLogger(__name__)

_POLICIES = ("terms", "minimum", "outlier_factor", "secure_aggregation")
"""What may change while the federation lives: a stage that is done stays done."""


@dataclass(frozen=True)
class Asked:
    """A request as ``federation.toml`` lists it.

    Attributes:
        scope: ``client``, ``class`` or ``samples``.
        client: the client of scope ``client``.
        label: the label of scope ``class``.
        id: of scope ``samples``: what the owner was told when filing the request.
    """

    scope: Scope
    client: str | None = None
    label: int | None = None
    id: str = ""

    def __post_init__(self) -> None:
        if (self.scope == "samples") != bool(self.id):
            raise ConfigError("requests: scope 'samples' needs the id that its owner was told, other scopes take none")
        if self.scope != "samples":
            Request(self.scope, self.client, self.label)

    @property
    def admitted(self) -> Admitted:
        """As clients are told of it."""
        if self.scope == "samples":
            return Admitted(self.id, "samples")
        return Admitted.of(Request(self.scope, self.client, self.label))


def _named(asked: Asked) -> str:
    return f"scope {asked.scope!r}, {asked.client or asked.id or asked.label}"


@dataclass(frozen=True)
class Service:
    """What a federation does; its ``federation.toml``.

    Attributes:
        task: model and loss; of its data only one sample is looked at, to count FLOPs.
        method: how to unlearn.
        clients: names of the sites.
        requests: what is to be forgotten, in order; it only ever grows.
        seed: of the initial weights and every random draw.
        local: a client's recipe for one round.
        train_rounds: of FedAvg before the first request.
        continue_rounds: of FedAvg after each request.
        minimum: usable replies that a round needs.
        terms: deadlines and sizes.
        outlier_factor: a reply whose update is more than so many times as long as the median of those to the same work
            is quarantined; None: replies are not compared.
        secure_aggregation: what the federation promises its sites, as in ``Deployment``.
    """

    task: Task
    method: Method
    clients: tuple[str, ...]
    requests: tuple[Asked, ...] = ()
    seed: int = 0
    local: Local = Local()
    train_rounds: int = 20
    continue_rounds: int = 5
    minimum: int = 1
    terms: Terms = Terms()
    outlier_factor: float | None = 20.0
    secure_aggregation: bool = False

    def __post_init__(self) -> None:
        demand_given(self.method, given(secure_aggregation=self.secure_aggregation))
        demand_factor(self.outlier_factor)
        for name in ("train_rounds", "continue_rounds", "minimum"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for asked in self.requests:
            if asked.scope not in self.method.scopes:
                raise ConfigError(f"requests: {self.method.name} does not serve scope {asked.scope!r}")
            if asked.client is not None and asked.client not in self.clients:
                raise ConfigError(f"requests: no client {asked.client!r}; there are {', '.join(self.clients)}")
        listed = [asked.admitted.id for asked in self.requests]
        if twice := next((asked for at, asked in enumerate(self.requests) if listed[at] in listed[:at]), None):
            raise ConfigError(f"requests: {_named(twice)} is listed twice; take the later one away")
        if len(self.requests) > 1 and not self.method.repeats:
            raise ConfigError(f"requests: {self.method.name} serves one request only")

    @classmethod
    def load(cls, path: Path) -> Service:
        """Read a ``federation.toml``."""
        return config.build(cls, config.read(path), path.name)


class _Uncharted:
    """In place of a curve: in service, evaluation would cost as many messages again as the work."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def observe(self, phase: str, done: int, state: State) -> None:
        log.info("%s round %d done", phase, done)

    def dump(self) -> Any:
        return []

    def load(self, data: Any) -> None:
        """Nothing to load."""


class Life:
    """The life of a federation in service: its stages, each done once.

    Args:
        service: what to do.
        folder: of the server; a stage that is complete there is not done again.
        runtime: where the sites are.
    """

    def __init__(self, service: Service, folder: Path, runtime: Flower) -> None:
        self._service, self._folder, self._runtime = service, folder, runtime
        continued = replace(service.local, first_round=service.train_rounds)
        self._method = service.method.configured(continued, service.train_rounds, service.seed)

    def whole(self) -> State:
        """Do what is not done yet; returns the model at the end. Where it is kept, ``folder/life.json`` says.

        Raises:
            ConfigError: another process is at it, in the same folder.
        """
        with alone_in(self._folder):
            return self._whole()

    def _whole(self) -> State:
        service, method = self._service, self._method
        step = method.training(fedavg(service.local, "all"))
        phases: Sequence[Phase] = [Phase("train", step, service.train_rounds)]
        if has_own_training(method):
            phases = method.origin(service.task, service.local, service.train_rounds)
        state = self._stage("train", 0, phases, service.task.init(service.seed))
        local = replace(service.local, first_round=service.train_rounds)
        for number in range(1, len(service.requests) + 1):
            start = seen_by(method, state)
            state = self._stage("unlearn", number, method.phases(start, service.task), start)
            state = self._stage(
                "continue", number, [Phase("continue", fedavg(local), service.continue_rounds)], state
            )
        return state

    def _stage(self, kind: str, number: int, phases: Sequence[Phase], start: State) -> State:
        name = f"{number:03d}.{kind}"
        owner = self._owner(kind, number)
        folder = self._folder / "stages" / stage_folder(name, owner)
        self._runtime.tell([asked.admitted for asked in self._service.requests[:number]])
        outcome = finished(folder, owner) or self._run(folder, owner, phases, start, number=number)
        if outcome.diverged:
            raise ConfigError(f"{name}: {outcome.diverged} See {folder}; change the method's settings.")
        known = folder / "accuracy.json"
        if not known.is_file():
            write_json(known, self._accuracies(outcome.state, number))
        log.info("%s done: %s", name, json.loads(known.read_text()))
        write_json(self._folder / "life.json", {"stage": name, "model": str(folder / "model.safetensors")})
        return outcome.state

    def _run(self, folder: Path, owner: str, phases: Sequence[Phase], start: State, *, number: int) -> Outcome:
        meter = Metered(self._runtime)
        quorum = Quorum(meter, minimum=self._service.minimum, outlier_factor=self._service.outlier_factor)
        stage = Stage(folder, owner=owner, meter=meter, quorum=quorum, curve=_Uncharted())
        # Of a stage only its kind counts for the seed, and how many requests there were.
        return stage.run(phases, self._excluding(quorum, number), start, seed=stage_seed(self._service.seed, owner))

    def _excluding(self, federation: Federation, number: int) -> Federation:
        if not number:
            return federation
        return Excluding(federation, request=self._service.requests[number - 1].admitted.id)

    def _owner(self, kind: str, number: int) -> str:
        """Digest of all that determines a stage: later requests are none of it."""
        table = config.plain(replace(self._service, requests=self._service.requests[:number]))
        own = {key: value for key, value in table.items() if key not in _POLICIES}
        if not number:
            own = {key: value for key, value in own.items() if key not in ("continue_rounds",)}
        return config.digest({"kind": kind, "number": number, "service": own})

    def _accuracies(self, state: State, number: int) -> Mapping[str, float]:
        """What sites say of the model, weighted by their samples: on what they retain, and on what is forgotten."""
        parts: tuple[Part, ...] = ("retain", "forget") if number else ("all",)
        works = [Work("evaluate", state.params, state.buffers, part) for part in parts]
        totals = dict.fromkeys(parts, (0.0, 0.0))
        for reply in self._excluding(self._runtime, number).run(*works):
            accuracy = reply.metrics.get("accuracy", -1.0)
            if reason := fault(works[reply.work], reply) or ("" if 0 <= accuracy <= 1 else "it tells no accuracy"):
                log.warning("client %s has no say on the model: %s", reply.client, reason)
                continue
            part = parts[reply.work]
            totals[part] = (totals[part][0] + reply.weight * accuracy, totals[part][1] + reply.weight)
        return {part: right / weight for part, (right, weight) in totals.items() if weight}


def service_app(path: Path) -> ServerApp:
    """The ServerApp of the ``federation.toml`` at ``path``."""
    from letheon.runtimes.flower import Flower, server_app

    def main(grid: Grid, context: Context) -> None:
        _print_log()
        service = Service.load(path)
        runtime = Flower(grid, service.clients, terms=service.terms)
        state = Life(service, Path(str(context.run_config["folder"])), runtime).whole()
        print("model", tree.digest(state.params | state.buffers), flush=True)

    return server_app(main)


def _print_log() -> None:
    """Print what Letheon logs, and only that: a ServerApp's output is sent by HTTP, and httpx logs every request."""
    ours = logging.getLogger("letheon")
    ours.addHandler(logging.StreamHandler(sys.stdout))
    ours.setLevel(logging.INFO)
    ours.propagate = False
