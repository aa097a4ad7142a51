"""The life of a stream: train, serve one request after another with each method, train on, and examine every model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from letheon import config, cop, tree
from letheon.client import Client, load
from letheon.cop import Batch
from letheon.curve import Point
from letheon.data import Data
from letheon.folder import claim, stages, versions
from letheon.methods.base import Method, fedavg
from letheon.methods.descent import Descent
from letheon.methods.retrain import Retrain
from letheon.middleware import Excluding
from letheon.phase import Phase, State, Step
from letheon.runtimes.alone import Alone, threads
from letheon.shelf import Listener, Shelf, Silent, Stack
from letheon.stage import Outcome
from letheon.stream.experiment import Stream
from letheon.tasks.text import FORGET, Questions
from letheon.text.answers import read
from letheon.text.encoding import Encoded
from letheon.text.exam import Exam, digest, examine, read_exam, write_exam
from letheon.text.language import LanguageModel
from letheon.text.pairs import Pair
from letheon.work import Federation

HOLDER = "holder"
EXAM = "exam.json"
GLANCED = 100
"""Questions of the first utility set that are looked at after every round."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What one method made of the stream.

    Attributes:
        outcomes: after each request; of Retrain one, after all.
        exams: of the same models.
        continued: after continued training; None if there is none.
        continued_exam: of that model.
    """

    outcomes: tuple[Outcome, ...]
    exams: tuple[Exam, ...]
    continued: Outcome | None
    continued_exam: Exam | None


@dataclass(frozen=True, slots=True, eq=False)
class StreamRun:
    """What a stream leaves behind.

    Attributes:
        stream: what was run.
        folder: where everything lies.
        origin: the model before the first request.
        origin_exam: of that model, on the texts of all requests.
        served: by method label.
    """

    stream: Stream
    folder: Path
    origin: Outcome
    origin_exam: Exam
    served: Mapping[str, Served]


def stage_names(stream: Stream) -> list[tuple[str, dict[str, int]]]:
    """Every stage with the rounds of its phases, in the order in which they run."""
    start, task = State({}), stream.texts
    found = [("origin", {"train": stream.train_rounds})]
    for label, method in stream.methods.items():
        if isinstance(method, Retrain):
            found.append((f"{label}.unlearn", {"retrain": method.rounds or 1}))
        else:
            rounds = {phase.name: phase.rounds for phase in method.phases(start, task)}
            found += [(name, rounds) for name in _serving(stream, label)]
        if stream.continue_rounds:
            found.append((f"{label}.continue", {"continue": stream.continue_rounds}))
    return found


def run(
    stream: Stream,
    folder: Path,
    *,
    resume: bool = False,
    cache: Path | None = None,
    workers: int | None = None,
    listener: Listener | None = None,
) -> StreamRun:
    """Run the whole stream and write ``folder``; arguments and errors as of ``pipeline.run``.

    ``workers`` has no effect: there is one holder, and its work is done by one thread.
    """
    task = stream.texts
    _ = stage_names(stream)  # a method refuses what it cannot serve before anything is trained
    texts = task.train()
    data = _data_digest(stream, texts)
    cache = claim(folder, stream, data=data, cache=cache, resume=resume)
    with threads(stream.threads):
        module: LanguageModel = task.prototype().to(stream.device)  # type: ignore[assignment]
        place = stages(folder, cache, used=versions(), data=data)
        return _Life(stream, module, texts, place, listener or Silent()).whole(folder)


class _Life:
    def __init__(self, stream: Stream, module: LanguageModel, texts: Data, place: Path, listener: Listener) -> None:
        self._stream, self._module, self._task = stream, module, stream.texts
        self._encoder = self._task.encoder
        self._client = Client(HOLDER, texts, self._task)
        self._shelf = Shelf(place, Alone(self._client, module), self._glance, listener, seed=stream.seed)
        self._asked: list[dict[str, Questions]] = [
            {f"{name}{number}": asked for name, asked in sets.items()}
            for number, sets in enumerate(self._task.asked(), 1)
        ]
        self._held = dict(self._task.questions())
        forget = [sets[f"{FORGET}{number}"] for number, sets in enumerate(self._asked, 1)]
        self._glanced = (
            self._encoded([pair for asked in forget for pair in asked.pairs.values()]),
            self._encoded(list(next(iter(self._held.values())).pairs.values())[:GLANCED]),
        )

    def _encoded(self, pairs: Sequence[Pair]) -> list[Encoded]:
        return [self._encoder.encode(pair.question, pair.answer) for pair in pairs]

    def whole(self, folder: Path) -> StreamRun:
        """Origin, then each method."""
        stream = self._stream
        self._admit(0)
        training = [Phase("train", fedavg(stream.local, "all"), stream.train_rounds)] if stream.train_rounds else []
        origin = self._stage("origin", "base", training, self._task.init(stream.seed), stack=lambda inner: inner)
        count = len(stream.requests)
        origin_exam = self._exam("origin", "base", origin.state, count)
        served = {label: self._served(label, method, origin.state) for label, method in stream.methods.items()}
        return StreamRun(stream, folder, origin, origin_exam, served)

    def _served(self, label: str, method: Method, state: State) -> Served:
        stream, owner, count = self._stream, config.digest(method), len(self._stream.requests)
        outcomes, exams = list[Outcome](), list[Exam]()
        for number, name in enumerate(_serving(stream, label), 1):
            served = count if isinstance(method, Retrain) else number
            stack = self._admit(served, withheld=not isinstance(method, Retrain))
            phases = method.phases(state, self._task) if not any(o.diverged for o in outcomes) else []
            outcomes.append(self._stage(name, owner, phases, state, stack=stack))
            state = outcomes[-1].state
            exams.append(self._exam(name, owner, state, served))
        if not stream.continue_rounds:
            return Served(tuple(outcomes), tuple(exams), None, None)
        name, owner = f"{label}.continue", config.digest([config.plain(method), stream.continue_rounds, stream.guard])
        phases = [Phase("continue", self._continued(method), stream.continue_rounds)]
        phases = [] if outcomes[-1].diverged else phases
        continued = self._stage(name, owner, phases, state, stack=self._admit(count))
        return Served(tuple(outcomes), tuple(exams), continued, self._exam(name, owner, continued.state, count))

    def _continued(self, method: Method) -> Step:
        """A round of FedAvg on what is retained; with ``guard``, without what would move protected responses."""
        step = fedavg(replace(self._stream.local, first_round=self._stream.train_rounds))
        if not (self._stream.guard and isinstance(method, Descent) and method.cop):
            return step
        first = self._client.data.inputs[:1]
        spaces = cop.find_spaces(self._module, Batch(first.to(self._stream.device)))

        def guarded(federation: Federation, state: State, t: int) -> State:
            after = step(federation, state, t)
            update = cop.confined(tree.sub(after.params, state.params), spaces, method.bases(state))
            return replace(state.moved(update), buffers=after.buffers)

        return guarded

    def _admit(self, served: int, *, withheld: bool = True) -> Stack:
        """Have the holder admit what it has when so many requests are served; the last of these is in force."""
        self._client.requests = {}
        for request in self._stream.admitted(served, withheld=withheld):
            self._client.admit(request)
        return lambda inner: Excluding(inner, request=self._stream.requests[served - 1].id)

    def _stage(self, name: str, owner: str, phases: Sequence[Phase], start: State, *, stack: Stack) -> Outcome:
        return self._shelf.stage(name, self._owner(name, owner), phases, start, stack=stack)

    def _owner(self, name: str, owner: str) -> str:
        """Everything that determines a stage's outcome: what comes before it, and its own settings."""
        shared = config.plain(self._stream)
        base = {key: shared[key] for key in ("task", "seed", "local", "train_rounds", "later")}
        return config.digest({"base": base, "stage": name.rpartition(".")[2], "own": owner})

    def _exam(self, name: str, owner: str, state: State, served: int) -> Exam:
        """The examination of a model, from its stage's folder if it is there and of this very model."""
        sets = {name: asked for sets in self._asked[:served] for name, asked in sets.items()} | self._held
        tokens = self._stream.tokens
        identity = {"model": tree.digest(state.params | state.buffers), "questions": digest(sets, new=tokens)}
        path = self._shelf.folder(name, self._owner(name, owner)) / EXAM
        found = read_exam(path, identity)
        if found is None:
            load(self._module, state.params, state.buffers)
            found = examine(self._module, self._encoder, sets, new=tokens, identity=identity)
            write_exam(path, found)
        return found

    def _glance(self, phase: str, done: int, state: State) -> Point:
        """Teacher-forced: the share of answer tokens that are likeliest, on what is asked to be forgotten and else."""
        load(self._module, state.params, state.buffers)
        (forget, loss), (kept, _) = (self._right(texts) for texts in self._glanced)
        return Point(phase, done, kr=forget, mu=kept, forget_loss=loss, forget_bits="", test_correct=(), attack=None)

    def _right(self, texts: Sequence[Encoded]) -> tuple[float, float]:
        readings = read(self._module, texts)
        right = sum(a == b for r in readings for a, b in zip(r.labels, r.likeliest, strict=True))
        tokens = sum(len(r.labels) for r in readings)
        loss = -sum(float(r.log_probs.sum()) for r in readings) / tokens
        return 100.0 * right / tokens, loss


def _serving(stream: Stream, label: str) -> list[str]:
    """Names of a method's stages, one for each request; one for Retrain."""
    if isinstance(stream.methods[label], Retrain):
        return [f"{label}.unlearn"]
    return [f"{label}.unlearn{number}" for number in range(1, len(stream.requests) + 1)]


def _data_digest(stream: Stream, data: Data) -> str:
    task = stream.texts
    total = hashlib.sha256(tree.digest({"i": data.inputs, "t": data.targets, "n": data.ids}).encode())
    for sets in (task.questions(), *task.asked()):
        total.update(digest(sets, new=stream.tokens).encode())
    total.update(repr([list(ids) for ids in (*task.requests(), task.withheld())]).encode())
    return total.hexdigest()[:16]


def module_of(run: StreamRun, state: State) -> LanguageModel:
    """The model of a state."""
    module: LanguageModel = run.stream.texts.prototype()  # type: ignore[assignment]
    with torch.no_grad():
        load(module, state.params, state.buffers)
    return module
