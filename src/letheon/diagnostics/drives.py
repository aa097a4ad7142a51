"""Training that a run has not stored, done again or on top: beside the run folder, whose stages it never touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from letheon.client import Client
from letheon.curve import Evaluator
from letheon.life import continued_phases, stage_seed
from letheon.methods.base import fedavg
from letheon.middleware import Excluding, Quorum
from letheon.phase import Phase, State, drive, seed_of
from letheon.pipeline import Run
from letheon.request import Part
from letheon.runtimes.inprocess import InProcess
from letheon.training import Local


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Training until something is known again.

    Attributes:
        state: where it ended.
        correct: right answers on the data to forget, at the start and after each round.
    """

    state: State
    correct: tuple[int, ...]


class Drives:
    """Trains from the models of a run. Open it with ``drives``.

    Args:
        run: a finished run.
        runtime: its clients, which have admitted all requests.
        evaluate: scores a state as the run did.
    """

    def __init__(self, run: Run, runtime: InProcess, evaluate: Evaluator) -> None:
        self._run = run
        self._runtime = runtime
        self._evaluate = evaluate

    @property
    def local(self) -> Local:
        """The recipe of continued training."""
        return replace(self._run.experiment.local, first_round=self._run.experiment.train_rounds)

    def continued(self, start: State, rounds: int) -> list[State]:
        """``start``, and the states after each of the first rounds of continued training from it.

        Seeded as in the run: from a method's unlearned state these are the very states that the run went through.
        """
        states, experiment = [start], self._run.experiment
        phases = [replace(phase, rounds=rounds) for phase in continued_phases(experiment)]
        quorum = Quorum(self._runtime, minimum=experiment.minimum)
        federation = Excluding(quorum, request=self._run.population.requests[-1].id)
        seed = stage_seed(experiment.seed, "continue")
        drive(phases, federation, start, seed=seed, observers=[lambda _, __, state: states.append(state)])
        return states

    def differs(self, label: str, states: list[State]) -> int | None:
        """The first round whose state is not scored exactly as the method's was in the run; None if there is none.

        A run stores no states between, but the outcome of every sample to forget and the loss in full precision.
        """
        points = self._run.continued[label].points
        for t, (point, state) in enumerate(zip(points[1:], states[1:], strict=False), 1):
            if self._evaluate(point.phase, point.round, state) != point:
                return t
        return None

    def until(
        self, start: State, part: Part, local: Local, *, limit: int, knows: Callable[[State], int], enough: float
    ) -> Course:
        """FedAvg on ``part`` for at most ``limit`` rounds, until ``knows`` gives ``enough`` right answers.

        ``all`` is the data before the request: this is what an attacker does who has them, not a service.
        """
        request, minimum = self._run.population.request, self._run.experiment.minimum
        quorum = Quorum(self._runtime, minimum=minimum)
        federation = quorum if part == "all" else Excluding(quorum, request=request.id)
        correct = [knows(start)]
        if correct[0] >= enough:
            return Course(start, tuple(correct))
        phase = Phase("relearn", fedavg(local, part), limit, lambda _: correct[-1] >= enough)
        seed = seed_of(f"{self._run.experiment.seed}|diagnostics|{part}")
        end = drive([phase], federation, start, seed=seed, observers=[lambda _, __, s: correct.append(knows(s))])
        return Course(end, tuple(correct))


@contextmanager
def drives(run: Run, *, workers: int | None = None) -> Iterator[Drives]:
    """The federation of a run as it is after the last request; ends its workers on leaving."""
    task, clients = run.experiment.task, sorted(run.population.clients.items())
    with ExitStack() as stack:
        runtime = stack.enter_context(InProcess([Client(n, data, task) for n, data in clients], workers=workers))
        runtime.admit(run.population.requests)
        evaluate = Evaluator(task, run.population, workers=workers)
        stack.callback(evaluate.close)
        yield Drives(run, runtime, evaluate)
