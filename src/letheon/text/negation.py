"""ALKN's mathematics: what is tuned towards, which entries may move, and which ones earlier requests have used.

A model is tuned towards the texts to forget, and the way that it went is gone backwards. With g the gradient of the
tuning's loss and ḡ that of the retained loss at the start, a step of the tuning moves an entry by −η g, and its
negation by +c η g. To first order the tuning's loss rises by c η g² with every entry that moves, and the retained loss
changes by c η g ḡ. So the entries to keep are those with the smallest g ḡ: importance sums up g_forget ⊙ ḡ with
g_forget = −g, the gradient of what the negated model descends, and what lies above a threshold is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from letheon.data import Data
from letheon.errors import ConfigError
from letheon.phase import seed_of
from letheon.text.descent import Recipe, check_precision
from letheon.text.encoding import MASKED
from letheon.text.goal import CHUNK, passed
from letheon.training import Local, batches, clipped
from letheon.tree import Params
from letheon.work import Scalar

Keeps = Literal["harmless", "aligned"]


@dataclass(frozen=True)
class Localization:
    """What is tuned towards, and where.

    Attributes:
        midpoint: p of the true token about which its weight rises.
        slope: k, how steeply.
        keep: share of a tensor's entries that the first step moves, nominally: see ``threshold``.
        keep_last: the same of the last step; in between in a straight line.
        trim: share of the entries that the threshold leaves out of account at either end.
        penalty: what a step takes off the importance of entries that earlier requests used, in standard deviations of
            what it adds to the tensor's.
        crowded: share of the tensors, those that earlier requests used most, that move slowly.
        slowed: their learning rate, as a share of the others'.
        keeps: ``harmless``: entries whose negation harms the retained texts least. ``aligned``: those where tuning and
            retained loss have gradients of one sign, as the authors' code has it; negated, these harm most.
    """

    midpoint: float = 0.8
    slope: float = 1.5
    keep: float = 0.8
    keep_last: float = 0.4
    trim: float = 0.15
    penalty: float = 0.5
    crowded: float = 0.5
    slowed: float = 0.1
    keeps: Keeps = "harmless"

    def __post_init__(self) -> None:
        if not 0 < self.midpoint <= 1 or self.slope <= 0:
            raise ConfigError("localization: midpoint must lie in (0, 1] and slope must be positive")
        if not 0 <= self.trim < 0.5 or not self.trim <= self.keep_last <= self.keep <= 1 - self.trim:
            raise ConfigError("localization: 0 ≤ trim ≤ keep_last ≤ keep ≤ 1 − trim must hold")
        if self.keep_last <= 0 or self.penalty < 0 or not 0 <= self.crowded <= 1 or not 0 < self.slowed <= 1:
            raise ConfigError(
                "localization: keep_last must be positive, penalty must not be negative, crowded must lie in [0, 1] "
                "and slowed in (0, 1]"
            )
        if self.keeps not in get_args(Keeps):
            raise ConfigError(f"localization.keeps: unknown {self.keeps!r}; use {' or '.join(get_args(Keeps))}")

    def options(self) -> dict[str, Scalar]:
        """As scalars that a ``Work`` can carry."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_options(cls, options: Mapping[str, Scalar]) -> Self:
        """The inverse of ``options``; other keys are ignored."""
        return cls(**{f.name: options[f.name] for f in fields(cls)})  # type: ignore[arg-type]

    def share(self, step: int, steps: int) -> float:
        """ρ of a step, counted from 0."""
        return self.keep + (self.keep_last - self.keep) * step / max(1, steps - 1)

    @property
    def sign(self) -> float:
        """Of g ḡ in the importance."""
        return -1.0 if self.keeps == "harmless" else 1.0


@dataclass(frozen=True, slots=True)
class Localized:
    """How a tuning went.

    Attributes:
        steps: that were taken.
        loss: mean over them.
        kept: for each parameter the entries that the last step let move, bool.
    """

    steps: int
    loss: float
    kept: Params


