"""Which clients train in a round, where not all of them do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from letheon.phase import seed_of
from letheon.request import Part
from letheon.work import Federation, Reply, Work

Draw = Callable[[Sequence[str], int, int], Sequence[str]]
"""From names, how many to take, and a seed to those taken."""


def drawn(names: Sequence[str], count: int, seed: int) -> Sequence[str]:
    """``count`` of the names, each set of so many as likely as another."""
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed_of(f"{seed}|cohort")))
    return [names[place] for place in order[:count].tolist()]


class Sampled:
    """Has a share of the clients train in each round, as in FedAvg with partial participation.

    It concerns training (work ``train``) on all data and on the retained data. Holders of data to forget always take
    part in work on that, and so does whoever a method asks by name, and everybody in all other work. Works of one
    message share their cohort as far as they share their clients.

    Args:
        inner: the federation to thin out.
        holders: by part, who holds some of it, in the order of names.
        share: of the holders that trains in a round; at least one does.
        draw: picks them, from the work's seed.
    """

    def __init__(
        self, inner: Federation, holders: Mapping[Part, Sequence[str]], share: float, *, draw: Draw = drawn
    ) -> None:
        self._inner = inner
        self._holders = holders
        self._share = share
        self._draw = draw

    def run(self, *works: Work) -> Iterator[Reply]:
        return self._inner.run(*(self._thinned(work) for work in works))

    def _thinned(self, work: Work) -> Work:
        if work.kind != "train" or work.part == "forget" or work.clients is not None:
            return work
        names = self._holders[work.part]
        cohort = self._draw(names, cohort_size(len(names), self._share), work.seed)
        return replace(work, clients=tuple(sorted(cohort)))


def cohort_size(clients: int, share: float) -> int:
    """How many of so many clients train in a round: their share, rounded up."""
    return math.ceil(share * clients - 1e-9)
