"""What a stream of requests on a language model will cost: texts, FLOPs, disk; time, as an estimate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from letheon import cop
from letheon.calibration import timed
from letheon.cop import Batch
from letheon.journal import KEPT
from letheon.methods.base import Method, fedavg
from letheon.methods.descent import Descent
from letheon.methods.language import LanguageMethod
from letheon.methods.retrain import Retrain
from letheon.middleware import DryRun, Metered
from letheon.phase import Phase, State
from letheon.plan import REPORT_BYTES, PhasePlan, Plan, StagePlan, repeated, summed
from letheon.runtimes.alone import threads
from letheon.stream.experiment import Stream
from letheon.stream.life import GLANCED, HOLDER
from letheon.tasks.base import buffers_of, params_of
from letheon.tasks.text import FORGET, Questions
from letheon.text.answers import TOKENS
from letheon.text.language import LanguageModel, generated

QUESTION_BYTES = 300
"""Allowance for all scores of one question in an examination's file."""
MOMENT = 0.1
"""Seconds for which each pass is timed, at least."""
TIMED = 4
"""Texts, and tokens of an answer, with which the machine is timed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What examining one model takes, at most: answers may end before ``Stream.tokens``.

    Attributes:
        questions: to answer.
        texts: to read: an answer, its paraphrase and false answers each with its question.
        tokens: of these texts.
        steps: of writing answers, each a pass of a batch of prompts of equal length.
        written: tokens of all answers.
    """

    questions: int
    texts: int
    tokens: int
    steps: int
    written: int


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds on this machine.

    Attributes:
        flop: of training, for each FLOP.
        token: for each token that is read.
        step: for each step of writing answers.
    """

    flop: float
    token: float
    step: float


def plan(stream: Stream) -> Plan:
    """Price ``stream`` without training it; its models are made, but not loaded.

    Phases of the same name are added up over a method's requests. Time comes from a few passes on this machine.
    """
    with threads(stream.threads):
        return _Pricing(stream).plan()


class _Pricing:
    def __init__(self, stream: Stream) -> None:
        self._stream, self._task = stream, stream.texts
        self._texts = self._task.train()
        self._module: LanguageModel = self._task.prototype().to(stream.device)  # type: ignore[assignment]
        self._state = State(params_of(self._module), buffers_of(self._module))
        self._speed = self._timed()
        self._asked = [dict(sets) for sets in self._task.asked()]
        self._exams: dict[int, Asked] = {}
        self._glance = self._counted(
            [{FORGET: Questions({i: p for sets in self._asked for i, p in sets[FORGET].pairs.items()})}], tokens=0
        ).tokens + GLANCED * self._tokens_each

    @cached_property
    def _tokens_each(self) -> float:
        """Mean length of what is learnt."""
        return float((self._texts.inputs >= 0).sum(1).double().mean())

    def plan(self) -> Plan:
        stream = self._stream
        count = len(stream.requests)
        origin = [Phase("train", fedavg(stream.local, "all"), stream.train_rounds)] if stream.train_rounds else []
        stages = [StagePlan("origin", (*self._phases(origin, None, 0), self._exam(count)))]
        models = {"origin": 1}
        for label, method in stream.methods.items():
            served = [count] if isinstance(method, Retrain) else list(range(1, count + 1))
            parts = [
                (*self._phases(method.phases(self._state, self._task), method, k), self._exam(k)) for k in served
            ]
            stages.append(StagePlan(f"{label}.unlearn", tuple(map(summed_alike, zip(*parts, strict=True)))))
            if stream.continue_rounds:
                again = [Phase("continue", fedavg(stream.local), stream.continue_rounds)]
                stages.append(StagePlan(f"{label}.continue", (*self._phases(again, None, count), self._exam(count))))
            models[label] = len(served) + bool(stream.continue_rounds)
        total = summed([phase for stage in stages for phase in stage.phases])
        kept, peak = self._disk(models)
        return Plan(stream.digest, tuple(stages), total, kept, peak, 1, tuple(self._notes(sum(models.values()))))

    def _phases(self, phases: Sequence[Phase], method: Method | None, served: int) -> Iterator[PhasePlan]:
        for phase in phases:
            meter, state = Metered(DryRun({HOLDER: self._sizes(method, served)}, self._task)), self._state
            for t in range(min(2, phase.rounds)):
                state = phase.step(meter, state, t)
                meter.observe(str(t), 1, state)
            cost = repeated(meter.phases, phase.rounds)
            seconds = self._speed.flop * cost.flops + phase.rounds * self._speed.token * self._glance
            stops = isinstance(method, LanguageMethod) and method.searches
            # One holder in this process: no byte travels.
            counts = (phase.rounds, cost.rounds, cost.samples, cost.flops)
            yield PhasePlan(phase.name, *counts, 0, 0, seconds, is_exact=not stops)

    def _sizes(self, method: Method | None, served: int) -> dict[str, int]:
        """Texts of each part when ``served`` requests are in force."""
        admitted = self._stream.admitted(served, withheld=not isinstance(method, Retrain))
        away = {i for request in admitted for i in request.samples}
        forget = len(self._stream.requests[served - 1].samples) if served else 0
        return {"all": len(self._texts), "forget": forget, "retain": len(self._texts) - len(away)}

    def _exam(self, served: int) -> PhasePlan:
        found = self._examined(served)
        flops = self._task.flops / self._tokens_each * (found.tokens + found.written)
        seconds = self._speed.token * found.tokens + self._speed.step * found.steps
        return PhasePlan("examine", 1, 0, float(found.texts), flops, 0, 0, seconds, is_exact=False)

    def _examined(self, served: int) -> Asked:
        """After so many requests; every method is asked the same, so it is counted once."""
        if served not in self._exams:
            sets = [*self._asked[:served], dict(self._task.questions())]
            self._exams[served] = self._counted(sets, tokens=self._stream.tokens)
        return self._exams[served]

    def _counted(self, sets: Sequence[Mapping[str, Questions]], *, tokens: int) -> Asked:
        encoder = self._task.encoder
        asked = [questions for named in sets for questions in named.values()]
        sizes, prompts = list[int](), Counter[int]()
        for questions in asked:
            for pair in questions.pairs.values():
                answers = [pair.answer, pair.paraphrase or pair.answer, *pair.false]
                sizes += [len(encoder.encode(pair.question, answer).ids) for answer in answers]
                if questions.reply != "none":
                    prompts[len(encoder.prompt_ids(pair.question))] += 1
        room = {length: min(tokens, encoder.max_length - length) for length in prompts}
        steps = sum(room[n] * -(-many // max(1, TOKENS // (n + room[n]))) for n, many in prompts.items())
        written = sum(room[length] * many for length, many in prompts.items())
        return Asked(sum(len(q.pairs) for q in asked), len(sizes), sum(sizes), steps, written)

    def _timed(self) -> Speed:
        device, texts = self._stream.device, self._texts.take(torch.arange(min(TIMED, len(self._texts))))
        ids, targets = texts.inputs.to(device), texts.targets.to(device)
        tokens = int((texts.inputs >= 0).sum())

        def train() -> None:
            self._task.loss(self._module(ids), targets).backward()
            self._module.zero_grad(set_to_none=True)

        with torch.no_grad():
            reading = timed(lambda: self._module(ids), MOMENT) / tokens
        prompt = ids[:1, : max(1, int((ids[0] >= 0).sum()) // 2)].tolist()
        writing = timed(lambda: generated(self._module, prompt, new=TIMED, stop=None), MOMENT) / TIMED
        flops = 3.0 * self._task.flops / self._tokens_each * tokens
        return Speed(timed(train, MOMENT) / flops, reading, writing)

    def _disk(self, models: Mapping[str, int]) -> tuple[int, int]:
        """The folder's size at the end, and at most on the way. A method's last model lies there twice."""
        one = sum(t.numel() * t.element_size() for t in (self._state.params | self._state.buffers).values())
        exam = QUESTION_BYTES * self._examined(len(self._stream.requests)).questions
        kept = REPORT_BYTES
        for label, many in models.items():
            kept += one * (many + 1) + exam * many + self._remembered(self._stream.methods.get(label), many)
        return kept, kept + (KEPT + 1) * one

    def _remembered(self, method: Method | None, models: int) -> int:
        """Bytes of what a method remembers after each request, at most."""
        if isinstance(method, LanguageMethod) and (fixed := method.kept_bytes(self._state.params)):
            return models * fixed
        if not isinstance(method, Descent) or method.cop is None:
            return 0
        chosen = method.cop.selection
        spaces = cop.find_spaces(self._module, Batch(self._texts.inputs[:1].clamp_min(0).to(self._stream.device)))
        widths = [self._module.get_parameter(f"{space}.weight").shape[1] for space in spaces]
        return sum(
            4 * width * min(chosen.columns(width), served * chosen.columns_each(width))
            for width in widths
            for served in range(1, models + 1)
        )

    def _notes(self, models: int) -> Iterator[str]:
        sizes = sorted({len(request.samples) for request in self._stream.requests})
        each = " to ".join(dict.fromkeys((str(sizes[0]), str(sizes[-1]))))
        found = self._examined(len(self._stream.requests))
        parameters = sum(t.numel() for t in self._state.params.values())
        yield f"{len(self._texts):,} texts learnt, {len(self._stream.requests)} requests for {each} of them"
        yield f"{parameters:,} parameters; {models} models, each examined with up to {found.questions} questions"


def summed_alike(phases: Sequence[PhasePlan]) -> PhasePlan:
    """The sum of one phase over several requests."""
    return replace(summed(phases), phase=phases[0].phase)
