"""Model utility (MU): clean test accuracy, whole and where it is worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from letheon.metrics.interval import share
from letheon.metrics.measurement import Measurement, Undefined

COLLAPSE_AT_ONCE = 20.0
COLLAPSE_AT_END = 10.0


def utility(correct: Sequence[int], counts: Sequence[int], *, without: int | None = None) -> Measurement:
    """MU in per cent from correct and total test samples of each class.

    Args:
        correct: right answers of each class.
        counts: test samples of each class.
        without: a forgotten class to leave out (class level: MU is over the retained classes).
    """
    kept = [c for c in range(len(counts)) if c != without]
    return share(sum(correct[c] for c in kept), sum(counts[c] for c in kept))


def worst_class(correct: Sequence[int], counts: Sequence[int], *, without: int | None = None) -> Measurement:
    """Accuracy of the class that fares worst."""
    shares = [share(correct[c], counts[c]) for c in range(len(counts)) if c != without and counts[c]]
    return min(shares, key=lambda m: m.value if isinstance(m.value, float) else 0.0)


def worst_client(
    correct: Sequence[int], counts: Sequence[int], labels: Mapping[str, Sequence[int]]
) -> tuple[str, float]:
    """The client that fares worst, and its accuracy in per cent.

    The federation has no test data per client: the test set is reweighted to each client's own mix of labels.
    """
    accuracy = [right / n if n else 0.0 for right, n in zip(correct, counts, strict=True)]
    values = {
        client: 100.0 * sum(a * n for a, n in zip(accuracy, mix, strict=True)) / sum(mix)
        for client, mix in labels.items()
        if sum(mix)
    }
    worst = min(sorted(values), key=lambda client: values[client])
    return worst, values[worst]


def collapsed(mu: float, mu_end: float, mu_origin: float, mu_retrain_end: float) -> Undefined | None:
    """Whether the model is destroyed (per cent): 20 points lost at once, or 10 behind Retrain at the end."""
    if mu < mu_origin - COLLAPSE_AT_ONCE:
        return Undefined(f"collapsed: MU {mu:.2f} after unlearning, {mu_origin:.2f} before", "collapsed")
    if mu_end < mu_retrain_end - COLLAPSE_AT_END:
        reason = f"collapsed: MU {mu_end:.2f} after continued training, Retrain's is {mu_retrain_end:.2f}"
        return Undefined(reason, "collapsed")
    return None
