"""The scores that are made of truth ratios, by name: an examination holds the ratios, and these follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from letheon.errors import DataError
from letheon.metrics.text.retention import above_one, item_retention, signed_retention
from letheon.metrics.text.scores import Scores
from letheon.metrics.text.truth_ratio import Form, truth_ratios

Made = Callable[[Scores, Form], Scores]
RATIOS: Mapping[str, tuple[str, Made]] = {
    "truth_ratio": ("log_ratio", truth_ratios),
    "truth_ratio_arithmetic": ("log_ratio_arithmetic", truth_ratios),
    "truth_ratio_share": ("log_ratio", lambda ratios, _: truth_ratios(ratios, "share")),
    "kr": ("log_ratio", lambda ratios, _: item_retention(ratios)),
    "kr_signed": ("log_ratio", lambda ratios, _: signed_retention(ratios)),
    "kr_original": ("log_ratio_original", lambda ratios, _: item_retention(ratios)),
    "above_one": ("log_ratio", lambda ratios, _: above_one(ratios)),
}
"""From which of the examined log R each is made, and how.

``log_ratio`` is geometric and over the paraphrase, ``log_ratio_arithmetic`` takes the arithmetic mean of the false
answers, ``log_ratio_original`` is over the original answer. Those of KR are about data to forget only.
"""
ABOUT_TRUTH = ("truth_ratio", "truth_ratio_arithmetic", "truth_ratio_share")
"""Those that sets of all kinds have."""


def of_ratios(row: Mapping[str, Scores], name: str, form: Form) -> Scores:
    """One of ``RATIOS`` from an examined set.

    Raises:
        DataError: it is none, or the set holds no such truth ratios.
    """
    source, made = RATIOS.get(name, ("", truth_ratios))
    if source not in row:
        raise DataError(f"{name}: is not among what was examined: {', '.join(row)}; it may need false answers")
    return made(row[source], form)


def known(row: Mapping[str, Scores]) -> tuple[str, ...]:
    """Which of ``RATIOS`` a set can tell."""
    return tuple(name for name, (source, _) in RATIOS.items() if source in row)
