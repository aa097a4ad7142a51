"""Continual Orthogonal Projection (COP): later requests cannot move what earlier ones settled.

For every constrained layer an orthonormal basis V of the inputs that earlier forget sets gave it is kept, and nothing
else of them. While a later request trains, W V stays what it was at the request's start: for every earlier input x in
the span of V the layer answers as before, W x = W₀ x. If all other parameters are frozen too and V holds all of the
earlier inputs, so does the whole network. Any objective and any optimizer will do.

A request, with ``module``, ``spaces = find_spaces(module, batch)`` and the ``bases`` of earlier requests::

    freeze(module, spaces)                            # or train everything while bases is empty
    guard = Guard(module, spaces, bases)
    for …:                                            # a new optimizer
        …backward…
        guard.project([p.grad for p in guard.trainable])
        …clip by the global norm, optimizer.step()…
        guard.restore()
    bases = protect(module, batches, spaces, bases, request=k)

The bases are plain tensors by ``to_params``, and a file by ``save``. They are derived from what was deleted: keep them
where the data was kept.
"""

from __future__ import annotations

from letheon.cop.basis import Basis, Moments, Selection, Sinks, from_params, least_free, least_held, served, to_params
from letheon.cop.guard import Guard, confined, freeze
from letheon.cop.hooks import Batch, collect, damped, extended, find_spaces, protect, rules, untied, warn
from letheon.cop.layers import Spaces
from letheon.cop.lora import Adapters
from letheon.cop.store import Provenance, load, save

__all__ = [
    "Adapters",
    "Basis",
    "Batch",
    "Guard",
    "Moments",
    "Provenance",
    "Selection",
    "Sinks",
    "Spaces",
    "collect",
    "confined",
    "damped",
    "extended",
    "find_spaces",
    "freeze",
    "from_params",
    "least_free",
    "least_held",
    "load",
    "protect",
    "rules",
    "save",
    "served",
    "to_params",
    "untied",
    "warn",
]
