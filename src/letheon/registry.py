"""The names of methods and tasks, and the way from a name to its class.

Listing imports nothing heavy: a class is imported when it is asked for, and torch with it. Packages outside Letheon
add to the tables by entry points in the groups ``letheon.methods`` and ``letheon.tasks``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from letheon.errors import ConfigError, LetheonError, MethodError

Kind = Literal["method", "task"]

_ALL_SCOPES = ("client", "class", "samples")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a table.

    Attributes:
        target: where the class lives, ``module:Class``.
        summary: one line for listings.
        scopes: what a method can forget; empty for tasks, and for methods of other packages until they are imported.
    """

    target: str
    summary: str
    scopes: tuple[str, ...] = ()


METHODS: dict[str, Entry] = {
    "retrain": Entry(
        "letheon.methods.retrain:Retrain",
        "Train anew on the retained data only: the reference every other method is compared with.",
        _ALL_SCOPES,
    ),
    "fine-tuning": Entry(
        "letheon.methods.fine_tuning:FineTuning",
        "Keep training on the retained data and leave forgetting to chance: a lower bound.",
        _ALL_SCOPES,
    ),
    "lethe": Entry(
        "letheon.methods.lethe:Lethe",
        "Amplify what is to be forgotten in an adapter, rectify the model against it, then restore.",
        _ALL_SCOPES,
    ),
    "not": Entry(
        "letheon.methods.negate:NoT",
        "Negate the weights of chosen layers, then restore on the retained data; reads no forgotten data.",
        _ALL_SCOPES,
    ),
    "puf": Entry(
        "letheon.methods.puf:PUF",
        "Subtract a multiple of one ordinary update on the data to forget, then restore.",
        _ALL_SCOPES,
    ),
    "noise": Entry(
        "letheon.methods.noise:Noise",
        "Move the model by random noise of a given norm: the control for mere distance.",
        _ALL_SCOPES,
    ),
}

TASKS: dict[str, Entry] = {
    "digits": Entry(
        "letheon.tasks.vision:Digits", "Handwritten digits of 8 by 8 pixels: small enough to train in seconds."
    ),
    "mnist5k": Entry("letheon.tasks.vision:MNIST5k", "A sample of 5,000 images of MNIST."),
    "mnist": Entry("letheon.tasks.vision:MNIST", "MNIST: 60,000 images to train on, 10,000 to test."),
}


def names(kind: Kind) -> list[str]:
    """All names of a kind: the built-in ones in table order, then those of other packages in alphabetical order.

    Raises:
        MethodError: two entries claim the same name (``ConfigError`` for tasks).
    """
    return list(_table(kind))


def entry(kind: Kind, name: str) -> Entry:
    """The entry called ``name``.

    Raises:
        MethodError: there is none, or two claim the name (``ConfigError`` for tasks).
    """
    table = _table(kind)
    if name not in table:
        known = ", ".join(table)
        raise _error(kind)(f"unknown {kind} {name!r}{did_you_mean(name, table)} Known {kind}s: {known}")
    return table[name]


def get(kind: Kind, name: str) -> type:
    """Import the class called ``name``.

    Raises:
        MethodError: there is none, or it cannot be imported (``ConfigError`` for tasks).
    """
    target = entry(kind, name).target
    module, _, path = target.partition(":")
    if not module or not path:
        raise _error(kind)(f"{kind} {name!r}: the entry {target!r} is not of the form 'module:Class'; correct it")
    try:
        found: object = reduce(getattr, path.split("."), import_module(module))
    except Exception as cause:  # whatever the module of another package raises while it is imported
        raise _error(kind)(
            f"{kind} {name!r}: {target} cannot be imported: {type(cause).__name__}: {cause}. "
            "Install what it needs, or correct the entry."
        ) from cause
    if not isinstance(found, type):
        raise _error(kind)(f"{kind} {name!r}: {target} is {found!r}, not a class; correct the entry")
    return found


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """How to end a complaint about ``word``: ``; did you mean 'x'?``, or a full stop if no known name is near."""
    near = get_close_matches(word.lower(), sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


def _error(kind: Kind) -> type[LetheonError]:
    return MethodError if kind == "method" else ConfigError


def _table(kind: Kind) -> Mapping[str, Entry]:
    table = dict(METHODS if kind == "method" else TASKS)
    for point in sorted(entry_points(group=f"letheon.{kind}s"), key=lambda point: (point.name, point.value)):
        new = Entry(point.value.partition("[")[0].strip(), f"From {_origin(point)}.")
        old = table.setdefault(point.name, new)
        if old.target != new.target:
            raise _error(kind)(
                f"{kind} {point.name!r} is claimed twice: by {old.target} and by {new.target} of {_origin(point)}. "
                "Rename the entry point, or uninstall its package."
            )
    return table


def _origin(point: EntryPoint) -> str:
    return f"the package {point.dist.name}" if point.dist is not None else "an unnamed package"
