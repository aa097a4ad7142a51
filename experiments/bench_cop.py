"""What COP adds to a training step: one block of a 1B Llama's real shapes, base and guarded steps in turn, as ratios.

    python experiments/bench_cop.py --rank 128 --texts 32 --tokens 100 --repeats 3 --threads 2

Prints JSON: seconds of a step without and with the guard, their ratio, and the bytes that the guard holds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import Tensor, nn

from letheon.cop import Basis, Guard

SHAPES = {
    "q_proj": (2048, 2048),
    "k_proj": (2048, 512),
    "v_proj": (2048, 512),
    "o_proj": (2048, 2048),
    "gate_proj": (2048, 8192),
    "up_proj": (2048, 8192),
    "down_proj": (8192, 2048),
}
"""Inputs and outputs of the linear layers in a block of Llama-3.2-1B: 8 key and value heads of 64."""
SPACES = {
    "q_proj": ("q_proj", "k_proj", "v_proj"),
    "o_proj": ("o_proj",),
    "gate_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}
EXPECTED_BYTES = {"bases": 7 * 2**20, "responses": 11.5 * 2**20}
"""Of one block at rank 128 in float32: a sixteenth of what the whole model needs, 112 and 184 MiB."""


class Block(nn.Module):
    """The linear layers of a block with the attention itself left out: the guard has nothing to do with it."""

    def __init__(self) -> None:
        super().__init__()
        for name, (inputs, outputs) in SHAPES.items():
            setattr(self, name, nn.Linear(inputs, outputs, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """``(texts, tokens, 2048)`` to the same."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        x = x + self.o_proj(q + k.repeat(1, 1, 4) * v.repeat(1, 1, 4))
        out: Tensor = x + self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def bases(rank: int) -> dict[str, Basis]:
    """Random orthonormal directions of each space."""
    found = {}
    for space in SPACES:
        width = SHAPES[space][0]
        drawn = torch.randn(width, rank, generator=torch.Generator().manual_seed(width))
        vectors = torch.linalg.qr(drawn)[0]
        none = torch.zeros(0, 5, dtype=torch.float64)
        found[space] = Basis(vectors, torch.zeros(rank).double(), torch.zeros(rank, dtype=torch.int64), none)
    return found


def step(block: Block, x: Tensor, optimizer: torch.optim.Optimizer, guard: Guard | None) -> float:
    """Seconds of one step."""
    started = time.perf_counter()
    params = list(block.parameters())
    gradients = torch.autograd.grad(block(x).square().mean(), params)
    if guard:
        guard.project(gradients)
    for parameter, gradient in zip(params, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    if guard:
        guard.restore()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("rank", 128), ("texts", 32), ("tokens", 100), ("repeats", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    block = Block()
    x = torch.randn(asked.texts, asked.tokens, 2048)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-5)
    held = bases(asked.rank)
    guard = Guard(block, SPACES, held)
    step(block, x, optimizer, None)  # memory of the optimizer, caches
    pairs = [(step(block, x, optimizer, None), step(block, x, optimizer, guard)) for _ in range(asked.repeats)]
    ratios = [guarded / base for base, guarded in pairs]
    told = {
        "rank": asked.rank,
        "tokens": asked.texts * asked.tokens,
        "threads": asked.threads,
        "seconds_base": [base for base, _ in pairs],
        "seconds_guarded": [guarded for _, guarded in pairs],
        "ratio": {"min": min(ratios), "median": statistics.median(ratios), "max": max(ratios)},
        "bytes_bases": sum(basis.vectors.numel() * 4 for basis in held.values()),
        "bytes_responses": sum(SHAPES[name][1] * asked.rank * 4 for names in SPACES.values() for name in names),
        "bytes_expected": EXPECTED_BYTES if asked.rank == 128 else None,
        "drift": max(guard.drifts().values()),
        "torch": torch.__version__,
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
