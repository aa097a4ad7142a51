"""Requests one after another: the matrix m[k][j] of a metric on F_j after request k, and what comes back.

Requests are numbered from 1, as in tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from letheon.errors import DataError
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.text.scores import Scores, Value, comparable, difference, named

Row = Sequence[Scores]
"""A metric on F_1 … F_k, one after another."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The lower triangle, row k having the k entries m[k][1] … m[k][k]. A run that goes on has the first rows only."""

    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        for k, row in enumerate(self.rows, 1):
            if len(row) != k:
                raise DataError(f"after request {k} the metric is wanted on each of {k} requests, there are {len(row)}")
            for j, scores in enumerate(row, 1):
                comparable(scores, self.rows[j - 1][j - 1])
        if self.rows:
            together(self.rows[-1])  # refuses items of two requests

    def cells(self) -> list[list[Measurement]]:
        """All m[k][j]."""
        return [[scores.measured() for scores in row] for row in self.rows]

    def so_far(self) -> list[Measurement]:
        """COP's convention: after request k the metric over all items of F_1 … F_k, each item counting once."""
        return so_far(self.rows)

    def relapse(self, j: int) -> Measurement:
        """m[K][j] − m[j][j], paired: above 0, later requests brought back what request j had removed."""
        last = len(self.rows)
        if not 1 <= j <= last:
            raise ValueError(f"relapse: request {j} of {last}")
        if j == last:
            return Measurement(Undefined("no request came after it"), None, None, len(self.rows[-1][-1].values))
        return difference(self.rows[-1][j - 1], self.rows[j - 1][j - 1])

    def after_training(self, continued: Row) -> list[Measurement]:
        """For each request, the metric after continued training less m[K][j]: above 0, training brought it back."""
        last = self.rows[-1] if self.rows else ()
        if len(continued) != len(last):
            raise DataError(f"{len(last)} requests were served, continued training is measured on {len(continued)}")
        return [difference(now, then) for now, then in zip(continued, last, strict=True)]


def so_far(rows: Sequence[Row]) -> list[Measurement]:
    """COP's convention for rows whose k-th entry holds k requests."""
    return [together(row).measured() for row in rows]


def before(each_request: Row) -> list[Measurement]:
    """The model before any request, in COP's convention: a column that changes with k though the model does not."""
    return so_far([each_request[:k] for k in range(1, len(each_request) + 1)])


def together(row: Row) -> Scores:
    """All items of several requests as one set.

    Raises:
        DataError: the metric differs between requests, or an item is in two of them.
    """
    if not row:
        raise DataError("no requests to put together")
    values: dict[str, Value] = {}
    for scores in row:
        if scores.definition != row[0].definition:
            raise DataError(
                f"{scores.definition} and {row[0].definition} are different numbers and have no common mean"
            )
        twice = values.keys() & scores.values.keys()
        if twice:
            raise DataError(f"in two requests: {named(twice)}")
        values |= scores.values
    return Scores(row[0].definition, values, row[0].unit)
