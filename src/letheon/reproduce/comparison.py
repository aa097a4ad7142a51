"""Published and measured numbers side by side, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from letheon.metrics.measurement import Undefined
from letheon.report.words import STATUS, WHY, digits
from letheon.reproduce.measured import Drawn, Measured, Value
from letheon.reproduce.ordering import NOT_RUN, Agreement, Checked, Values, agreement, check
from letheon.reproduce.published import Cell
from letheon.reproduce.quantities import QUANTITIES, Quantity
from letheon.reproduce.targets import Recipe, Scale, Target
from letheon.results import ranges


@dataclass(frozen=True, slots=True)
class Entry:
    """One method in one column.

    Attributes:
        method, column: where it stands.
        published: as printed; None if it is not.
        measured, low, high: mean and range over the runs where it is defined; None if it is defined in none.
        runs: how many those are.
        states: how often it is not defined, by state.
        difference: measured − published; for costs measured / published. None without both.
        places: decimals that it deserves.
    """

    method: str
    column: str
    published: Cell | None
    measured: float | None
    low: float | None
    high: float | None
    runs: int
    states: Mapping[str, int]
    difference: float | None
    places: int


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that went in; ``void``: why it ranks no method; ``label``: the class that went, at class level."""

    seed: int
    digest: str
    void: str
    label: int | None = None


@dataclass(frozen=True)
class Comparison:
    """A row of a target, published and measured.

    Attributes:
        target, row, scale: what was asked for.
        source, title: where it stands in the paper, and what it is about.
        columns: by name, the quantity measured.
        departures: where the setting is not the paper's.
        changes: what was set on the command line besides.
        absent: methods that were not run, each with the reason.
        runs: what went in.
        entries: the table.
        orders: by column, whether the order of the methods agrees.
        claims: sentences of the paper.
        series: means over the runs.
        panel: columns that are printed beside each other; 0: all.
    """

    target: str
    row: str
    scale: Scale
    source: str
    title: str
    columns: Mapping[str, str]
    departures: tuple[str, ...]
    changes: tuple[str, ...]
    absent: Mapping[str, str]
    runs: tuple[Ran, ...]
    entries: tuple[Entry, ...]
    orders: Mapping[str, Agreement]
    claims: tuple[Checked, ...]
    series: tuple[Drawn, ...] = field(default=())
    panel: int = 0


def compared(
    target: Target, row: str, scale: Scale, *, recipe: Recipe, changes: Sequence[str], found: Sequence[Measured]
) -> Comparison:
    """Put what the paper prints for ``row`` beside what the runs ``found``."""
    printed = target.published.values.get(row, {})
    methods = list(dict.fromkeys([*printed, *(label for one in found for label in one.values)]))
    if not printed:  # nothing is printed for Origin; it has a row in no figure
        methods.remove("origin")
    entries, orders = [], {}
    for column, key in target.shows.items():
        cells = {method: line[column] for method, line in printed.items() if column in line}
        entries += [_entry(method, column, cells.get(method), key=key, found=found) for method in methods]
        if cells:
            orders[column] = _order(cells, key, found)
    claims = [check(c, _values(c.quantity, found), QUANTITIES[c.quantity]) for c in target.published.claims_of(row)]
    return Comparison(
        target=target.id,
        row=row,
        scale=scale,
        source=f"{target.published.paper}, {target.published.source}",
        title=target.published.title,
        columns=target.shows,
        departures=recipe.departures,
        changes=tuple(changes),
        absent=recipe.absent,
        runs=tuple(Ran(one.seed, one.digest, one.void, one.label) for one in found),
        entries=tuple(entries),
        orders=orders,
        claims=tuple(claims),
        series=tuple(_means(found)),
        panel=target.panel,
    )


def _entry(method: str, column: str, published: Cell | None, *, key: str, found: Sequence[Measured]) -> Entry:
    quantity = QUANTITIES[key]
    values = [one.values[method][key] for one in _ranking(found, quantity) if key in one.values.get(method, {})]
    numbers = [value for value in values if not isinstance(value, Undefined)]
    spread = ranges([{key: number} for number in numbers], key)
    mean, low, high, runs = spread or (None, None, None, 0)
    n = min(one.n_forget if quantity.of_retention else one.n_test for one in found)
    return Entry(
        method=method,
        column=column,
        published=published,
        measured=mean,
        low=low if runs > 1 else None,
        high=high if runs > 1 else None,
        runs=runs,
        states=dict(Counter(STATUS[value.status] for value in values if isinstance(value, Undefined))),
        difference=_difference(published, mean, quantity),
        places={"%": digits(n), "share": 3}.get(quantity.unit, 2),
    )


def _difference(published: Cell | None, value: float | None, quantity: Quantity) -> float | None:
    if value is None or published is None or isinstance(published, str):
        return None
    if quantity.unit == "ratio":
        return value / published if published else None
    return value - published


def _order(cells: Mapping[str, Cell], key: str, found: Sequence[Measured]) -> Agreement:
    quantity = QUANTITIES[key]
    void = _all_void(found) if quantity.of_retention else ""
    return Agreement("undefined", reason=void) if void else agreement(cells, _values(key, found), quantity)


def _values(key: str, found: Sequence[Measured]) -> Values:
    """For each method the mean over the runs that rank; a value only if it has one in all of them."""
    quantity = QUANTITIES[key]
    methods = dict.fromkeys(label for one in found for label in one.values)
    void = _all_void(found) if quantity.of_retention else ""
    if void:
        return dict.fromkeys(methods, Undefined(void, "void"))
    runs = _ranking(found, quantity)
    return {method: _mean([_ranked(one, method, key) for one in runs]) for method in methods}


def _ranked(one: Measured, method: str, key: str) -> Value:
    """A method's value as an order may take it: a destroyed model retains little, which is no merit."""
    if QUANTITIES[key].of_retention and method in one.collapsed:
        return Undefined(WHY["collapsed"], "collapsed")
    return one.values.get(method, {}).get(key, NOT_RUN)


def _mean(values: Sequence[Value]) -> Value:
    undefined = [value for value in values if isinstance(value, Undefined)]
    if undefined:
        share = f" in {len(undefined)} of {len(values)} runs" if len(values) > 1 else ""
        return Undefined(f"{undefined[0].reason}{share}", undefined[0].status)
    return sum(value for value in values if not isinstance(value, Undefined)) / len(values)


def _ranking(found: Sequence[Measured], quantity: Quantity) -> Sequence[Measured]:
    """The runs that say something about a quantity; all of them if none does, to show what there is."""
    ranking = [one for one in found if not (quantity.of_retention and one.void)]
    return ranking or found


def _all_void(found: Sequence[Measured]) -> str:
    """Why there is nothing to rank; empty if some run ranks."""
    if not all(one.void for one in found):
        return ""
    return "every run is void" if len(found) > 1 else "the run is void"


def _means(found: Sequence[Measured]) -> Iterable[Drawn]:
    """Each series as the mean over the runs that rank."""
    runs = [one for one in found if not one.void] or found
    for same in zip(*(one.series for one in runs), strict=True):
        longest = max(same, key=lambda drawn: len(drawn.at))
        labels = dict.fromkeys(label for drawn in same for label in drawn.values)
        values = {label: tuple(_mean_at(same, label, i) for i in range(len(longest.at))) for label in labels}
        yield Drawn(longest.title, longest.axis, longest.at, values)


def _mean_at(same: Sequence[Drawn], label: str, i: int) -> float | None:
    courses = [drawn.values.get(label, ()) for drawn in same]
    values = [course[i] for course in courses if i < len(course)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
