"""What Lethe's open choices are worth: the marked choices of the paper, one at a time, beside the defaults.

The Lethe paper gives no γ, no length of the ascent, no place of the adapter, no T and R, and does not say what a layer
is. Each row changes one of these in one experiment (``--base``); each runs with every seed. Origin, Retrain and the
controls, detach and plain fine-tuning, are trained once a seed: runs share a cache. The table is written anew after
every run.

    python experiments/ablations.py --out runs/ablations --seeds 0 10 11
    python experiments/ablations.py --out runs/ablations --seeds 0 10 11        # after an interruption: goes on
    python experiments/ablations.py --list

Rows are compared by what the paper measures; nothing may be chosen by CT-KR or RR on the seeds that are reported.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from letheon import config, pipeline
from letheon.experiment import Experiment
from letheon.files import write
from letheon.methods.base import Method
from letheon.methods.fine_tuning import FineTuning
from letheon.report.words import STATUS
from letheon.results import Results, ranges

Row = Mapping[str, Any]

OFF = False
"""In a table, what TOML has for none."""
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "": {"default": {}, "strict_paper": {"preset": "strict_paper"}},
    "γ": {
        **{f"β = {beta:g}": {"gamma": {"beta": beta}} for beta in (0.0, 0.05, 0.25, 0.5)},
        **{f"β = {beta:g}, γ ≤ 1": {"gamma": {"beta": beta, "cap": 1.0}} for beta in (0.1, 0.5)},
        **{f"γ = {value:g}": {"gamma": {"kind": "constant", "value": value}} for value in (0.1, 0.3, 1.0)},
        "γ = 0.3, clipped": {"gamma": {"kind": "clipped", "value": 0.3}},
    },
    "amplification": {
        "no adapter": {"adapter": OFF},
        "no adapter, β = 0": {"adapter": OFF, "gamma": {"beta": 0.0}},
        **{f"cap {cap:g}": {"adapter": {"cap": cap}} for cap in (1.0, 2.3, 5.0)},
        "20 steps, no cap": {"adapter": {"steps": 20, "cap": OFF}},
    },
    "place of the adapter": {
        "every layer but the first": {"adapter": {"places": "all"}},
        "the middle layer": {"adapter": {"places": "middle"}},
    },
    "shape of the adapter": {
        "LoRA, last block and head": {"adapter": {"kind": "lora"}},
        "a copy of the last layer": {"adapter": {"kind": "head"}},
    },
    "rounds": {
        **{f"T = {t}, R = {8 - t}": {"rounds": t, "restore_rounds": 8 - t} for t in (1, 2, 3, 6)},
        "T = probe, R = 4": {"rounds": "probe"},
        "T = 4, R until utility is back": {"restore_rounds": "until"},
    },
    "layer": {f"layer = {layer}": {"layer": layer} for layer in ("module", "block", "global")},
    "normalisation": {
        "norms retained": {"norm": "retain"},
        "buffers of Origin": {"buffers": "origin"},
        "fresh buffers": {"buffers": "fresh"},
        "norms retained, buffers of Origin": {"norm": "retain", "buffers": "origin"},
    },
    "length of the step": {
        "no search": {"search": OFF},
        "no search, no adapter": {"search": OFF, "adapter": OFF},
        "keep 0.6": {"search": {"keep": 0.6}},
    },
    "weights": {"uniform": {"weights": "uniform"}, "q of Eq. (1) as printed": {"weights": "literal"}},
    "forget stream": {"steps of the median client": {"forget_steps": "median"}},
}
"""By choice, then by row: what it sets in the method's table. The rows of normalisation need a model that has some."""
COLUMNS = {"RR %": "rr", "U-KR %": "u_kr", "CT-KR %": "ct_kr_max", "MU %": "mu", "MU − Retrain": "mu_loss"}


@dataclass(frozen=True)
class Ablation:
    """One row: its name, the choice that it is about, and the method."""

    name: str
    choice: str
    method: Method


