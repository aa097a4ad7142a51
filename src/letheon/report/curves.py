"""The curves of a run on one round axis: training, unlearning (phase U), continued training (phase C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from letheon.curve import Point
from letheon.metrics.interval import wilson
from letheon.results import Results, number

Kind = Literal["origin", "retrain", "main", "other"]


@dataclass(frozen=True, slots=True)
class Dot:
    """A model on the round axis, in per cent."""

    x: int
    phase: str
    kr: float
    mu: float


@dataclass(frozen=True, slots=True)
class Line:
    """One method's way along the axis. Origin has only the first stretch."""

    label: str
    kind: Kind
    training: tuple[Dot, ...] = ()
    unlearning: tuple[Dot, ...] = ()
    continued: tuple[Dot, ...] = ()


@dataclass(frozen=True, slots=True)
class Band:
    """Wilson interval of Retrain's KR at each point of phase C."""

    x: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A phase of the method of interest on the axis."""

    phase: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Curves:
    """All lines, and where the axis changes.

    Attributes:
        lines: Origin, Retrain, then the methods.
        request: where phase U begins.
        resumed: where phase C begins; methods that unlearn in fewer rounds wait until then, unchanged.
        end: of phase C.
        stretches: the phases of the method of interest within phase U.
        band: what Retrain's KR can be told from.
        n: samples that KR rests on.
    """

    lines: tuple[Line, ...]
    request: int
    resumed: int
    end: int
    stretches: tuple[Stretch, ...]
    band: Band
    n: int


def curves(results: Results, main: str) -> Curves:
    """The curves of a run. Retrain trains anew beside Origin: its rounds lie on the stretch of training."""
    run, retrain = results.run, results.retrain
    others = [label for label in run.experiment.methods if label != retrain]
    request = max(len(run.origin.points), len(run.unlearned[retrain].points)) - 1
    longest = max((len(run.unlearned[label].points) - 1 for label in others), default=1)
    resumed = request + max(1, longest)
    anew = _dots(results, run.unlearned[retrain].points, 0)[1:]  # its first point is Origin, which it leaves behind
    lines = [
        Line("Origin", "origin", training=_dots(results, run.origin.points, 0)),
        Line(retrain, "retrain", training=anew, continued=_continued(results, retrain, resumed)),
    ]
    for label in others:
        unlearning = _dots(results, run.unlearned[label].points, request)
        kind: Kind = "main" if label == main else "other"
        lines.append(Line(label, kind, (), unlearning, _continued(results, label, resumed)))
    return Curves(
        lines=tuple(lines),
        request=request,
        resumed=resumed,
        end=resumed + run.experiment.continue_rounds,
        stretches=_stretches(run.unlearned[main].points, request) if main != retrain else (),
        band=_band(results, resumed),
        n=results.n,
    )


def _dots(results: Results, points: list[Point], start: int) -> tuple[Dot, ...]:
    return tuple(Dot(start + i, point.phase, point.kr, number(results.mu(point))) for i, point in enumerate(points))


def _continued(results: Results, label: str, resumed: int) -> tuple[Dot, ...]:
    return _dots(results, results.run.continued[label].points, resumed)


def _stretches(points: list[Point], start: int) -> tuple[Stretch, ...]:
    found: list[Stretch] = []
    for i, point in enumerate(points[1:], start):
        if found and found[-1].phase == point.phase:
            found[-1] = Stretch(point.phase, found[-1].start, i + 1)
        else:
            found.append(Stretch(point.phase, i, i + 1))
    return tuple(found)


def _band(results: Results, resumed: int) -> Band:
    bits = results.bits(results.run.continued[results.retrain])
    ends = [wilson(int(row.sum()), results.n) for row in bits]
    return Band(
        tuple(resumed + i for i in range(len(ends))),
        tuple(100.0 * low for low, _ in ends),
        tuple(100.0 * high for _, high in ends),
    )
