"""Which channels are closed and which are opened again, from what each request's texts say of them.

TFR-Net as its abstract describes it (Trajectory-guided Forget-Recover Network); the rules and constants are ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from letheon.errors import ConfigError, MethodError
from letheon.text.channels import Track

EPSILON = 1e-6
"""ε of the order in which dormant channels are tried."""
Channel = tuple[str, int]
"""A layer's name, and the number of one of its channels."""
T = TypeVar("T")


@dataclass(frozen=True)
class Suppression:
    """When channels are closed.

    A channel is hot if its risk r is above ``hot``; r is its rank within the layer, from 0 to 1. It is persistent if
    m ≥ ``level`` and it has been hot ``hits`` times, and is then closed; at the first request, which has no
    trajectories, if it is hot. Hot but not persistent is transient: left alone.

    Attributes:
        inertia: ρ of m ← ρ m + (1 − ρ) r, with m = r at the first request.
        hot: q_hot.
        level: q_p.
        hits: h that is needed from the second request on.
        strength: σ; a closed gate is 1 − σ.
        budget: share of a layer's channels that one request may close.
        first_budget: of the first request.
        total: share that may be closed at any time.
    """

    inertia: float = 0.7
    hot: float = 0.99
    level: float = 0.98
    hits: int = 2
    strength: float = 1.0
    budget: float = 0.01
    first_budget: float = 0.005
    total: float = 0.1

    def __post_init__(self) -> None:
        _demand_shares("suppression", self, ("inertia", "hot", "level", "budget", "first_budget", "total"))
        if not 0 < self.strength <= 1:
            raise ConfigError(f"suppression.strength: must lie in (0, 1], got {self.strength}")
        if self.hits < 1:
            raise ConfigError(f"suppression.hits: must be at least 1, got {self.hits}")

    def room(self, channels: int, *, first: bool) -> int:
        """How many of a layer's channels a request may close, if the total leaves so many.

        Raises:
            MethodError: the share is above 0 and holds not one channel.
        """
        name = "first_budget" if first else "budget"
        share = float(getattr(self, name))
        if share and not counted(share, channels):
            raise MethodError(
                f"suppression.{name}: {share:g} of a layer's {channels} channels is less than one; raise it to "
                f"{1 / channels:.2g} at least" + (", or set it to 0 to wait for a second request" if first else "")
            )
        return counted(share, channels)


