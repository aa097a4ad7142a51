"""Model utility (MU): clean test accuracy, whole and where it is worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from letheon.metrics.interval import Z95, share
from letheon.metrics.measurement import Measurement, Undefined

COLLAPSE_AT_ONCE = 20.0
COLLAPSE_AT_END = 10.0


def utility(correct: Sequence[int], counts: Sequence[int], *, without: Set[int] = frozenset()) -> Measurement:
    """MU in per cent from correct and total test samples of each class.

    Args:
        correct: right answers of each class.
        counts: test samples of each class.
        without: forgotten classes to leave out (class level: MU is over the retained classes).
    """
    kept = [c for c in range(len(counts)) if c not in without]
    return share(sum(correct[c] for c in kept), sum(counts[c] for c in kept))


def worst_class(correct: Sequence[int], counts: Sequence[int], *, without: Set[int] = frozenset()) -> Measurement:
    """Accuracy of the class that fares worst."""
    shares = [share(correct[c], counts[c]) for c in range(len(counts)) if c not in without and counts[c]]
    return min(shares, key=lambda m: m.value if isinstance(m.value, float) else 0.0)


def worst_client(
    correct: Sequence[int], counts: Sequence[int], labels: Mapping[str, Sequence[int]]
) -> tuple[str, Measurement]:
    """The client that fares worst, and its accuracy.

    The federation has no test data per client: the test set is reweighted to each client's own mix of labels. The
    interval is the normal one of a weighted sum of independent shares.
    """
    accuracy = [right / n if n else 0.0 for right, n in zip(correct, counts, strict=True)]
    mixes = {client: [m / sum(mix) for m in mix] for client, mix in labels.items() if sum(mix)}
    values = {client: sum(a * m for a, m in zip(accuracy, mix, strict=True)) for client, mix in mixes.items()}
    worst = min(sorted(values), key=lambda client: values[client])
    shares = zip(accuracy, mixes[worst], counts, strict=True)
    half = Z95 * sum(m * m * a * (1 - a) / n for a, m, n in shares if n) ** 0.5
    low, high = max(0.0, values[worst] - half), min(1.0, values[worst] + half)
    return worst, Measurement(100.0 * values[worst], 100.0 * low, 100.0 * high, sum(counts))


def collapsed(mu: float, mu_end: float, mu_origin: float, mu_retrain_end: float) -> Undefined | None:
    """Whether the model is destroyed (per cent): 20 points lost at once, or 10 behind Retrain at the end."""
    if mu < mu_origin - COLLAPSE_AT_ONCE:
        return Undefined(f"collapsed: MU {mu:.2f} after unlearning, {mu_origin:.2f} before", "collapsed")
    if mu_end < mu_retrain_end - COLLAPSE_AT_END:
        reason = f"collapsed: MU {mu_end:.2f} after continued training, Retrain's is {mu_retrain_end:.2f}"
        return Undefined(reason, "collapsed")
    return None
