"""Lethe's alignment log as plain data: for each layer and rectification round, what Eq. (9) to (14) came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from letheon.methods.base import Method
from letheon.methods.lethe import ALIGNMENT, AMPLIFIED, Lethe
from letheon.methods.rectify import BRANCHES, COLUMNS
from letheon.pipeline import Run


@dataclass(frozen=True, slots=True)
class Cell:
    """One layer in one round.

    Attributes:
        layer: index into the layers.
        round: counted from 1.
        s: inner product of the two streams (Eq. 9).
        cosine: s over the norms; 0 if a stream did not move.
        lower, upper: the admissible interval of γ (Eq. 13); both 0 outside the branch ``subtract``.
        gamma: γ used.
        branch: of Eq. (10).
        holds: whether both inequalities of Eq. (14) hold.
    """

    layer: int
    round: int
    s: float
    cosine: float
    lower: float
    upper: float
    gamma: float
    branch: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Alignments:
    """The log of one method.

    Attributes:
        label: of the method.
        layers: their names.
        rounds: how many.
        cells: in the order of rounds, then layers.
        scales: for each round, the length of the step taken, in lengths of Δ̃ (Eq. 10).
        ascent: steps of the adapter's ascent (Eq. 6) and the mean loss reached, in nats; empty without an adapter.
    """

    label: str
    layers: tuple[str, ...]
    rounds: int
    cells: tuple[Cell, ...]
    scales: tuple[float, ...]
    ascent: tuple[float, ...]

    @property
    def is_scaled(self) -> bool:
        """Whether any step was longer or shorter than Eq. (10) makes it."""
        return any(scale != 1.0 for scale in self.scales)

    @property
    def broken(self) -> tuple[Cell, ...]:
        """Where Eq. (14) did not hold."""
        return tuple(cell for cell in self.cells if not cell.holds)


def alignments(run: Run) -> list[Alignments]:
    """The logs of all methods of a run that kept one."""
    found = []
    for label, method in run.experiment.methods.items():
        logs = run.unlearned[label].logs
        rounds = logs.get(ALIGNMENT, [])
        if rounds:
            layers = _layers(run, method, len(rounds[0]))
            cells = [_cell(i, t, row) for t, rows in enumerate(rounds, 1) for i, row in enumerate(rows)]
            scales = [rows[0][COLUMNS.index("scale")] for rows in rounds]
            ascent = tuple(logs[AMPLIFIED][-1]) if AMPLIFIED in logs else ()
            found.append(Alignments(label, tuple(layers), len(rounds), tuple(cells), tuple(scales), ascent))
    return found


def _layers(run: Run, method: Method, count: int) -> Sequence[str]:
    names = list(method.layers(run.origin.state, run.experiment.task)) if isinstance(method, Lethe) else []
    return names if len(names) == count else [f"layer {i}" for i in range(1, count + 1)]


def _cell(layer: int, round: int, row: Sequence[float]) -> Cell:
    log = dict(zip(COLUMNS, row, strict=True))
    norms = log["retain_norm"] * log["forget_norm"]
    return Cell(
        layer=layer,
        round=round,
        s=log["s"],
        cosine=max(-1.0, min(1.0, log["s"] / norms)) if norms > 0 else 0.0,
        lower=log["lower"],
        upper=log["upper"],
        gamma=log["gamma"],
        branch=BRANCHES[int(log["branch"])],
        holds=bool(log["holds"]),
    )