def ablations(base: Experiment, wanted: Sequence[str]) -> list[Ablation]:
    """The rows whose names match a pattern of ``wanted``, or all, as far as ``base`` has a use for them."""
    layers = [name.removesuffix(".weight") for name, t in base.task.init(0).params.items() if _is_matrix(name, t.ndim)]
    places = {"all": layers[1:], "middle": [layers[len(layers) // 2]]}
    found = []
    for choice, rows in ROWS.items():
        if choice == "normalisation" and not base.task.norms:
            continue
        for name, table in rows.items():
            if wanted and not any(fnmatch(name, pattern) for pattern in wanted):
                continue
            own = json.loads(json.dumps(table))
            adapter = own.get("adapter")
            if isinstance(adapter, dict) and "places" in adapter:
                adapter["places"] = places[adapter["places"]]
            method: Method = config.build(Method, {"name": "lethe"} | own, f"row {name!r}")  # type: ignore[type-abstract]
            found.append(Ablation(name, choice, method))
    return found


def _is_matrix(name: str, dimensions: int) -> bool:
    return name.endswith(".weight") and dimensions > 1


def experiment_of(base: Experiment, row: Ablation, seed: int) -> Experiment:
    """The row's run: its Lethe beside Retrain and the control that makes a run void if it forgets as much."""
    control = FineTuning(rounds=8)
    return replace(base, method=row.method, compare=(control,), seed=seed, title=f"{row.name}, seed {seed}")


def measured(experiment: Experiment, out: Path, workers: int | None) -> Row:
    """The row of Lethe in the results of a run, which is made, or continued if it is there."""
    folder = out / "runs" / f"seed{experiment.seed}-{experiment.digest}"
    run = pipeline.run(experiment, folder, resume=True, cache=out / "cache", workers=workers)
    row = Results(run).row(run.main)
    return row | {"mu_loss": row["mu"] - row["mu_retrain"]}


def page(rows: Mapping[str, list[Row]], choices: Mapping[str, str], *, base: str, seeds: Sequence[int]) -> str:
    """The table as Markdown: mean [min, max] over the seeds in which a value is defined."""
    told = (
        f"Base: `{base}`. Seeds asked for: {', '.join(map(str, seeds))}. Cells: mean [min, max] over the runs in which "
        "the value is defined; n: runs so far. RR is not defined in void runs, after failed forgetting (UF) and for "
        "collapsed models."
    )
    lines = [
        told,
        "",
        f"| choice | row | n | {' | '.join(COLUMNS)} | RR not defined |",
        f"| --- | --- | ---: | {'---: | ' * len(COLUMNS)}--- |",
    ]
    for name, found in rows.items():
        cells = " | ".join(_cell(found, key) for key in COLUMNS.values())
        states = Counter(STATUS[row["rr_status"]] for row in found if row["rr_status"])
        undefined = ", ".join(f"{state} {count}" for state, count in states.items()) or "–"
        lines.append(f"| {choices[name] or '–'} | {name} | {len(found)} | {cells} | {undefined} |")
    return "\n".join(lines) + "\n"


def _cell(rows: Sequence[Row], key: str) -> str:
    spread = ranges(rows, key)
    if spread is None:
        return "–"
    mean, low, high, _ = spread
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]".replace("-", "\u2212")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path(__file__).parent / "demo.toml", help="the experiment")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a change of the experiment")
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", nargs="+", default=[], metavar="PATTERN", help="only rows whose names match")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    """Run what is missing, seed by seed, and write ``ablations.md`` and ``ablations.json`` after each run."""
    asked = arguments(given)
    base = Experiment.load(asked.base, asked.set)
    chosen = ablations(base, asked.rows)
    choices = {row.name: row.choice for row in chosen}
    if asked.list or not chosen:
        print("\n".join(f"{row.choice or '–'}: {row.name}" for row in chosen) or "no row matches")
        return
    logging.getLogger("letheon").setLevel(logging.ERROR)
    rows: dict[str, list[Row]] = {row.name: [] for row in chosen}
    for seed in asked.seeds:
        for row in chosen:
            found = measured(experiment_of(base, row, seed), asked.out, asked.workers)
            rows[row.name].append(found)
            told = found["rr_status"] or f"RR {found['rr']:.1f} %"
            print(f"seed {seed}, {row.name}: {told}, MU {found['mu']:.1f} %", flush=True)
            done = {name: each for name, each in rows.items() if each}
            text = page(done, choices, base=asked.base.name, seeds=asked.seeds)
            write(asked.out / "ablations.md", text.encode())
            write(asked.out / "ablations.json", json.dumps(done, indent=1, default=str).encode())


if __name__ == "__main__":
    main()
