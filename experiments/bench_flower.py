"""What a round costs on Flower: three SuperNodes on this machine, in one process, and Flower's own floor.

    python experiments/bench_flower.py --rounds 5 --models lenet5 resnet18 --out docs/results/bench_flower.json

The floor are messages of the same size to a ClientApp that imports nothing of ours and sends back what it got. What is
above it is ours: importing torch, reading the data, unpacking, training, packing. ``resnet18`` needs CIFAR-10.
Prints JSON: by model the seconds of each round, and their medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from letheon import tree
from letheon.client import Client
from letheon.experiment import Experiment
from letheon.federation import link as links
from letheon.federation import local
from letheon.files import write
from letheon.methods.base import fedavg
from letheon.middleware import Quorum
from letheon.phase import Phase, drive
from letheon.runtimes.inprocess import InProcess
from letheon.work import Federation

FILE = Path(__file__).with_name("flower_local.toml")
MODELS = {
    "lenet5": ["local.epochs=1"],
    "resnet18": [
        'task={name="cifar10", network={name="resnet18", width=64}, subset=96, test_subset=32}',
        "local.epochs=1",
        "request.min_forget=8",
        'partition={kind="iid"}',
    ],
}
"""Few images for the large model: it is the runtime that is measured, not the training."""
ROUND = """\
import time
from pathlib import Path

from letheon.experiment import Experiment
from letheon.federation.experiment import client
from letheon.files import write_json
from letheon.runtimes.flower import Flower, server_app
from letheon.runtimes.terms import Terms


def main(grid, context):
    from bench_flower import rounds

    experiment = Experiment.load(Path(context.run_config["experiment"]))
    over = Flower(grid, list(experiment.populate().clients), terms=Terms(deadline_s=600, gather_s=600))
    write_json(Path(OUT), rounds(experiment, over, ROUNDS))


server = server_app(main)

__all__ = ["client", "server"]
"""
FLOOR = """\
import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.train()
def back(message, context):
    return Message(message.content, reply_to=message)


@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 3:
        time.sleep(0.5)
    arrays, times = ArrayRecord([np.zeros(NUMBERS, np.float32)]), []
    for number in range(ROUNDS + 1):
        content = RecordDict({"arrays": arrays})
        sent = [Message(content, dst_node_id=node, message_type="train", group_id=str(number)) for node in nodes]
        waiting = set(grid.push_messages(sent))
        while waiting:
            waiting -= {reply.metadata.reply_to_message_id for reply in grid.pull_messages(waiting)}
            time.sleep(0.1)
        times.append(time.monotonic())
    Path(OUT).write_text(json.dumps([b - a for a, b in zip(times, times[1:])]))
"""


def rounds(experiment: Experiment, over: Federation, count: int) -> list[float]:
    """Seconds of ``count`` rounds of federated averaging, the first of all left out: it waits for the nodes."""
    times: list[float] = []
    phases = [Phase("train", fedavg(experiment.local, "all"), count + 1)]
    observers = [lambda phase, done, state: times.append(time.monotonic())]
    drive(phases, Quorum(over), experiment.task.init(experiment.seed), seed=experiment.seed, observers=observers)
    return [after - before for before, after in pairwise(times)]


def measured(settings: Sequence[str], count: int, place: Path) -> dict[str, list[float]]:
    """Seconds a round: in this process, over Flower, and of Flower alone."""
    experiment = Experiment.load(FILE, settings)
    app, names, _ = local.prepared(experiment, place / "run")
    clients = [Client(name, data, experiment.task) for name, data in sorted(experiment.populate().clients.items())]
    found = {"in process": rounds(experiment, InProcess(clients), count)}
    numbers = tree.count(experiment.task.init(0).params)
    with links.linked(place / "run/flower") as link:
        links.start_nodes(link, names, security="open")
        for name, text in {"flower": ROUND, "floor": FLOOR}.items():
            out = place / f"{name}.json"
            filled = text.replace("OUT", repr(str(out))).replace("ROUNDS", str(count)).replace("NUMBERS", str(numbers))
            (app / "experiment/apps.py").write_text(filled)
            with link.run(app) as lines:
                said = list(lines)
            if not out.is_file():
                raise SystemExit(f"{name}: the run ended early: {''.join(said[-20:])}")
            found[name] = json.loads(out.read_text())
    return found


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(given)
    paths = [str(FILE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # the ServerApp, a process of its own, imports ``rounds``
    told: dict[str, Any] = {}
    for model in asked.models:
        with TemporaryDirectory() as folder:
            seconds = measured(MODELS[model], asked.rounds, Path(folder))
        told[model] = {"seconds": seconds, "median": {name: statistics.median(row) for name, row in seconds.items()}}
        print(json.dumps({model: told[model]["median"]}), flush=True)
    text = json.dumps(told, indent=1)
    print(text)
    if asked.out:
        write(asked.out, f"{text}\n".encode())


if __name__ == "__main__":
    main()