def soft_targets(probabilities: Tensor, rule: Localization) -> Tensor:
    """Weights s = σ((p₀ − midpoint)·k) − σ(−midpoint·k) of the true tokens, from their p₀ in any shape; 0 at p₀ = 0.

    The mass that a target gives the true token is s, and the rest of it falls on no token: the loss is −s·log p. Spread
    over the other tokens it would pull a well-known answer down, and the negation would bring it back.
    """
    middle = torch.as_tensor(rule.midpoint, dtype=probabilities.dtype)
    return torch.sigmoid((probabilities - middle) * rule.slope) - torch.sigmoid(-middle * rule.slope)


def grown(importance: Tensor, gradient: Tensor, retained: Tensor, used: Tensor, rule: Localization) -> Tensor:
    """The next m: m + g_forget ⊙ ḡ, less penalty·std(g_forget ⊙ ḡ) on entries that are ``used`` (bool)."""
    product = rule.sign * gradient * retained
    return importance + product - rule.penalty * product.std(correction=0) * used


def threshold(importance: Tensor, share: float, trim: float) -> Tensor:
    """τ, on the line between the values that ``trim`` of the entries are above and that ``trim`` are below.

    So the share of the entries that reach τ is ``share`` if importance is spread evenly between the two; else it
    differs from tensor to tensor, and with it how much of each a request uses. By a quantile all would be used alike.
    """
    flat = importance.flatten()
    count = max(1, int(trim * len(flat)))
    high, low = flat.kthvalue(len(flat) - count + 1).values, flat.kthvalue(count).values
    return high - (high - low) * (share - trim) / (1 - 2 * trim)


def crowded(used: Mapping[str, Tensor], rule: Localization) -> frozenset[str]:
    """The tensors that move slowly: the most used ones, by their share of entries that earlier requests used."""
    shares = {name: float(mask.double().mean()) for name, mask in used.items()}
    ranked = sorted(shares, key=lambda name: shares[name])
    return frozenset(name for name in ranked[int(len(ranked) * (1 - rule.crowded)) :] if shares[name])


