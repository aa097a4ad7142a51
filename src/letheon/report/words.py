"""What a report says in fixed words, and how it writes numbers."""

from __future__ import annotations

from collections.abc import Sequence

from letheon.metrics.verdict import RESURFACING_LIMIT, UTILITY_LIMIT

DOES_NOT_SHOW: tuple[str, ...] = (
    "This is a measurement of a procedure that was run in a simulated federation on one machine. It does not show that "
    "no influence of the data to forget remains in the model.",
    "Retention (KR) is accuracy on the data to forget, with the labels and, where there is one, the trigger that these "
    "samples carried in training. Knowledge that shows on other samples, under other triggers or in other ways is not "
    "seen.",
    "No membership inference, no reconstruction and no relearning attack was run. Continued training used the retained "
    "data only; what happens after its last round is not known.",
    "Every share rests on the number of samples given with it. Intervals are at the 95 % level and cover the draw of "
    "samples, not the draw of seed, partition or client: one run is one seed. Where few samples are retained, an "
    "interval is rough.",
    f"The thresholds were fixed before any run: RR at most {RESURFACING_LIMIT:.0f} %, and MU at most "
    f"{UTILITY_LIMIT:.0f} points below Retrain's after continued training. They are conventions. A pass says that "
    "these numbers lie within them, on these data, and nothing about any law.",
    "Bytes are those of the tensors, without protocol or compression. FLOPs are counted from the model. Seconds are "
    "wall time on the machine of the run, with whatever else it did.",
    "Whoever ran this also measured it. Nobody else has checked the numbers.",
)
"""Reviewed text: change it only with its reasons in the changelog."""

STATUS: dict[str, str] = {"undefined": "undefined", "uf": "UF", "collapsed": "collapsed", "void": "void"}
"""RR's states as tables print them."""
WHY: dict[str, str] = {
    "undefined": "undefined: no room",
    "uf": "unsuccessful forgetting",
    "collapsed": "the model collapsed",
    "void": "the run is void",
}
"""RR's states in words."""


def digits(n: int) -> int:
    """Decimals that a share of n samples deserves, in per cent."""
    return 1 if n < 1000 else 2


def spread(value: float | None, low: float | None, high: float | None, places: int) -> str:
    """``value [low, high]``, or what there is of it."""
    if value is None:
        return "–"
    text = f"{value:.{places}f}"
    return text if low is None or high is None else f"{text} [{low:.{places}f}, {high:.{places}f}]"


def amount(value: float) -> str:
    """A cost with three significant digits, never in powers of ten."""
    size = abs(value)
    if size >= 100 or value == round(value):
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3f}"


def size(count: int) -> str:
    """A number of bytes in a unit that suits it; powers of ten."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{amount(count / scale)} {unit}"
    return f"{count} B"


def stretches(rounds: list[int]) -> str:
    """Round numbers in short: ``1–4, 7``."""
    parts: list[list[int]] = []
    for number in sorted(set(rounds)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("–".join(map(str, part)) for part in parts)


def shortened(labels: Sequence[str], *, most: int = 30) -> list[str]:
    """Labels that fit into a figure, still unlike each other: what is too long loses its end."""
    cut = [label if len(label) <= most else f"{label[: most - 1]}…" for label in labels]
    return [name if cut.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(cut, 1)]
