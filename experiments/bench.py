"""What a round of FedAvg costs: ours with one and two workers against a bare PyTorch loop over the same batches.

LeNet-5, 60,000 samples, 50 clients of unequal size, batch 32, one local epoch (random pixels: speed does not depend on
what they show). All variants run in turn in one process, in reversed order every other repetition, and are compared
within a repetition, because the machine may be shared. Prints seconds and ratios; ``--json FILE`` keeps them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from letheon import tree
from letheon.client import Client
from letheon.data import Data
from letheon.methods.base import fedavg
from letheon.phase import Seeded, State, seed_of
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.partition import Partition
from letheon.tasks.vision import MNIST
from letheon.training import Local, batches


class RandomPixels(MNIST):
    """MNIST's shape without its files."""

    def train(self) -> Data:
        raise NotImplementedError("the benchmark makes its own data")

    def test(self) -> Data:
        return Data(torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))


def clients(task: RandomPixels, samples: int, number: int) -> list[Client]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 1, 28, 28, generator=generator)
    targets = torch.randint(0, 10, (samples,), generator=generator)
    shares = Partition(kind="dirichlet", alpha=0.1).split(targets, number, classes=10, seed=0)
    ids = torch.arange(samples)
    return [Client(f"c{k:03d}", Data(inputs[i], targets[i], ids[i]), task) for k, i in enumerate(shares)]


def bare_round(task: RandomPixels, federation: list[Client], start: State, local: Local, place: str) -> None:
    """What one would write by hand: one model, torch.optim, a loop over clients and batches, a running mean."""
    model = task.model()
    mean = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    total = sum(len(client.data) for client in federation)
    for client in federation:
        model.load_state_dict(start.params)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=local.lr, momentum=local.momentum)
        seed = seed_of(f"{seed_of(place)}|{client.name}")
        for index in batches(len(client.data), local, torch.Generator().manual_seed(seed)):
            optimizer.zero_grad()
            F.cross_entropy(model(client.data.inputs[index]), client.data.targets[index]).backward()
            optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                mean[name] += (p - start.params[name]) * (len(client.data) / total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    task, local = RandomPixels(), Local()
    federation = clients(task, chosen.samples, chosen.clients)
    start = task.init(0)
    runtimes = {workers: InProcess(federation, workers=workers) for workers in (1, 2)}
    step = fedavg(local, "all")

    def ours(workers: int) -> None:
        step(Seeded(runtimes[workers], seed=0, phase="train", round=0), start, 0)

    variants: dict[str, Callable[[], None]] = {
        "bare loop": lambda: bare_round(task, federation, start, local, "0|train|0|0"),
        "one worker": lambda: ours(1),
        "two workers": lambda: ours(2),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for name in variants:  # warm up
        variants[name]()
    for repetition in range(chosen.repetitions):
        names = list(variants) if repetition % 2 == 0 else list(variants)[::-1]
        for name in names:
            began = time.perf_counter()
            variants[name]()
            seconds[name].append(time.perf_counter() - began)
    report(seconds, chosen.json, chosen.samples, chosen.clients)


def report(seconds: dict[str, list[float]], path: Path | None, samples: int, number: int) -> None:
    ratios = {
        "one worker / bare loop": [a / b for a, b in zip(seconds["one worker"], seconds["bare loop"], strict=True)],
        "two workers / one worker": [a / b for a, b in zip(seconds["two workers"], seconds["one worker"], strict=True)],
    }
    print(f"one FedAvg round, LeNet-5 ({tree.count(RandomPixels().init(0).params):,} parameters), "
          f"{samples:,} samples, {number} clients; min / median / max of {len(seconds['bare loop'])}")
    for name, values in seconds.items():
        print(f"  {name:<26} {min(values):6.2f} / {statistics.median(values):6.2f} / {max(values):6.2f} s")
    for name, values in ratios.items():
        print(f"  {name:<26} {min(values):6.2f} / {statistics.median(values):6.2f} / {max(values):6.2f}")
    if path:
        facts = {"torch": torch.__version__, "python": platform.python_version(), "seconds": seconds, "ratios": ratios}
        path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
