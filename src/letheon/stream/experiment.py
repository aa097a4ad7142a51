"""A stream of requests: frozen, strict, and named by its digest, like an ``Experiment``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from letheon import config, schema
from letheon.errors import ConfigError, MethodError
from letheon.methods.base import Method
from letheon.methods.descent import Descent
from letheon.methods.retrain import Retrain
from letheon.request import Request
from letheon.tasks.base import Task
from letheon.tasks.text import TextTask
from letheon.training import Local

Later = Literal["held-out", "retained"]


@dataclass(frozen=True)
class Stream:
    """Fine-tune a language model, serve one request after another, train on, and ask after each what is still known.

    One holder has all texts: a federation with one client.

    Attributes:
        task: texts, requests, questions, model.
        method: of interest.
        compare: run beside it, from the same Origin. ``retrain``, where listed, is trained once, without what any
            request covers, and is the reference.
        seed: of the initial weights and every random draw.
        local: recipe of a round of the training before the requests and of the continued training.
        train_rounds: before the first request; 0: the task's model has learnt the texts already.
        continue_rounds: on what is retained, after the last request.
        guard: hold what a method's bases protect in the continued training, too (COP only).
        later: whether texts of requests yet to come are ``held-out``, as the papers do (TOFU's retain95 throughout), or
            still ``retained``, as in life.
        tokens: of an answer that the model writes, at most.
        device: where the model is, as torch names it.
        threads: of one kernel on a CPU; like the device, another number can change the last bits.
        title: for people.
    """

    task: Task
    method: Method
    compare: tuple[Method, ...] = ()
    seed: int = 0
    local: Local = Local(optimizer="adamw", lr=1e-3)
    train_rounds: int = 1
    continue_rounds: int = 0
    guard: bool = False
    later: Later = "held-out"
    tokens: int = 200
    device: str = "cpu"
    threads: int = 1
    title: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.task, TextTask):
            raise ConfigError(f"task: {self.task.name} has no texts; a stream is for language models")
        if self.train_rounds < 0 or self.continue_rounds < 0 or self.seed < 0:
            raise ConfigError("train_rounds, continue_rounds and seed: must not be negative")
        if self.tokens < 1 or self.threads < 1:
            raise ConfigError("tokens and threads: must be at least 1")
        if self.train_rounds == 0 and any(isinstance(m, Retrain) for m in (self.method, *self.compare)):
            raise ConfigError("retrain: without train_rounds nothing is known of how Origin was trained; leave it out")
        for method in (self.method, *self.compare):
            own = type(method).origin is not Method.origin  # is exact for a training run of its own only
            if "samples" not in method.scopes or not method.repeats or method.needs - {"text"} or own:
                raise MethodError(f"{method.name}: does not serve a stream of requests for samples; leave it out")
        _ = self.methods  # refuses methods listed twice

    @cached_property
    def texts(self) -> TextTask:
        """The task."""
        assert isinstance(self.task, TextTask)
        return self.task

    @cached_property
    def digest(self) -> str:
        """Names the run."""
        return config.digest(replace(self, title=""))

    @cached_property
    def methods(self) -> dict[str, Method]:
        """By label, Retrain first."""
        chosen = sorted((self.method, *self.compare), key=lambda method: not isinstance(method, Retrain))
        continued = replace(self.local, first_round=self.train_rounds)
        labels = [_label(method, chosen) for method in chosen]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ConfigError(f"compare: {twice[0]} is listed twice with the same settings")
        return {
            label: method.configured(continued, self.train_rounds, self.seed)
            for label, method in zip(labels, chosen, strict=True)
        }

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        """In the order in which they are served."""
        return tuple(Request("samples", samples=tuple(ids)) for ids in self.texts.requests())

    def admitted(self, served: int, *, withheld: bool = True) -> tuple[Request, ...]:
        """What the holder has admitted when the first ``served`` requests are in force; nothing before the first.

        Where later requests are held out they are among it. What the task withholds comes first: nobody trains on it,
        but Retrain (``withheld`` false), since Origin did.
        """
        if not served:
            return ()
        apart = tuple(self.texts.withheld()) if withheld else ()
        before = (Request("samples", samples=apart),) if apart else ()
        return (*before, *(self.requests if self.later == "held-out" else self.requests[:served]))

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = ()) -> Stream:
        """Read a stream's file, with ``--set`` overrides such as ``method.beta=0.2``."""
        table: dict[str, Any] = config.read(path)
        for override in overrides:
            table = config.override(table, override)
        return config.build(cls, table, path.name)


def _label(method: Method, among: Sequence[Method]) -> str:
    """A short name; where two share it, with what differs from the first of them."""
    short = _short(method)
    alike = [other for other in among if _short(other) == short]
    if method is alike[0]:
        return short
    first, own = (schema.flat(config.plain(m)) for m in (alike[0], method))
    differs = ", ".join(f"{k}={v}" for k, v in own.items() if first.get(k) != v)
    return f"{short}({differs})" if differs else short


def _short(method: Method) -> str:
    return method.label if isinstance(method, Descent) else method.name
