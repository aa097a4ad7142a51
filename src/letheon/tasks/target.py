"""What an experiment wants forgotten: the tables ``[request]``, ``[[request.also]]`` and ``[[then]]``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from letheon.errors import ConfigError
from letheon.request import Scope
from letheon.tasks.trigger import Trigger

Placement = Literal["one_client", "spread"]


@dataclass(frozen=True)
class Target:
    """What an experiment wants forgotten; its ``[request]`` table.

    Attributes:
        scope: ``client``, ``class`` or ``samples``.
        client: whose data (scopes ``client``, and ``samples`` placed with one client). ``None`` picks by rule: the
            client whose size is nearest the median among those that hold enough.
        min_forget: scope ``client``: how many samples a client picked by rule must have to forget.
        label: scope ``class``.
        fraction: scope ``samples``: how much of the *whole* training set.
        placement: scope ``samples``: all with one client, or drawn from all clients.
        trigger: painted on the data to forget, so that forgetting shows; ``None`` leaves the data clean. A class is
            forgotten as it is, whatever the trigger.
        also: what is to be forgotten together with it, in one pass.
    """

    scope: Scope = "client"
    client: str | None = None
    min_forget: int = 200
    label: int = 0
    fraction: float = 0.01
    placement: Placement = "one_client"
    trigger: Trigger | None = field(default_factory=Trigger)
    also: tuple[Target, ...] | None = None  # None and not (): the digests of experiments without it stay as they are

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ConfigError(f"request: unknown scope {self.scope!r}; use one of {', '.join(get_args(Scope))}")
        if self.placement not in get_args(Placement):
            known = ", ".join(get_args(Placement))
            raise ConfigError(f"request: unknown placement {self.placement!r}; use one of {known}")
        if self.min_forget < 1:
            raise ConfigError(f"request: min_forget must be at least 1, got {self.min_forget}")
        if self.label < 0:
            raise ConfigError(f"request: label must not be negative, got {self.label}")
        if not 0.0 < self.fraction < 1.0:
            raise ConfigError(f"request: fraction must lie between 0 and 1, got {self.fraction}")
        has_owner = self.scope == "client" or (self.scope == "samples" and self.placement == "one_client")
        if self.client is not None and not has_owner:
            raise ConfigError(
                f"request: client {self.client!r} is named, but scope {self.scope!r} takes from all clients; "
                "leave client out, or use scope 'client', or 'samples' with placement 'one_client'"
            )
        if any(each.also for each in self.also or ()):
            raise ConfigError("request.also: holds an also of its own; list all that go together beside each other")

    @property
    def members(self) -> tuple[Target, ...]:
        """All that goes together, each on its own."""
        return (replace(self, also=None), *(self.also or ()))
