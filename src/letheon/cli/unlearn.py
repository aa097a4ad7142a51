"""``letheon unlearn``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from letheon.cli.options import Debug, Json, Sets, Verbose
from letheon.cli.terminal import compute, say, show, show_json, stderr

Model = Annotated[str, typer.Option("--model", metavar="DIR", help="Folder of the model, or its name on the hub.")]
Forget = Annotated[Path, typer.Option("--forget", metavar="FILE", help="What to forget: JSON lines, question, answer.")]
Retain = Annotated[Path | None, typer.Option("--retain", metavar="FILE", help="What to keep, likewise.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder for the model that has forgotten.")]
How = Annotated[str, typer.Option("--method", metavar="NAME[+cop]", help="As `letheon methods` lists them.")]
Chat = Annotated[str | None, typer.Option("--template", help="chat or plain; the tokenizer's chat template if any.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of every random draw.")]
Device = Annotated[str, typer.Option("--device", help="As torch names it, for instance cuda.")]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Of one kernel on a CPU.")]
Length = Annotated[int, typer.Option("--max-length", min=8, help="Tokens of a text; longer ones are cut.")]


def unlearn(
    model: Model,
    forget: Forget,
    out: Out,
    retain: Retain = None,
    method: How = "npo",
    sets: Sets = None,
    template: Chat = None,
    max_length: Length = 512,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = 1,
    json: Json = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Make a language model of your own forget texts of your own, and write it to a new folder.

    --set changes the method, as in tuning.lr=1e-4 or lora.rank=8. With NAME+cop the new folder also holds what has
    been settled; the next request, with this folder as --model, leaves it as it is.
    """
    compute(stderr(), verbose=verbose)
    from letheon.text import folders

    request = folders.Asked(model, forget, retain, template=template, max_length=max_length, device=device)
    told = folders.unlearn(request, out, method=method, settings=sets or (), seed=seed, threads=threads)
    if json:
        show_json(told)
        return
    show(_table(told))
    if told["epochs"]:
        show(_course(told))
    say(stderr(), f"written to {out}")


def _table(told: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=_room(told), caption_justify="left")
    for name in ("texts", "how many", "loss before", "loss after"):
        table.add_column(name)
    for name in ("forget", "retain"):
        before, after = told[f"{name}_before"], told[f"{name}_after"]
        numbers = [f"{value:.3f}" if value is not None else "–" for value in (before, after)]
        table.add_row(name, str(told[f"n_{name}"]), *numbers)
    return table


def _room(told: dict[str, Any]) -> str | None:
    if told["dimensions_left"] is None:
        return None
    left, held = (100 * told[name] for name in ("dimensions_left", "energy_held"))
    return (
        f"COP: {left:.1f} % of the dimensions are left for later requests in the fullest input space; at least "
        f"{held:.1f} % of this request's energy is held."
    )


def _course(told: dict[str, Any]) -> Table:
    """The losses after each epoch, with a mark at the one that was kept."""
    caption = "Mean losses, nats a token; watched: retained texts that were not trained on."
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    for name in ("epoch", "forget", "watched", ""):
        table.add_column(name)
    for epoch, row in enumerate(told["epochs"]):
        mark = "kept" if epoch == told["kept"] else ""
        table.add_row(str(epoch), f"{row['forget']:.3f}", f"{row['retained']:.3f}", mark)
    return table
