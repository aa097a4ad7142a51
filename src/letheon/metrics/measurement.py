"""A measured value with what belongs to it, and the value "undefined"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["undefined", "uf", "collapsed", "void"]


@dataclass(frozen=True, slots=True)
class Undefined:
    """A value that does not exist, and why: never NaN, never 0.

    ``status``: ``undefined`` (no room between Origin and Retrain), ``uf`` (unsuccessful forgetting), ``collapsed``
    (the model is destroyed), ``void`` (the run cannot rank methods).
    """

    reason: str
    status: Status = "undefined"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A value with its 95 % interval. All shares are in per cent.

    Attributes:
        value: per cent, or why there is none.
        low, high: ends of the interval; None where undefined.
        n: number of samples that it rests on.
    """

    value: float | Undefined
    low: float | None
    high: float | None
    n: int

    def fields(self, name: str) -> dict[str, Any]:
        """As the JSON fields ``name``, ``name_low`` and ``name_high``; undefined is null."""
        value = None if isinstance(self.value, Undefined) else self.value
        return {name: value, f"{name}_low": self.low, f"{name}_high": self.high}
