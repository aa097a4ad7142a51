"""Unlearning that stays unlearned: federated and continual unlearning for PyTorch, with measured persistence.

The names in ``__all__`` are public; nothing else is. Each is imported when it is first used, so that ``import letheon``
does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Data",
    "Experiment",
    "Federation",
    "LetheonError",
    "Local",
    "Method",
    "Phase",
    "Reply",
    "Request",
    "Results",
    "State",
    "Task",
    "Work",
    "__version__",
    "average",
    "averages",
    "drive",
    "fedavg",
    "run",
    "tree",
    "unlearn",
]

if TYPE_CHECKING:
    from letheon import tree
    from letheon.data import Data
    from letheon.errors import LetheonError
    from letheon.experiment import Experiment
    from letheon.methods.base import Method, fedavg
    from letheon.phase import Phase, State, drive
    from letheon.pipeline import run
    from letheon.request import Request
    from letheon.results import Results
    from letheon.tasks.base import Task
    from letheon.training import Local
    from letheon.unlearning import unlearn
    from letheon.work import Federation, Reply, Work, average, averages
else:  # hidden from type checkers: a module-level __getattr__ would let every misspelt name pass
    from importlib import import_module

    _HOMES = {
        "letheon.data": ("Data",),
        "letheon.errors": ("LetheonError",),
        "letheon.experiment": ("Experiment",),
        "letheon.methods.base": ("Method", "fedavg"),
        "letheon.phase": ("Phase", "State", "drive"),
        "letheon.pipeline": ("run",),
        "letheon.request": ("Request",),
        "letheon.results": ("Results",),
        "letheon.tasks.base": ("Task",),
        "letheon.training": ("Local",),
        "letheon.unlearning": ("unlearn",),
        "letheon.work": ("Federation", "Reply", "Work", "average", "averages"),
    }
    _HOME = {name: module for module, names in _HOMES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name == "tree":
            return import_module("letheon.tree")
        if name not in _HOME:
            raise AttributeError(f"module 'letheon' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
