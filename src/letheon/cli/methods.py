"""``letheon methods``."""

from __future__ import annotations

from rich import box
from rich.table import Table

from letheon import registry
from letheon.cli.options import Json
from letheon.cli.terminal import show, show_json


def methods(json: Json = False) -> None:
    """List the unlearning methods."""
    entries = {name: registry.entry("method", name) for name in registry.names("method")}
    if json:
        rows = [
            {"name": name, "summary": entry.summary, "scopes": list(entry.scopes), "target": entry.target}
            for name, entry in entries.items()
        ]
        show_json(rows)
        return
    table = Table("method", "can forget", "what it does", box=box.SIMPLE_HEAD)
    table.columns[0].no_wrap = True
    for name, entry in entries.items():
        table.add_row(name, ", ".join(entry.scopes) or "(ask its package)", entry.summary)
    show(table)
