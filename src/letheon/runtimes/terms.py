"""How long and for how much a server of clients on other machines waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from letheon.errors import ConfigError

Security = Literal["open", "authenticated"]


def given(*, secure_aggregation: bool) -> frozenset[str]:
    """What of ``Method.needs`` can be had over Flower."""
    return frozenset({"history"} if secure_aggregation else {"history", "per-client"})


@dataclass(frozen=True)
class Terms:
    """What the server of a federation puts up with.

    Attributes:
        deadline_s: seconds from the start of a round after which a reply that is not there is missing.
        gather_s: seconds to wait, before the first round, for all clients to be there.
        tries: how often in a round a client is asked whose message or process got lost.
        poll_s: seconds between two looks for replies.
        largest_mib: MiB of a message beyond which it is refused.
    """

    deadline_s: float = 300.0
    gather_s: float = 120.0
    tries: int = 2
    poll_s: float = 0.2
    largest_mib: int = 1024

    def __post_init__(self) -> None:
        for name in ("deadline_s", "gather_s", "tries", "poll_s", "largest_mib"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: must be positive, got {getattr(self, name)}")


@dataclass(frozen=True)
class Deployment:
    """How an experiment is run on Flower: a SuperLink and a SuperNode for each client, on this machine.

    Attributes:
        terms: deadlines and sizes.
        security: ``open``, or ``authenticated``: TLS, and nodes that prove who they are with keys made for the run.
        secure_aggregation: what the federation promises its clients: no method reads a single reply. Methods that would
            are refused. Letheon itself encrypts no reply and adds none up unseen: it says what could run where that is
            done.
    """

    terms: Terms = Terms()
    security: Security = "open"
    secure_aggregation: bool = False

    def __post_init__(self) -> None:
        if self.security not in get_args(Security):
            raise ConfigError(f"flower.security: unknown {self.security!r}; use {', '.join(get_args(Security))}")

    @property
    def gives(self) -> frozenset[str]:
        """What of ``Method.needs`` can be had."""
        return given(secure_aggregation=self.secure_aggregation)
