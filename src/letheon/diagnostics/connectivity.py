"""Linear mode connectivity (Sec. V-D): is there a hill on the straight way to a model that knows again?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from letheon import tree
from letheon.metrics.interval import Floats, bootstrap_weights
from letheon.metrics.measurement import Measurement, Undefined
from letheon.phase import State
from letheon.tree import Params


@dataclass(frozen=True, slots=True)
class Barrier:
    """The barrier of one loss.

    Attributes:
        height: in nats, with its interval over samples.
        at: where on the path it is highest, in [0, 1].
        losses: mean loss at each point of the path, in nats.
    """

    height: Measurement
    at: float
    losses: tuple[float, ...]


def path(points: int) -> Floats:
    """``(points,)`` equally spaced positions from 0 (the unlearned model) to 1 (the recovered one)."""
    if points < 3:
        raise ValueError(f"path: needs at least 3 points to have one between its ends, got {points}")
    return np.linspace(0.0, 1.0, points)


def mixed(first: State, second: State, a: float) -> State:
    """(1 − a)·first + a·second, parameters and float buffers alike; counters are those of ``first``."""
    return State(_mixed(first.params, second.params, a), _mixed(first.buffers, second.buffers, a))


def _mixed(first: Params, second: Params, a: float) -> Params:
    tree.check_same(first, second, "mixed")
    return {
        name: ((1.0 - a) * tensor.double() + a * second[name].double()).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in first.items()
    }


def heights(losses: Floats, at: Floats) -> Floats:
    """``(…, points)`` mean losses along the path to ``(…)`` max_a L(a) − ((1 − a)·L(0) + a·L(1)); never negative."""
    return np.asarray(_above(losses, at).max(-1))


def _above(losses: Floats, at: Floats) -> Floats:
    chord: Floats = (1.0 - at) * losses[..., :1] + at * losses[..., -1:]
    return losses - chord


def barrier(losses: Floats, at: Floats) -> Barrier:
    """The barrier of ``(points, n)`` losses of n samples at the positions ``at`` of the path."""
    if not np.isfinite(losses).all():
        raise ValueError("barrier: losses must be finite")
    means, n = losses.mean(1), losses.shape[1]
    low, high = np.quantile(heights(bootstrap_weights(n) @ losses.T / n, at), [0.025, 0.975])
    height = Measurement(float(heights(means, at)), float(low), float(high), n)
    return Barrier(height, float(at[_above(means, at).argmax()]), tuple(float(value) for value in means))


def per_distance(height: Measurement, distance: float) -> Measurement:
    """The barrier over ‖w_un − w_rec‖, in nats per unit: over a longer way any two models have a higher one."""
    if isinstance(height.value, Undefined) or height.low is None or height.high is None:
        return height
    if distance == 0.0:
        return Measurement(Undefined("both ends are the same model: there is no path"), None, None, height.n)
    return Measurement(height.value / distance, height.low / distance, height.high / distance, height.n)