@dataclass(frozen=True)
class Recovery:
    """When closed channels are opened again.

    Candidates have a rank of retained value u of ``value`` at least, and r and m of ``risk`` at most. They are tried
    by falling u/(r + m + ε), ``block`` at a time. A trial is accepted if the loss on held-out retained texts has not
    risen by more than ``tolerance`` since the request's channels were closed, all accepted ones counted, and the loss
    on the texts to forget has not fallen by more than ``forget_tolerance``. What is refused is halved and tried again.

    Attributes:
        value: of u, at least.
        risk: of r and of m, at most.
        tolerance: τ, relative.
        forget_tolerance: τ_f, relative.
        block: channels tried together.
        trials: at most, in a request.
        texts: retained texts that u is measured on, at most.
    """

    value: float = 0.9
    risk: float = 0.5
    tolerance: float = 0.005
    forget_tolerance: float = 0.005
    block: int = 8
    trials: int = 16
    texts: int = 128

    def __post_init__(self) -> None:
        _demand_shares("recovery", self, ("value", "risk"))
        for name in ("tolerance", "forget_tolerance"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"recovery.{name}: must not be negative, got {getattr(self, name)}")
        for name in ("block", "trials", "texts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"recovery.{name}: must be at least 1, got {getattr(self, name)}")

    def accepts(self, before: Losses, after: Losses) -> bool:
        """Whether a trial neither costs what is retained nor brings back what is forgotten; NaN does both."""
        spared = after.retained <= before.retained * (1 + self.tolerance)
        return spared and after.forget >= before.forget * (1 - self.forget_tolerance)


@dataclass(frozen=True, slots=True)
class Losses:
    """Mean losses of a model, nats a token.

    Attributes:
        forget: on the texts to forget.
        retained: on retained texts that are held out.
    """

    forget: float
    retained: float


def _demand_shares(where: str, table: object, names: Sequence[str]) -> None:
    for name in names:
        if not 0 <= getattr(table, name) <= 1:
            raise ConfigError(f"{where}.{name}: must lie in [0, 1], got {getattr(table, name)}")


def counted(share: float, channels: int) -> int:
    """``⌊share · channels⌋``, where 0.29 of 100 is 29."""
    return int(share * channels + 1e-9)


def ranks(values: Tensor) -> Tensor:
    """``(c,)`` values to ranks from 0 (least) to 1; equal ones share their mean rank."""
    ordered = values.sort().values
    below, upto = (torch.searchsorted(ordered, values.contiguous(), right=right) for right in (False, True))
    return ((below + upto - 1) / (2 * max(1, len(values) - 1))).float()


def followed(track: Track | None, risk: Tensor, rules: Suppression) -> Track:
    """The trajectory one request further; ``(c,)`` risk as ranks. Gates stay as they are."""
    hot = (risk > rules.hot).long()
    if track is None:
        return Track(risk, hot, torch.ones_like(risk), risk.new_zeros(0, 0))
    trajectory = rules.inertia * track.trajectory + (1 - rules.inertia) * risk
    return replace(track, trajectory=trajectory, hits=track.hits + hot)


def persistent(track: Track, risk: Tensor, rules: Suppression, *, first: bool) -> Tensor:
    """``(c,)`` bool: what the requests so far have in common, after ``followed``; closed channels included."""
    if first:
        return risk > rules.hot
    return (track.trajectory >= rules.level) & (track.hits >= rules.hits)


def transient(track: Track, risk: Tensor, rules: Suppression, *, first: bool) -> Tensor:
    """``(c,)`` bool: hot at this request, and no more than that."""
    return (risk > rules.hot) & ~persistent(track, risk, rules, first=first)


def suppressed(track: Track, risk: Tensor, rules: Suppression, *, first: bool) -> Track:
    """The track with the gates of persistent channels closed, those with the highest m first, as budgets allow."""
    wanted = persistent(track, risk, rules, first=first) & ~track.closed
    count = len(risk)
    room = min(rules.room(count, first=first), counted(rules.total, count) - int(track.closed.sum()))
    order = track.trajectory.sort(descending=True, stable=True).indices
    chosen = order[wanted[order]][: max(0, room)]
    gate = track.gate.clone()
    gate[chosen] = 1.0 - rules.strength
    return replace(track, gate=gate)


def candidates(
    tracks: Mapping[str, Track], risks: Mapping[str, Tensor], values: Mapping[str, Tensor], rules: Recovery
) -> list[Channel]:
    """Closed channels that are worth a lot to what is retained and little to what is forgotten, the best first."""
    found: list[tuple[float, Channel]] = []
    for layer, track in tracks.items():
        r, u, m = risks[layer], values[layer], track.trajectory
        able = track.closed & (u >= rules.value) & (r <= rules.risk) & (m <= rules.risk)
        worth = u / (r + m + EPSILON)
        found += [(float(worth[c]), (layer, c)) for c in torch.nonzero(able)[:, 0].tolist()]
    return [channel for _, channel in sorted(found, key=lambda each: -each[0])]


def reopening(tracks: Mapping[str, Track], channels: Sequence[Channel]) -> dict[str, Track]:
    """The tracks with these gates open."""
    gates = {layer: track.gate.clone() for layer, track in tracks.items()}
    for layer, channel in channels:
        gates[layer][channel] = 1.0
    return {layer: replace(track, gate=gates[layer]) for layer, track in tracks.items()}


def accepted(order: Sequence[T], accepts: Callable[[Sequence[T]], bool], *, block: int, trials: int) -> list[T]:
    """What may be opened: blocks in order, a refused one in halves, down to single ones, while trials last.

    Args:
        order: the best first.
        accepts: whether all of these may be open at once; what was accepted before is among them.
        block: size of a block.
        trials: calls of ``accepts``, at most.
    """
    kept = list[T]()
    queue = deque(list(order[start : start + block]) for start in range(0, len(order), block))
    while queue and trials:
        part, trials = queue.popleft(), trials - 1
        if accepts([*kept, *part]):
            kept += part
        elif len(part) > 1:
            half = (len(part) + 1) // 2
            queue.extendleft([part[half:], part[:half]])
    return kept
