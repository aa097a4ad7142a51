"""What can go wrong, as few classes as callers have reasons to tell apart.

Every message says where, what, and what to do.
"""

from __future__ import annotations


class LetheonError(Exception):
    """Root of all errors that Letheon raises on purpose."""


class ConfigError(LetheonError):
    """An experiment file, a ``--set`` or a field value that cannot be used."""


class DataError(LetheonError):
    """A data set that is missing, malformed, or too small for what is asked of it."""


class RequestError(LetheonError):
    """A deletion request that names nothing, or that leaves nothing to retain."""


class RoundError(LetheonError):
    """A round that cannot be completed: too few usable replies, or a mean over nothing."""


class Diverged(RoundError):
    """A round without one finite reply: the model itself has left the finite numbers."""


class Excluded(LetheonError):
    """Work that would train on data for which a deletion request was admitted."""


class JournalError(LetheonError):
    """A journal that cannot be written, or that belongs to another run."""


class MethodError(LetheonError):
    """A method that is unknown, or asked for something it does not support."""
