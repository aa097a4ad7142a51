"""The check that a method reads single clients' replies if and only if it says so."""

from __future__ import annotations

from collections.abc import Iterator

from letheon import tree
from letheon.errors import LetheonError
from letheon.methods.base import PER_CLIENT, Method
from letheon.phase import State
from letheon.request import Scope
from letheon.testing.scene import demand, small
from letheon.work import Federation, Reply, Work, averages

TOGETHER = "together"
"""The name under which all clients answer as one."""


class Summed:
    """What a federation shows that aggregates securely: of each work one reply, the weighted mean of all."""

    def __init__(self, inner: Federation) -> None:
        self._inner = inner

    def run(self, *works: Work) -> Iterator[Reply]:
        for index, mean in enumerate(averages(self._inner.run(*works), len(works))):
            yield Reply(index, TOGETHER, mean.tensors, mean.buffers, mean.weight, mean.metrics)


def single_replies_are_declared(method: Method, scope: Scope) -> None:
    """With replies that come as their mean only, the model is the same, unless the method needs single ones.

    A method that says so must come to another model, or to none: else it would be refused without a reason.
    """
    scene = small(scope, norm=True)
    declared = PER_CLIENT in scene.configured(method).needed
    try:
        start = scene.start(method, inside=Summed)
        with scene.runtime() as runtime:
            found = scene.drive(method, scene.guarded(Summed(runtime)), start=start)
    except LetheonError as error:
        demand(declared, f"reads single clients' replies, and does not say that it needs {PER_CLIENT!r}: {error}")
        return
    off = _distance(found, scene.reference(method).end)
    demand(
        declared or off < 1e-5,
        f"comes to another model where only the mean of the replies is shown (relative difference {off:.2g}), and does "
        f"not say that it needs {PER_CLIENT!r}",
    )
    demand(not declared or off >= 1e-5, f"says that it needs {PER_CLIENT!r}, and does as well with the mean alone")


def _distance(a: State, b: State) -> float:
    """How far apart two models are, relative to the second."""
    floats = {n: t for n, t in (b.params | b.buffers).items() if t.is_floating_point()}
    found = a.params | a.buffers
    return tree.norm(tree.sub({n: found[n] for n in floats}, floats)) / tree.norm(floats)
