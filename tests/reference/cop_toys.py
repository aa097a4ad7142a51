"""Small models and a training loop for COP, and what its tests measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from letheon.cop import Adapters, Basis, Batch, Guard, Selection, find_spaces, freeze, protect

VOCABULARY, WIDTH, INNER = 13, 24, 32
CLIP = 0.01
"""Below the norm of every gradient here: what is held leaves little of it."""
ALL = Selection(energy=1.0, rank=INNER, rank_total=INNER)
"""Everything there is: then the guarantee is exact for the whole network."""
Way = Literal["full", "lora"]
Rule = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


def sgd(params: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.2, momentum=0.9, weight_decay=0.01)


def adamw(params: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.03, weight_decay=0.1)


class Block(nn.Module):
    """Attention, if wanted, and a gated MLP, each behind a norm."""

    def __init__(self, attends: bool) -> None:
        super().__init__()
        self.attends = attends
        self.norm, self.post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.attends:
            h = self.norm(x)
            scores = self.q(h) @ self.k(h).mT / WIDTH**0.5
            seen = torch.ones_like(scores).tril().bool() & (mask[:, None] > 0)
            # A padded row sees nothing: its NaN stays in rows of weight 0.
            x = x + self.o(scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num() @ self.v(h))
        h = self.post(x)
        mixed: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return mixed


class Toy(nn.Module):
    """A language model of two blocks."""

    def __init__(self, *, tied: bool = False, attends: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(attends) for _ in range(2))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(ids) if mask is None else mask
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, mask)
        logits: Tensor = self.head(self.last(x))
        return logits


def toy(*, dtype: torch.dtype = torch.float64, seed: int = 0, tied: bool = False, attends: bool = True) -> Toy:
    """The same bits every time, whatever the global generator is at."""
    model = Toy(tied=tied, attends=attends)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model.to(dtype)


def ids(seed: int, rows: int = 2, length: int = 4) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(100 + seed))


def ascent(model: nn.Module, texts: Tensor) -> Tensor:
    """Gradient ascent on the next tokens' loss: it does not level off, so every request moves the weights."""
    logits = model(texts)
    return -F.cross_entropy(logits[:, :-1].flatten(0, 1), texts[:, 1:].flatten())


def train(
    model: nn.Module, texts: Tensor, rule: Rule, *, guard: Guard | None, steps: int = 5, project: bool = True
) -> None:
    """Accumulates two micro-batches, projects, clips, steps, restores. Without a guard: the base objective."""
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = rule(params)
    for _ in range(steps):
        optimizer.zero_grad()
        for part in texts.chunk(2):
            (ascent(model, part) / 2).backward()
        if guard is not None and project:
            guard.project([p.grad for p in guard.trainable])
        norm = torch.nn.utils.clip_grad_norm_(params, CLIP)
        assert len(texts.chunk(2)) == 2  # otherwise nothing is shown about accumulation
        assert float(norm) > CLIP  # nor about clipping
        optimizer.step()
        if guard is not None:
            guard.restore()


def opened(model: nn.Module, spaces: dict[str, tuple[str, ...]], way: Way) -> Adapters | None:
    """Ready to train: everything frozen but the weights of the spaces, or fresh adapters on them."""
    if way == "full":
        freeze(model, spaces)
        return None
    adapters = Adapters(model, [name for names in spaces.values() for name in names], rank=3, seed=5)
    freeze(model, spaces, adapters=adapters.pairs)
    return adapters


def request(
    model: nn.Module, texts: Tensor, bases: dict[str, Basis], *, number: int, way: Way = "full", rule: Rule = adamw
) -> dict[str, Basis]:
    """One request, from the guard to the bases after it."""
    spaces = find_spaces(model, Batch(texts))
    adapters = opened(model, spaces, way)
    guard = Guard(model, spaces, bases, adapters=adapters.pairs if adapters else None)
    train(model, texts, rule, guard=guard)
    if adapters:
        adapters.merge()
    return protect(model, [Batch(texts)], spaces, bases, request=number, selection=ALL)


def weights(model: nn.Module, spaces: dict[str, tuple[str, ...]]) -> dict[str, Tensor]:
    """Copies of the held weights as matrices, by layer."""
    return {n: model.get_parameter(f"{n}.weight").detach().clone().flatten(1) for ns in spaces.values() for n in ns}


def leaks(
    before: dict[str, Tensor], after: dict[str, Tensor], spaces: dict[str, tuple[str, ...]], bases: dict[str, Basis]
) -> list[float]:
    """‖(W − W₀) V‖ / ‖W₀ V‖ of each layer."""
    return [
        float(((after[n] - before[n]) @ bases[space].vectors).norm() / (before[n] @ bases[space].vectors).norm())
        for space, names in spaces.items()
        for n in names
    ]


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """The largest ‖W − W₀‖ / ‖W₀‖ over the layers."""
    return max(float((after[n] - before[n]).norm() / before[n].norm()) for n in before)


def apart(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    return float((a.detach() - b.detach()).norm() / b.detach().norm())


def projectors(bases: dict[str, Basis]) -> dict[str, Tensor]:
    return {space: basis.vectors @ basis.vectors.mT for space, basis in bases.items()}
