"""The app of a new federation, from the template beside this file."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from letheon.errors import ConfigError
from letheon.files import write

FILES = ("README.md", "fed/__init__.py", "fed/server_app.py", "fed/client_app.py", "fed/federation.toml")


def write_app(folder: Path) -> None:
    """Write the app into ``folder``; its server keeps its state in ``folder/state``.

    Raises:
        ConfigError: there is something of that name.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: is there already; choose another name, or remove it")
    template = resources.files("letheon.federation").joinpath("template")
    for name in FILES:
        write(folder / name, template.joinpath(name).read_bytes())
    project = template.joinpath("pyproject.template").read_text()
    # Absolute: what is relative depends on where the SuperLink was started.
    write(folder / "pyproject.toml", project.replace("FOLDER", json.dumps(str(folder.resolve() / "state"))).encode())
