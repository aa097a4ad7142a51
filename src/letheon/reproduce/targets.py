"""What is run for a table or figure, read from ``targets.toml`` and ``targets_cop.toml``.

No torch here: listing stays quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from letheon import registry
from letheon.errors import ConfigError
from letheon.reproduce.published import Published, package_table, published

Scale = Literal["small", "paper"]
Series = Literal["", "life", "continued", "rollback", "path", "utility", "rank"]


@dataclass(frozen=True)
class Setting:
    """One scale of an experiment.

    Attributes:
        like: the experiment whose same scale this one starts from; empty: it starts from ``preset``.
        preset: the federation that the paper's text, or its tables, describe.
        departures: where the setting is not the paper's, or where the paper leaves it open.
        settings: an experiment's tables, or a stream's, and ``methods``: what runs, in an experiment beside Retrain and
            detach.
        labels: classes that go, each in runs of its own; values are means over them. Empty: what ``settings`` say.
    """

    like: str = ""
    preset: str = ""
    departures: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[int, ...] = ()


@dataclass(frozen=True)
class Target:
    """A table or figure that can be run.

    Attributes:
        id: as ``letheon reproduce`` takes it.
        published: what the paper prints and says.
        shows: by column, the quantity that is put beside it.
        series: what is drawn; empty: nothing.
        rows: by row, the experiment that is run.
        panel: columns that are printed beside each other; 0: all.
    """

    id: str
    published: Published
    shows: Mapping[str, str]
    rows: Mapping[str, str]
    series: Series = ""
    panel: int = 0

    @property
    def quantities(self) -> set[str]:
        """Everything that has to be measured, for columns and claims."""
        return {*self.shows.values(), *(claim.quantity for claim in self.published.claims)}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one row of a target runs at one scale.

    Attributes:
        table: the experiment's table, as in an experiment file.
        departures: as in ``Setting``, the inherited ones first.
        absent: methods that are left out, each with the reason.
        needs: what is missing altogether; the row cannot run unless this is empty.
        labels: as in ``Setting``.
    """

    table: Mapping[str, Any]
    departures: tuple[str, ...]
    absent: Mapping[str, str]
    needs: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()


@cache
def targets() -> dict[str, Target]:
    """All targets by id, in the order of their files."""
    return {
        name: Target(name, published()[name], **table)
        for name, table in _content()["targets"].items()
    }


@cache
def _content() -> dict[str, Any]:
    lethe, cop = (package_table(name) for name in ("targets.toml", "targets_cop.toml"))
    content = {part: lethe[part] | cop[part] for part in lethe}
    for name, scales in content["experiments"].items():
        content["experiments"][name] = {
            scale: Setting(**table | {"labels": tuple(table.get("labels", ()))}) for scale, table in scales.items()
        }
    return content


def target(name: str) -> Target:
    """The target called ``name``.

    Raises:
        ConfigError: there is none.
    """
    known = targets()
    if name in known:
        return known[name]
    if name in published():
        raise ConfigError(
            f"{name}: its values are known, but nothing here can run it ({published()[name].title.lower()})"
        )
    raise ConfigError(f"unknown target {name!r}{registry.did_you_mean(name, known)} Known targets: {', '.join(known)}")


def chosen_rows(found: Target, names: Sequence[str]) -> list[str]:
    """The rows called ``names``, all rows if there are none.

    Raises:
        ConfigError: a row that the target does not have.
    """
    for name in names:
        if name not in found.rows:
            near = registry.did_you_mean(name, found.rows)
            raise ConfigError(f"{found.id}: no row {name!r}{near} It has: {', '.join(found.rows)}")
    return list(dict.fromkeys(names)) or list(found.rows)


def recipe(experiment: str, scale: Scale) -> Recipe:
    """What has to be run for ``experiment`` at ``scale``."""
    setting = resolved(experiment, scale)
    table = _merged(_content()["presets"][setting.preset], setting.settings)
    listed = [method if isinstance(method, Mapping) else {"name": method} for method in table.pop("methods")]
    scope = table["request"]["scope"] if "request" in table else "samples"  # a stream's requests are for texts
    absent = {m["name"]: why for m in listed if (why := _absence(m["name"], scope))}
    present = [method for method in listed if method["name"] not in absent]
    table |= {"method": present[0], "compare": present[1:]}
    task = table["task"] if isinstance(table["task"], str) else table["task"]["name"]
    needs = () if task in registry.TASKS else (f"the task {task}",)
    return Recipe(table, setting.departures, absent, needs, setting.labels)


def resolved(experiment: str, scale: Scale) -> Setting:
    """A setting with everything that it inherits."""
    setting: Setting = _content()["experiments"][experiment][scale]
    if not setting.like:
        return setting
    base = resolved(setting.like, scale)
    settings = _merged(base.settings, setting.settings)
    departures = (*base.departures, *setting.departures)
    return Setting("", setting.preset or base.preset, departures, settings, setting.labels or base.labels)


def _absence(method: str, scope: str) -> str:
    """Why a method cannot take part; empty if it can. The paper's methods are Letheon's own, no entry points."""
    if method not in registry.METHODS:
        return "no method of this name is installed"
    scopes = registry.METHODS[method].scopes
    return f"does not serve requests of scope {scope}" if scopes and scope not in scopes else ""


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A new table: ``over`` on top of ``base``; a table that names another class replaces instead."""
    merged = deepcopy(dict(base))
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        is_same = both and ("name" not in value or value["name"] == old.get("name"))  # type: ignore[union-attr]
        merged[key] = _merged(old, value) if is_same else deepcopy(value)  # type: ignore[arg-type]
    return merged
