"""How a training set is dealt to clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from letheon.errors import ConfigError, DataError

Kind = Literal["iid", "dirichlet", "balanced", "classes"]
Index = NDArray[np.int64]

TRIES = 1000
"""How often a Dirichlet partition is drawn before its minimum size is called out of reach."""


@dataclass(frozen=True)
class Partition:
    """A rule that deals samples to clients; the ``[partition]`` table of an experiment.

    Attributes:
        kind: ``iid`` (shuffled, equal shares), ``dirichlet`` (each class dealt by p ~ Dirichlet(α)), ``balanced``
            (the same, but clients that already hold N/K samples get no more of the next classes) or ``classes``
            ("Pat-x": every client holds a few whole classes).
        alpha: concentration of the Dirichlet; small means skewed.
        classes_per_client: for ``classes``.
        min_size: the smallest share allowed; Dirichlet partitions are drawn anew until it holds. 0 allows clients
            without data.
    """

    kind: Kind = "dirichlet"
    alpha: float = 0.5
    classes_per_client: int = 2
    min_size: int = 10

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"partition: unknown kind {self.kind!r}; use one of {', '.join(get_args(Kind))}")
        if not 0.0 < self.alpha < float("inf"):
            raise ConfigError(f"partition: alpha must be positive and finite, got {self.alpha}")
        if self.classes_per_client < 1:
            raise ConfigError(f"partition: classes_per_client must be at least 1, got {self.classes_per_client}")
        if self.min_size < 0:
            raise ConfigError(f"partition: min_size must not be negative, got {self.min_size}")

    def split(self, targets: Tensor, clients: int, *, classes: int, seed: int) -> list[Tensor]:
        """Deal the samples with labels ``targets`` to ``clients`` clients.

        Args:
            targets: ``(n,)`` labels in 0…classes−1.
            clients: how many shares.
            classes: how many labels there are, whether or not each occurs.
            seed: not negative; the shares are a function of it and the other arguments alone.

        Returns:
            For every client the sorted positions of its samples. Shares are disjoint and complete.

        Raises:
            ConfigError: the number of clients or the seed cannot be used with this rule.
            DataError: the labels cannot be used, or some share would stay smaller than ``min_size``.
        """
        _check_arguments(targets, clients, classes, seed)
        labels = targets.numpy()
        if self.kind == "classes":
            self._check_slots(clients, classes)
        # Only a Dirichlet's sizes depend on the draw; drawing the others again would change nothing.
        tries = TRIES if self.kind in ("dirichlet", "balanced") and self.min_size * clients <= len(labels) else 1
        best = 0
        for attempt in range(tries):
            shares = self._draw(labels, clients, classes, np.random.default_rng([seed, attempt]))
            smallest = min(map(len, shares))
            if smallest >= self.min_size:
                return [torch.from_numpy(np.sort(share)) for share in _checked(shares, len(labels))]
            best = max(best, smallest)
        raise DataError(self._too_small(len(labels), clients, tries, best))

    def _draw(self, labels: Index, clients: int, classes: int, rng: np.random.Generator) -> list[Index]:
        if self.kind == "iid":
            return list(np.array_split(rng.permutation(len(labels)), clients))
        pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        if self.kind == "classes":
            return _by_classes(pools, clients, self.classes_per_client)
        return _by_dirichlet(pools, clients, self.alpha, rng, balanced=self.kind == "balanced")

    def _check_slots(self, clients: int, classes: int) -> None:
        held = self.classes_per_client
        if held > classes or held * clients < classes:
            raise ConfigError(
                f"partition 'classes': {clients} clients with {held} classes each cannot hold {classes} classes; "
                f"classes_per_client must lie in {-(-classes // clients)}…{classes}"
            )

    def _too_small(self, samples: int, clients: int, tries: int, best: int) -> str:
        advice = "lower min_size or the number of clients"
        if self.kind in ("dirichlet", "balanced"):
            advice += ", or raise alpha"
        if self.kind == "classes":
            advice += ", or make clients x classes_per_client a multiple of the number of classes"
        return (
            f"partition {self.kind!r}: {samples} samples over {clients} clients, and in {tries} "
            f"{'try' if tries == 1 else 'tries'} the smallest client got {best} at best, "
            f"min_size is {self.min_size}; {advice}"
        )


def _check_arguments(targets: Tensor, clients: int, classes: int, seed: int) -> None:
    if clients < 1:
        raise ConfigError(f"partition: at least 1 client is needed, got {clients}")
    if seed < 0:
        raise ConfigError(f"partition: the seed must not be negative, got {seed}")
    if targets.ndim != 1 or targets.is_floating_point():
        raise DataError(f"partition: needs one integer label per sample, got {tuple(targets.shape)} {targets.dtype}")
    if len(targets):
        least, most = int(targets.min()), int(targets.max())
        if least < 0 or most >= classes:
            raise DataError(f"partition: labels must lie in 0…{classes - 1}, found {least}…{most}")


def _by_dirichlet(
    pools: Sequence[Index], clients: int, alpha: float, rng: np.random.Generator, *, balanced: bool
) -> list[Index]:
    """Each class is cut at the cumulative sums of its own p ~ Dirichlet(α·1)."""
    shares: list[list[Index]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    quota = sum(map(len, pools)) / clients
    for pool in pools:
        p = rng.dirichlet(np.full(clients, alpha))
        if balanced:
            p = _among_open(p, sizes < quota)
        sums = np.cumsum(p)
        # Divided by the last sum, or rounding would leave a sample to the last clients even if they are full.
        cuts = (sums[:-1] / sums[-1] * len(pool)).astype(np.int64)
        for client, piece in enumerate(np.split(pool, cuts)):
            shares[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(pieces) for pieces in shares]


def _among_open(p: NDArray[np.float64], is_open: NDArray[np.bool_]) -> NDArray[np.float64]:
    """``p`` without the full clients, renormalised; even among the open ones if all the mass lay on full clients."""
    kept = np.where(is_open, p, 0.0)
    if kept.sum() > 0.0:
        return np.asarray(kept / kept.sum())
    # No client is open only when every sample is dealt: what follows are empty classes, and p does not matter.
    return np.asarray(is_open / is_open.sum()) if is_open.any() else p


def _by_classes(pools: Sequence[Index], clients: int, held: int) -> list[Index]:
    """Each class goes to the first ⌊K·held/C⌋ clients that still need classes, in equal parts, the rest to the last."""
    shares: list[list[Index]] = [[np.empty(0, dtype=np.int64)] for _ in range(clients)]
    needed = [held] * clients
    holders = clients * held // len(pools)
    for pool in pools:
        chosen = [client for client in range(clients) if needed[client]][:holders]
        part = len(pool) // len(chosen)
        for client, piece in zip(chosen, np.split(pool, [part * i for i in range(1, len(chosen))]), strict=True):
            shares[client].append(piece)
            needed[client] -= 1
    return [np.concatenate(pieces) for pieces in shares]


def _checked(shares: list[Index], samples: int) -> list[Index]:
    """The shares, if every sample is in exactly one of them: unlearning a client has no ground truth otherwise."""
    times = np.bincount(np.concatenate(shares), minlength=samples)
    if len(times) != samples or (times != 1).any():
        wrong = f"{(times == 0).sum()} samples dealt to nobody, {(times > 1).sum()} to several clients"
        raise DataError(f"partition: not disjoint and complete: {wrong}; this is a fault of the partition, report it")
    return shares
