"""Representation structure (Sec. V-D): forgetting dispersion and principal components of penultimate features.

All in float64. Resampling is over samples; the basis of a projection is held fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from letheon.metrics.interval import Floats, bootstrap_weights
from letheon.metrics.measurement import Measurement, Undefined

FLAT = 1e-24
"""Variance below which all features are one point."""


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """The leading principal axes of a set of features.

    Attributes:
        mean: ``(d,)`` centre of the set.
        axes: ``(k, d)`` orthonormal rows, by falling variance. Of each, the entry of largest size is positive.
    """

    mean: Floats
    axes: Floats

    def project(self, features: Floats) -> Floats:
        """``(n, d)`` features to ``(n, k)`` coordinates."""
        found: Floats = (features - self.mean) @ self.axes.T
        return found


def dispersion(features: Floats) -> Measurement:
    """FD: mean squared distance of ``(n, d)`` features to their centre, in squared units of the features."""
    undefined = _unusable(features)
    if undefined:
        return Measurement(undefined, None, None, len(features))
    low, high = np.quantile(_resampled(features, bootstrap_weights(len(features))), [0.025, 0.975])
    return Measurement(_dispersion(features), float(low), float(high), len(features))


def relative_dispersion(forget: Floats, retained: Floats) -> Measurement:
    """FD over the dispersion of retained features, a ratio: FD alone grows with the features' norm.

    Both sets are resampled, independently of each other.
    """
    n = len(forget)
    undefined = _unusable(forget) or _unusable(retained)
    if undefined is None and _dispersion(retained) <= FLAT:
        undefined = Undefined("the retained features are all alike: there is no spread to compare with", "collapsed")
    if undefined:
        return Measurement(undefined, None, None, n)
    ours = _resampled(forget, bootstrap_weights(n))
    reference = _resampled(retained, bootstrap_weights(len(retained), seed=1))
    low, high = np.quantile(ours / np.maximum(reference, FLAT), [0.025, 0.975])
    return Measurement(_dispersion(forget) / _dispersion(retained), float(low), float(high), n)


def principal(features: Floats, count: int = 2) -> Basis | Undefined:
    """The first ``count`` principal axes of ``(n, d)`` features; fewer if n or d is smaller."""
    undefined = _unusable(features)
    if undefined is None and _dispersion(features) <= FLAT:
        undefined = Undefined("the features are all alike: they have no axes", "collapsed")
    if undefined:
        return undefined
    mean = features.mean(0)
    # torch's keeps to the one thread that it was given; NumPy's waits for all cores, which others may be using.
    axes: Floats = torch.linalg.svd(torch.from_numpy(features - mean), full_matrices=False).Vh[:count].numpy()
    largest = axes[np.arange(len(axes)), np.abs(axes).argmax(1)]
    return Basis(mean, axes * np.sign(largest)[:, None])


def explained(basis: Basis, features: Floats) -> Measurement:
    """How much of the variance of ``(n, d)`` features lies in the axes of ``basis``, in per cent."""
    n = len(features)
    undefined = _unusable(features)
    if undefined is None and _dispersion(features) <= FLAT:
        undefined = Undefined("the features are all alike: there is no variance to explain", "collapsed")
    if undefined:
        return Measurement(undefined, None, None, n)
    inside, weights = features @ basis.axes.T, bootstrap_weights(n)
    shares = 100.0 * _resampled(inside, weights) / np.maximum(_resampled(features, weights), FLAT)
    low, high = np.quantile(shares, [0.025, 0.975])
    return Measurement(100.0 * _dispersion(inside) / _dispersion(features), float(low), float(high), n)


def _unusable(features: Floats) -> Undefined | None:
    if len(features) < 2:
        return Undefined(f"{len(features)} sample(s) have no dispersion")
    if not np.isfinite(features).all():
        return Undefined("the features are not finite", "collapsed")
    return None


def _dispersion(features: Floats) -> float:
    return float(((features - features.mean(0)) ** 2).sum(1).mean())


def _resampled(features: Floats, weights: Floats) -> Floats:
    """Dispersion in each of ``(resamples, n)`` resamples: E‖c‖² − ‖E c‖², centred first so that little cancels."""
    centred, shares = features - features.mean(0), weights / weights.sum(1, keepdims=True)
    squares: Floats = shares @ (centred**2).sum(1) - ((shares @ centred) ** 2).sum(1)
    return np.maximum(squares, 0.0)
