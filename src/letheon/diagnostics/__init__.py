"""Why a model is, or is not, likely to remember again: diagnostics beside the metrics, none of which enters a verdict.

Each definition carries a version; a changed number raises it.
"""

VERSIONS: dict[str, int] = {
    "rollback": 1,
    "connectivity": 1,
    "features": 1,
    "relearning": 1,
    "membership": 1,
    "probe": 1,
}
