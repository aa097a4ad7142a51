"""The run folder: whose it is, what the numbers depend on, and what a population looks like in numbers."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Mapping
from functools import cache as cache_once
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch

from letheon import config, tree
from letheon.errors import ConfigError
from letheon.experiment import Experiment
from letheon.files import write_json
from letheon.request import Request, free
from letheon.tasks.population import Population

log = logging.getLogger(__name__)

EXPERIMENT = "experiment.json"
CONTINUED_BY = "continued_by"
"""Digests of other code than the one that began the run, under which it was continued."""


class Named(Protocol):
    """What a run is of: a dataclass with a digest, an ``Experiment`` or a ``Stream``."""

    @property
    def digest(self) -> str:
        """Names the run."""
        ...


def claim(folder: Path, experiment: Named, *, data: str, cache: Path | None, resume: bool) -> Path | None:
    """Make the folder this experiment's; returns the cache in force.

    Args:
        folder: the run folder.
        experiment: what is to be run.
        data: digest of the data that it runs on.
        cache: where the stages are kept, if not in the folder; a run that is continued keeps to its own.
        resume: whether a run that is there may be continued.

    Raises:
        ConfigError: the cache is a file; the folder holds another experiment, or this one and ``resume`` is not set, or
            this one begun on other data or with other versions of the software, whose numbers cannot be continued bit
            for bit.
    """
    path = folder / EXPERIMENT
    if cache is not None and cache.exists() and not cache.is_dir():
        raise ConfigError(f"{cache}: is a file, not a folder; choose another --cache")
    if not path.is_file():
        content = {"digest": experiment.digest, "data": data, "versions": versions()}
        content |= {"experiment": config.plain(experiment)} | ({"cache": str(cache.resolve())} if cache else {})
        write_json(path, content)
        return cache
    content = read(path)
    found, changed = content["digest"], _changed(content, data)
    if found != experiment.digest:
        raise ConfigError(f"{folder}: holds run {found}, this experiment is {experiment.digest}; choose another --out")
    if not resume:
        raise ConfigError(
            f"{folder}: holds this very run; continue or reuse it with --resume, or choose another --out"
        )
    if changed:
        raise ConfigError(f"{folder}: was begun with {changed}; go back to that, or choose another --out")
    own = recorded_cache(content)
    if cache is not None and cache.resolve() != own:
        raise ConfigError(f"{folder}: keeps its stages in {own or folder}; leave --cache out, or choose another --out")
    _note_code(path, content)
    return own


def _note_code(path: Path, content: Mapping[str, Any]) -> None:
    """Where the code is not what it was, say so now, and in the folder for whoever reads the numbers."""
    code, before = versions()["code"], content["versions"].get("code")
    if code == before:
        return
    log.warning("the code has changed since this run was begun; what it has completed is kept as it is")
    write_json(path, {**content, CONTINUED_BY: sorted({*content.get(CONTINUED_BY, ()), code})})


def recorded_cache(content: Mapping[str, Any]) -> Path | None:
    """The cache that a run was begun with, if any."""
    return Path(content["cache"]) if "cache" in content else None


def read(path: Path) -> dict[str, Any]:
    """What ``claim`` wrote.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        has_tables = all(isinstance(content.get(name), dict) for name in ("experiment", "versions"))
        if has_tables and {"digest", "data"} <= content.keys():
            return content
    except (UnicodeDecodeError, json.JSONDecodeError, AttributeError):
        pass
    raise ConfigError(f"{path}: damaged, or not written by `letheon run`; choose another folder, or remove this one")


def _changed(content: Mapping[str, Any], data: str) -> str:
    """What decides the bits and is not as it was."""
    before, now = content["versions"] | {"data": content["data"]}, versions() | {"data": data}
    deciding = [name for name in ("letheon", "torch", "data") if before.get(name) != now[name]]
    return ", ".join(f"{name} {before.get(name)} (now {now[name]})" for name in deciding)


def versions() -> dict[str, str]:
    """What the numbers depend on besides the experiment."""
    return {
        "letheon": version("letheon"),
        "code": code_digest(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


@cache_once
def code_digest() -> str:
    """Names the code that computes numbers by content: the package without its command line and reports."""
    root, total = Path(__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts[0] not in ("cli", "federation", "report", "testing", "reproduce", "diagnostics"):
            total.update(place.as_posix().encode() + path.read_bytes())
    return total.hexdigest()[:16]


def stages(folder: Path, cache: Path | None, *, used: Mapping[str, str], data: str) -> Path:
    """Where a run keeps its stages; in a cache each combination of code, versions and data has a shelf of its own."""
    return cache / f"code-{used['code']}-torch-{used['torch']}-data-{data}" if cache else folder / "stages"


def data_digest(population: Population) -> str:
    """Names the data by content: who holds which samples, and the test set."""
    total = hashlib.sha256()
    for name, data in [*sorted(population.clients.items()), ("", population.test)]:
        total.update(name.encode())
        total.update(tree.digest({"inputs": data.inputs, "targets": data.targets, "ids": data.ids}).encode())
    return total.hexdigest()[:16]


def described(experiment: Experiment, population: Population) -> dict[str, Any]:
    """The population in numbers; no sample is listed."""
    classes, request = experiment.task.classes, population.request
    return {
        "request": _told(request),
        "later": [_told(later) for later in population.requests[1:]],
        "forget_size": population.forget_size,
        "client_sizes": {name: len(data) for name, data in sorted(population.clients.items())},
        "retained_labels": label_counts(population, classes),
        "test_counts": torch.bincount(population.test.targets, minlength=classes).tolist(),
        "triggered_test": len(population.triggered_test) if population.triggered_test is not None else None,
        "parameters": tree.count(experiment.task.init(0).params),
        "notes": list(population.notes),
    }


def _told(request: Request) -> dict[str, Any]:
    """A request in numbers; ``also``: those served together with it."""
    first, *also = request.members
    told: dict[str, Any] = {"id": request.id, "scope": first.scope, "client": first.client}
    return told | ({"also": [_told(each) for each in also]} if also else {})


def label_counts(population: Population, classes: int) -> dict[str, list[int]]:
    """For each client, how many retained samples it has of each class."""
    return {
        name: torch.bincount(data.targets[free(population.requests, name, data)], minlength=classes).tolist()
        for name, data in sorted(population.clients.items())
    }
