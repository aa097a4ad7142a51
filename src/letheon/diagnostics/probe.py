"""Linear probe: can the trigger be read off the penultimate features, whatever the model answers?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from letheon.metrics.interval import Floats, bootstrap_weights, wilson
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.ranking import auc
from letheon.phase import seed_of

CHANCE = 50.0
"""Accuracy of guessing, per cent: each image is there with and without the trigger."""
LEAST = 10
"""Images that each half must have."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How well a logistic regression on one half of the images does on the other.

    Attributes:
        accuracy: per cent; chance is 50.
        auc: area under the ROC curve; chance is 0.5.
        n_train: images in the first half.
    """

    accuracy: Measurement
    auc: Measurement
    n_train: int


def probe(clean: Floats, triggered: Floats, *, seed: int) -> Probe:
    """Fit on half of the images, test on the other half.

    Args:
        clean: ``(n, d)`` features of images without the trigger.
        triggered: ``(n, d)`` features of the same images with it, in the same order: an image is never on both sides.
        seed: of the split.
    """
    n = len(clean)
    order = np.random.default_rng(seed_of(f"{seed}|probe")).permutation(n)
    first, second = np.sort(order[: n // 2]), np.sort(order[n // 2 :])
    undefined = _unusable(clean, triggered, len(first))
    if undefined:
        nothing = Measurement(undefined, None, None, len(second))
        return Probe(nothing, nothing, len(first))
    scores = _scores((clean[first], triggered[first]), np.concatenate([clean[second], triggered[second]]))
    without, with_ = scores[: len(second)], scores[len(second) :]
    return Probe(_accuracy(without, with_), _area(without, with_), len(first))


def _scores(train: tuple[Floats, Floats], test: Floats) -> Floats:
    """Log-odds of the trigger by logistic regression (L2, C = 1) on features standardised by the training half."""
    from sklearn.linear_model import LogisticRegression

    inputs, labels = np.concatenate(train), np.repeat([0, 1], [len(part) for part in train])
    mean, spread = inputs.mean(0), inputs.std(0)
    spread = np.where(spread > 0.0, spread, 1.0)
    model = LogisticRegression(max_iter=10_000).fit((inputs - mean) / spread, labels)
    scores: Floats = model.decision_function((test - mean) / spread)
    return scores


def _accuracy(without: Floats, with_: Floats) -> Measurement:
    """Resampled by image: its two versions are not independent."""
    right, n = ((without <= 0.0).astype(np.float64) + (with_ > 0.0)) / 2.0, len(without)
    value = 100.0 * float(right.mean())
    low, high = (float(end) for end in np.quantile(100.0 * (bootstrap_weights(n) @ right) / n, [0.025, 0.975]))
    if low == high:
        low, high = (100.0 * end for end in wilson(round(value * n / 100.0), n))
    return Measurement(value, low, high, n)


def _area(without: Floats, with_: Floats) -> Measurement:
    n, value = len(without), auc(with_, without)
    above = (with_[:, None] > without) + 0.5 * (with_[:, None] == without)
    weights = bootstrap_weights(n)
    low, high = np.quantile(((weights @ above) * weights).sum(1) / n**2, [0.025, 0.975])
    if low == high:
        low, high = wilson(round(value * n), n)
    return Measurement(value, float(low), float(high), n)


def _unusable(clean: Floats, triggered: Floats, half: int) -> Undefined | None:
    if clean.shape != triggered.shape:
        raise ValueError(f"probe: needs each image with and without the trigger, got {len(clean)} and {len(triggered)}")
    if half < LEAST:
        return Undefined(f"needs {2 * LEAST} held-out images, there are {len(clean)}")
    if not (np.isfinite(clean).all() and np.isfinite(triggered).all()):
        return Undefined("the features are not finite", "collapsed")
    return None
