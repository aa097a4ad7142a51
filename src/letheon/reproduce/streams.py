"""From finished streams to the quantities that COP's tables and figures are about."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from letheon.methods.descent import Descent
from letheon.metrics.measurement import Undefined
from letheon.report.streams import write_artefacts
from letheon.reproduce.measured import Drawn, Measured, Value
from letheon.reproduce.quantities import STREAM
from letheon.reproduce.targets import Series
from letheon.stream.life import StreamRun
from letheon.stream.results import CONTINUED

FIELDS: Mapping[str, str] = {
    "fr": "rouge",
    "fp": "probability",
    "es": "es_openunlearning",
    "em": "em",
    "mu": "mu",
}
"""By quantity, the field in a stream's rows."""
ALONE = 0.0
"""Where the objective without COP stands on the axis of rank caps."""

Row = Mapping[str, Any]
Values = Mapping[str, Mapping[str, Value]]


def measured(run: StreamRun, series: Series) -> Measured:
    """Everything that a target asks of one stream; writes its tables and report on the way."""
    write_artefacts(run, models=False)
    rows: list[Row] = json.loads((run.folder / "results.json").read_text())["rows"]
    rows = [row for row in rows if row["after"] != CONTINUED]
    labels = dict.fromkeys(row["method"] for row in rows)
    values: dict[str, dict[str, Value]] = {
        label: dict(_values([row for row in rows if row["method"] == label])) for label in labels
    }
    for base, caps in ranks(run).items():
        values.setdefault(base, {}).update(_by_rank(values, caps, len(run.stream.requests)))
    values["origin"] |= {"rank_es": values["origin"][f"es_{rows[-1]['requests']}"]}
    return Measured(
        seed=run.stream.seed,
        digest=run.stream.digest,
        void="",
        collapsed=frozenset(row["method"] for row in rows if row.get("diverged")),
        n_forget=min(row["n_forget"] for row in rows),
        n_test=min(len(found.pairs) for found in run.stream.texts.questions().values()),
        values=values,
        series=tuple(_series(run, series, values)),
    )


def _values(rows: Sequence[Row]) -> Iterator[tuple[str, Value]]:
    """The quantities of one model after each request, as shares."""
    for row in rows:
        for key in STREAM:
            yield f"{key}_{row['requests']}", _share(row, FIELDS[key])
    utility = [_share(row, "mu") for row in rows]
    missing = next((value for value in utility if isinstance(value, Undefined)), None)
    known = [value for value in utility if not isinstance(value, Undefined)]
    yield "mu_range", missing or max(known) - min(known)
    yield "mu_fall", missing or known[0] - known[-1]


def _share(row: Row, field: str) -> Value:
    if row[field] is None:
        return Undefined("the model collapsed" if row.get("diverged") else "has no value", "collapsed")
    return float(row[field]) / 100.0


def ranks(run: StreamRun) -> dict[str, dict[float, str]]:
    """By objective and rank cap the label of the method, the objective alone first; where several caps were run."""
    found: dict[str, dict[float, str]] = {}
    for label, method in run.stream.methods.items():
        if isinstance(method, Descent):
            cap = ALONE if method.cop is None else float(method.cop.rank or 0)
            found.setdefault(method.name, {})[cap] = label
    sorted_ = {base: dict(sorted(caps.items())) for base, caps in found.items()}
    return {base: caps for base, caps in sorted_.items() if len(caps.keys() - {ALONE}) > 1}


def _by_rank(values: Values, caps: Mapping[float, str], last: int) -> dict[str, Value]:
    """What a sweep over rank caps says of an objective, after the last request."""
    held = [label for cap, label in caps.items() if cap != ALONE]
    utility = [values[label][f"mu_{last}"] for label in (held[0], held[-1])]
    strengths = [values[label][f"es_{last}"] for label in held]
    return {"rank_gain": _or_missing(utility, lambda x: x[1] - x[0]), "rank_es": _or_missing(strengths, max)}


def _or_missing(values: Sequence[Value], of: Any) -> Value:
    missing = next((value for value in values if isinstance(value, Undefined)), None)
    return missing or float(of(values))


def _series(run: StreamRun, series: Series, values: Values) -> Iterator[Drawn]:
    count = len(run.stream.requests)
    if series == "utility":
        at = tuple(range(1, count + 1))
        lines = {label: tuple(_known(found.get(f"mu_{k}")) for k in at) for label, found in values.items()}
        yield Drawn("Model utility after each request", "request", tuple(map(float, at)), lines)
    if series == "rank":
        sweep = ranks(run)
        at_caps = tuple(sorted({cap for caps in sweep.values() for cap in caps}))
        for key, what in (("mu", "Model utility"), ("es", "Extraction strength")):
            lines = {
                base: tuple(_known(values[caps[cap]][f"{key}_{count}"]) if cap in caps else None for cap in at_caps)
                for base, caps in sweep.items()
            }
            title = f"{what} after the last request, by rank cap (0: without COP)"
            level = (_known(values["origin"][f"{key}_{count}"]),) * len(at_caps)
            yield Drawn(title, "cap", at_caps, {"origin": level} | lines)


def _known(value: Value | None) -> float | None:
    return None if isinstance(value, Undefined) else value
