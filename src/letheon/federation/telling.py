"""How a ServerApp tells whoever started it how a run goes: lines of JSON in its log."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from letheon.curve import Point
    from letheon.stage import Outcome

_BEGINS = "letheon says "


class Telling:
    """A listener that prints a line for each event."""

    def stage_started(self, stage: str, rounds: int) -> None:
        """Tell."""
        tell("stage_started", stage=stage, rounds=rounds)

    def point_reached(self, stage: str, point: Point) -> None:
        """Tell, but not what single samples did: the line goes through logs."""
        tell("point_reached", stage=stage, point=asdict(point) | {"forget_bits": ""})

    def stage_finished(self, stage: str, outcome: Outcome, *, cached: bool) -> None:
        """Tell."""
        tell("stage_finished", stage=stage, cached=cached)


def tell(event: str, **what: Any) -> None:
    """Print an event."""
    print(_BEGINS + json.dumps({"event": event} | what), flush=True)


def heard(line: str) -> dict[str, Any] | None:
    """The event that a line tells of, if any."""
    _, found, text = line.partition(_BEGINS)
    try:
        event = json.loads(text) if found else None
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