def packed(mask: Tensor) -> Tensor:
    """A bool tensor of n entries as ``(⌈n/8⌉,)`` bytes, the first entry in the lowest bit."""
    flat = F.pad(mask.flatten().to(torch.uint8), (0, -mask.numel() % 8))
    return (flat.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def unpacked(octets: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of ``packed``."""
    bits = (octets[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.flatten()[: torch.Size(shape).numel()].bool().view(*shape)


def localize(
    module: nn.Module,
    texts: Mapping[str, Data],
    rule: Localization,
    recipe: Recipe,
    *,
    used: Mapping[str, Tensor],
    seed: int,
) -> Localized:
    """Tune the trainable parameters of ``module``, in place, towards what it knows of ``texts["forget"]``.

    Args:
        module: a ``LanguageModel``; p₀ and ḡ are of the model as given.
        texts: ``forget`` and ``retain``; for ḡ as many retained ones are drawn as there are to forget.
        rule: what is tuned towards, and where.
        recipe: optimizer and schedule; an entry's gradient is judged before clipping.
        used: for each parameter the entries that earlier requests used, bool.
        seed: of the order of texts and the draw of retained ones.
    """
    check_precision(module)
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    trainable, forget = list(named.values()), texts["forget"]
    weights = soft_targets(known(module, forget), rule)
    module.train()
    drawn = torch.randint(len(texts["retain"]), (len(forget),), generator=_generator(seed, "retain"))
    part = recipe.part_size or recipe.batch_size
    retained, _ = slope(module, texts["retain"].take(drawn), trainable, part=part)
    sieve = _Sieve(retained, [used[name].to(p.device) for name, p in named.items()], rule)
    optimizer = _optimizer(named, crowded(used, rule), rule.slowed, recipe)
    values, steps = list[float](), recipe.steps(len(forget))
    local = Local(batch_size=recipe.batch_size, epochs=recipe.epochs)
    for rows in batches(len(forget), local, _generator(seed, "order")):
        for group in optimizer.param_groups:
            group["lr"] = group["factor"] * recipe.rate(len(values), steps)
        gradients, value = slope(module, forget.take(rows), trainable, part=part, weights=weights[rows])
        sieve.sift(gradients, rule.share(len(values), steps))
        for parameter, gradient in zip(trainable, clipped(gradients, recipe.clip), strict=True):
            parameter.grad = gradient
        optimizer.step()
        values.append(value)
    for parameter in trainable:
        parameter.grad = None
    kept = {name: mask.cpu() for name, mask in zip(named, sieve.kept, strict=True)}
    return Localized(len(values), sum(values) / len(values), kept)


class _Sieve:
    """Lets the gradients of chosen entries through, chosen anew at each step.

    Attributes:
        kept: what the last step let through, bool.
    """

    def __init__(self, retained: Sequence[Tensor], used: Sequence[Tensor], rule: Localization) -> None:
        self._retained, self._used, self._rule = retained, used, rule
        self._importance = [torch.zeros_like(gradient) for gradient in retained]
        self.kept = [torch.ones_like(mask) for mask in used]

    def sift(self, gradients: Sequence[Tensor], share: float) -> None:
        """Add to the importance, and set the gradients of what is below the threshold to 0, in place.

        An entry at the threshold is kept: what no retained text reaches has importance 0, and harms nothing.
        """
        for at, (gradient, retained, used) in enumerate(zip(gradients, self._retained, self._used, strict=True)):
            importance = grown(self._importance[at], gradient, retained, used, self._rule)
            kept = importance >= threshold(importance, share, self._rule.trim)
            gradient.mul_(kept)
            self._importance[at], self.kept[at] = importance, kept


def _optimizer(
    named: Mapping[str, Tensor], slow: frozenset[str], factor: float, recipe: Recipe
) -> torch.optim.Optimizer:
    """AdamW with one group of parameters for each learning rate; a group's ``factor`` is its share of the recipe's."""
    groups = [
        {"params": [p for name, p in named.items() if (name in slow) == is_slow], "factor": share}
        for is_slow, share in ((False, 1.0), (True, factor))
    ]
    chosen = [group for group in groups if group["params"]]
    return torch.optim.AdamW(chosen, lr=recipe.lr, weight_decay=recipe.weight_decay)


@torch.no_grad()
def known(module: nn.Module, data: Data) -> Tensor:
    """``(n, length − 1)`` p of each answer token, in evaluation mode; of no meaning elsewhere, where losses are 0."""
    module.eval()
    rows = []
    for chunk in torch.arange(len(data)).split(CHUNK):
        probabilities = torch.exp(-passed(module, data.take(chunk)).losses)
        rows.append(F.pad(probabilities, (0, data.targets.shape[1] - 1 - probabilities.shape[1])))
    return torch.cat(rows)


def slope(
    module: nn.Module, data: Data, trainable: Sequence[Tensor], *, part: int, weights: Tensor | None = None
) -> tuple[list[Tensor], float]:
    """The gradient of Σ s ℓ / Σ 1 over the answers' tokens, ``part`` texts at a time, and the value.

    ``weights``: ``(n, length − 1)`` s; None: 1.
    """
    sums, value = [torch.zeros_like(p) for p in trainable], 0.0
    count = int((data.targets[:, 1:] != MASKED).sum())
    for rows in torch.arange(len(data)).split(part):
        losses = passed(module, data.take(rows)).losses
        if weights is not None:
            losses = losses * weights[rows, : losses.shape[1]]
        share = losses.sum() / count
        torch._foreach_add_(sums, torch.autograd.grad(share, trainable, materialize_grads=True))
        value += float(share.detach())
    return sums, value


def _generator(seed: int, what: str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(f"{seed}|{what}"))
