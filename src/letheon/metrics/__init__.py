"""Metrics as pure functions over predictions. Each definition carries a version; a changed number raises it."""

VERSIONS: dict[str, int] = {
    "retention": 1,
    "continued_retention": 1,
    "resurfacing": 1,
    "utility": 1,
    "attack_success": 1,
    "cost": 1,
    "verdict": 2,
}
