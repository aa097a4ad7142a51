"""How long a rectified step is: what retained data say of it."""

from __future__ import annotations

from dataclasses import dataclass

from letheon.errors import ConfigError
from letheon.phase import State
from letheon.request import Part
from letheon.tree import Params
from letheon.work import Federation, Work, average


def accuracy(federation: Federation, state: State, part: Part, *, limit: int | None = None) -> float:
    """Share of right answers on a part, clients weighted by their size; of at most ``limit`` samples of each."""
    options = {} if limit is None else {"limit": limit}
    work = Work("evaluate", state.params, state.buffers, part, options=options)
    return average(federation.run(work)).metrics["accuracy"]


@dataclass(frozen=True)
class Search:
    """How far to go along the rectified step: a line search on retained data.

    The literal step has whatever length local training on the data to forget happens to have. It is the strength of
    the method and its danger: too short and the knowledge stays, too long and the model is gone, and which of the two
    changes with the seed. The search takes the longest step that keeps the accuracy on retained data. It sees no test
    data and no data to forget.

    Attributes:
        keep: share of Origin's accuracy on retained data that the model must keep after the step.
        largest: longest step tried, in lengths of Δ̃; steps are powers of two.
        smallest: shortest step tried; if it fails too, the round leaves the model as it is.
        samples: of each retained client that a trial looks at.
    """

    keep: float = 0.8
    largest: float = 8.0
    smallest: float = 1 / 64
    samples: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ConfigError(f"search.keep: must lie in (0, 1], got {self.keep}")
        if not 0 < self.smallest <= 1 <= self.largest:
            raise ConfigError("search: smallest must lie in (0, 1] and largest must be at least 1")
        if self.samples < 1:
            raise ConfigError(f"search.samples: must be at least 1, got {self.samples}")

    def scale(self, federation: Federation, state: State, update: Params, floor: float) -> float:
        """The longest tried step along ``update`` after which accuracy is at least ``floor``; 0 if there is none."""

        def good(scale: float) -> bool:
            return accuracy(federation, state.moved(update, scale), "retain", limit=self.samples) >= floor

        scale = 1.0
        if good(scale):
            while scale * 2 <= self.largest and good(scale * 2):
                scale *= 2
            return scale
        while scale / 2 >= self.smallest:
            scale /= 2
            if good(scale):
                return scale
        return 0.0
