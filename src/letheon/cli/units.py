"""Numbers for people."""

from __future__ import annotations


def amount(value: float, unit: str) -> str:
    """Three digits and a decimal prefix: ``482 kB``, ``1.93 TFLOP``."""
    prefixes = ["", "k", "M", "G", "T", "P", "E"]
    while value >= 999.5 and len(prefixes) > 1:
        value, prefixes = value / 1000, prefixes[1:]
    digits = 0 if value >= 99.95 or value == int(value) else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {prefixes[0]}{unit}"


def clock(seconds: float) -> str:
    """``0:07``, ``12:30``, ``1:02:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def duration(seconds: float) -> str:
    """Roughly: ``0.4 s``, ``12 s``, ``4 min``, ``2 h 10 min``."""
    if seconds < 89.5:
        return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours} h {minute:02} min" if hours else f"{minutes} min"
