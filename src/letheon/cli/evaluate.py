"""``letheon evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from letheon.cli.options import Debug, Json, Verbose
from letheon.cli.terminal import compute, show, show_json, stderr
from letheon.cli.unlearn import Chat, Device, Model, Threads
from letheon.report.words import spread

Suite = Annotated[str, typer.Option("--suite", help="Benchmark: tofu or rwku.")]
Part = Annotated[
    str | None, typer.Option("--forget", help="tofu: forget01, forget05 or forget10. rwku: how many people.")
]
Reference = Annotated[
    str | None,
    typer.Option(
        "--reference", metavar="DIR", help="A model that never saw the texts, or OpenUnlearning's TOFU_EVAL.json of it."
    ),
]
Compat = Annotated[
    str | None, typer.Option("--compat", metavar="openunlearning", help="Write --out in its layout and by its rules.")
]
Kept = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Keep all scores; reused if still valid.")]
Items = Annotated[int | None, typer.Option("--items", min=2, help="Questions of each set, evenly spread; or all.")]
Tokens = Annotated[
    int | None, typer.Option("--tokens", min=1, help="Of a written answer, at most; tofu 200, rwku 30 by default.")
]


def evaluate(
    model: Model,
    suite: Suite = "tofu",
    forget: Part = None,
    reference: Reference = None,
    compat: Compat = None,
    out: Kept = None,
    items: Items = None,
    template: Chat = None,
    tokens: Tokens = None,
    device: Device = "cpu",
    threads: Threads = 1,
    json: Json = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Examine a language model: what it still knows of what is to be forgotten, and what it is still good for."""
    compute(stderr(), verbose=verbose)
    from letheon.text import suites

    asked = suites.Suite(suite, forget, items=items, template=template, tokens=tokens)
    if compat not in (None, "openunlearning") or (compat and (not out or suite != "tofu")):
        raise typer.BadParameter("--compat: openunlearning is the only one, for tofu, and it needs --out FILE")
    kept = None if compat else out
    told = suites.evaluate(asked, model, reference=reference, out=kept, device=device, threads=threads)
    if compat and out:
        suites.write_openunlearning(out, told)
    content = suites.content(told, asked)
    show_json(content) if json else show(_table(content))


def _table(content: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("set", "score", "value", "n", "definition"):
        table.add_column(name, no_wrap=name != "definition")
    for row in content["scores"]:
        value = spread(row["value"], row["value_low"], row["value_high"], 2) if row["value"] is not None else row["why"]
        table.add_row(row["set"], row["score"], value, str(row["n"]), row["definition"])
    return table
