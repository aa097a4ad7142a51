"""What is put side by side: the quantities that the papers' columns and sentences are about, as our rows have them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Unit = Literal["%", "share", "ratio", "number"]
REQUESTS = 5
"""Of a stream, in COP's tables."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity.

    Attributes:
        meaning: in words, for the note under a table.
        unit: per cent (compared by difference, in points), a ``share`` in [0, 1], ``ratio`` (a cost, compared by
            quotient) or a plain number.
        close: two values whose difference is at most so large (for ratios: relative to the larger one) rank nobody.
        of_retention: says something about what is retained; where a run is void it says nothing.
    """

    meaning: str
    unit: Unit = "%"
    close: float = 1.0
    of_retention: bool = True
    decimals: int = 2
    """Of printed values."""

    def order(self, a: float, b: float) -> int:
        """−1 if a < b, 1 if a > b, 0 if the two are too close to tell."""
        limit = self.close * max(abs(a), abs(b)) if self.unit == "ratio" else self.close
        return 0 if abs(a - b) <= limit else -1 if a < b else 1


QUANTITIES: dict[str, Quantity] = {
    "mu_unlearned": Quantity("clean test accuracy right after unlearning", of_retention=False),
    "mu": Quantity("clean test accuracy after continued training", of_retention=False),
    "u_kr": Quantity("KR right after unlearning"),
    "ct_kr_max": Quantity("largest KR of continued training, rounds t ≥ 1"),
    "ct_kr_last": Quantity("KR after the last round of continued training"),
    "rr": Quantity("resurfacing rate with the largest KR"),
    "early_rise": Quantity("largest KR of the first five continued rounds less KR right after unlearning"),
    "bytes": Quantity(
        "bytes sent both ways, all of them (the paper's leave adapters and forget streams out)",
        unit="ratio",
        close=0.05,
        of_retention=False,
    ),
    "flops": Quantity(
        "FLOPs at clients, all of them (the paper's leave adapters and forget streams out)",
        unit="ratio",
        close=0.05,
        of_retention=False,
    ),
    "dispersion": Quantity("forgetting dispersion, relative to retained test features", unit="ratio", close=0.05),
    "rollback": Quantity("rollback tendency, mean of the first five continued rounds", unit="number", close=0.02),
    "barrier": Quantity("loss barrier on the data to forget, in nats", unit="number", close=0.05),
}

STREAM: dict[str, Quantity] = {
    "fr": Quantity("ROUGE-L recall (rouge_score, stemmed) on the texts of the requests so far", "share", close=0.02),
    "fp": Quantity("mean probability of their answers, normalised by length", "share", close=0.02),
    "es": Quantity("their extraction strength by OpenUnlearning's rule, which is never 0", "share", close=0.02),
    "em": Quantity("their exact memorisation", "share", close=0.02),
    "mu": Quantity(
        "model utility: the task's harmonic mean", "share", close=0.01, of_retention=False, decimals=3
    ),
}
"""What is measured after each request: ``fr_1`` after the first."""
QUANTITIES |= {f"{key}_{k}": quantity for key, quantity in STREAM.items() for k in range(1, REQUESTS + 1)}
QUANTITIES |= {
    "mu_range": replace(STREAM["mu"], meaning="largest less smallest MU over the requests"),
    "mu_fall": replace(STREAM["mu"], meaning="MU after the first request less MU after the last"),
    "rank_gain": replace(STREAM["mu"], meaning="MU after the last request, largest cap less smallest"),
    "rank_es": replace(STREAM["es"], meaning="largest ES over all caps, after the last request"),
}
"""By key. One point is the resolution at which a run of some hundred samples can tell two shares apart."""
