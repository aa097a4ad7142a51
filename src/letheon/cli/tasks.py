"""``letheon tasks``."""

from __future__ import annotations

from rich import box
from rich.table import Table

from letheon import registry
from letheon.cli.options import Json
from letheon.cli.terminal import show, show_json


def tasks(json: Json = False) -> None:
    """List the learning tasks."""
    entries = {name: registry.entry("task", name) for name in registry.names("task")}
    if json:
        show_json([{"name": name, "summary": entry.summary, "target": entry.target} for name, entry in entries.items()])
        return
    table = Table("task", "what it is", box=box.SIMPLE_HEAD)
    table.columns[0].no_wrap = True
    for name, entry in entries.items():
        table.add_row(name, entry.summary)
    show(table)
