"""Losses that make a language model forget, and those that hold the rest: pure functions of what the model gave.

Three normalisations are in use and are not to be mixed up: the mean over the answer tokens of the whole batch (ascent,
refusals, retain terms), the sum over a text's tokens (NPO, DPO), the mean over a text's tokens (SimNPO). So a loss here
is a *sum* over texts or tokens, and says by what the sum over the whole batch is divided: a batch that is passed in
parts then gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from letheon.errors import LetheonError
from letheon.registry import did_you_mean
from letheon.text.encoding import MASKED
from letheon.work import Scalar

Per = Literal["tokens", "texts"]
Options = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a model gave for some texts, and what the reference model gave for the same.

    Attributes:
        logits: ``(n, t, v)``, of the positions that are followed by a token.
        labels: ``(n, t)`` the tokens that follow, masked ones included.
        sums: ``(n,)`` S_ref of the reference model, if the loss needs it.
        reference: ``(n, t, v)`` the reference model's logits, if the loss needs them.
        hidden: ``(n, t, d)`` the output of the block that RMU steers, if the loss needs it.
        reference_hidden: the same of the reference model.
    """

    logits: Tensor
    labels: Tensor
    sums: Tensor | None = None
    reference: Tensor | None = None
    hidden: Tensor | None = None
    reference_hidden: Tensor | None = None

    @property
    def counted(self) -> Tensor:
        """``(n, t)`` bool: the answers' tokens."""
        return self.labels != MASKED

    @property
    def losses(self) -> Tensor:
        """``(n, t)`` ℓ = −log p in nats, 0 where masked."""
        return F.cross_entropy(self.logits.transpose(1, 2), self.labels, ignore_index=MASKED, reduction="none")


def seen(logits: Tensor, targets: Tensor, **more: Tensor | None) -> Seen:
    """A model's ``(n, length, v)`` logits with the labels that belong to them."""
    return Seen(logits[:, :-1], targets[:, 1 : logits.shape[1]], **more)


def text_sums(found: Seen) -> Tensor:
    """``(n,)`` S = Σ_t ℓ_t."""
    return found.losses.sum(1)


def text_means(found: Seen) -> Tensor:
    """``(n,)`` S/T."""
    return found.losses.sum(1) / found.counted.sum(1)


@dataclass(frozen=True, slots=True)
class Loss:
    """A named loss.

    Attributes:
        total: the sum over what it was given.
        per: what the sum over a batch is divided by.
        texts: the texts it is of: those to forget, refusals of their questions, or both.
        needs: of the reference model: ``sums``, ``logits``, ``hidden``.
    """

    total: Callable[[Mapping[str, Seen], Options], Tensor]
    per: Per
    texts: tuple[str, ...]
    needs: frozenset[Literal["sums", "logits", "hidden"]] = frozenset()

    def count(self, labels: Tensor) -> int:
        """By what the total over texts with these ``(n, t)`` labels is divided."""
        return len(labels) if self.per == "texts" else int((labels[:, 1:] != MASKED).sum())


def _nll(which: str) -> Callable[[Mapping[str, Seen], Options], Tensor]:
    return lambda found, options: found[which].losses.sum()


def _ascent(found: Mapping[str, Seen], options: Options) -> Tensor:
    """GA: −ℓ; without a bound."""
    return -found["forget"].losses.sum()


def _npo(found: Mapping[str, Seen], options: Options) -> Tensor:
    """NPO (arXiv 2404.05868): (2/β)·softplus(−β(S_θ − S_ref)); β → 0 is ascent on S, up to a constant."""
    beta = float(options["beta"])
    ours = found["forget"]
    return 2 / beta * F.softplus(-beta * (text_sums(ours) - _given(ours.sums))).sum()


def _simnpo(found: Mapping[str, Seen], options: Options) -> Tensor:
    """SimNPO (arXiv 2410.07163): −(2/β)·log σ(β(S_θ/T − δ)); needs no reference model."""
    beta, margin = float(options["beta"]), float(options["margin"])
    return -2 / beta * F.logsigmoid(beta * (text_means(found["forget"]) - margin)).sum()


def _dpo(found: Mapping[str, Seen], options: Options) -> Tensor:
    """DPO with a refusal preferred: −(2/β)·log σ(β[(S_ref − S_θ)(refusal) − (S_ref − S_θ)(answer)])."""
    beta = float(options["beta"])
    gains = [_given(found[name].sums) - text_sums(found[name]) for name in ("refusal", "forget")]
    return -2 / beta * F.logsigmoid(beta * (gains[0] - gains[1])).sum()


def _wga(found: Mapping[str, Seen], options: Options) -> Tensor:
    """WGA: ascent with weights p^β, so that what is forgotten already is left alone; weights carry no gradient."""
    losses = found["forget"].losses
    weights = torch.exp(-float(options["beta"]) * losses.detach())
    return -(weights * losses).sum()


def _undial(found: Mapping[str, Seen], options: Options) -> Tensor:
    """UNDIAL: cross-entropy with the reference's distribution after its logit of the true token was lowered by β."""
    ours = found["forget"]
    counted = ours.counted
    teacher, labels = _given(ours.reference)[counted], ours.labels[counted]
    lowered = teacher.scatter_add(1, labels[:, None], teacher.new_full((len(labels), 1), -float(options["beta"])))
    return -(F.softmax(lowered, 1) * F.log_softmax(ours.logits[counted], 1)).sum()


def _kl(found: Mapping[str, Seen], options: Options) -> Tensor:
    """Σ KL(p_ref ‖ p_θ) over the answers' tokens: not over prompt and padding, which field code counts too."""
    ours = found["retain"]
    mine, theirs = (F.log_softmax(x[ours.counted], 1) for x in (ours.logits, _given(ours.reference)))
    divergence: Tensor = F.kl_div(mine, theirs, reduction="sum", log_target=True)
    return divergence


def direction(width: int, *, seed: int) -> Tensor:
    """RMU's u ``(d,)``: uniform on [0, 1) and then of length 1."""
    drawn = torch.rand(width, generator=torch.Generator().manual_seed(seed))
    unit: Tensor = drawn / torch.linalg.vector_norm(drawn)
    return unit


def _rmu(found: Mapping[str, Seen], options: Options) -> Tensor:
    """RMU: ‖h − c·u‖²/d over the answers' tokens to forget."""
    ours = found["forget"]
    hidden = _given(ours.hidden)[ours.counted]
    wanted = float(options["steer"]) * direction(hidden.shape[1], seed=int(options["direction_seed"])).to(hidden)
    return (hidden - wanted).square().sum() / hidden.shape[1]


def _stay(found: Mapping[str, Seen], options: Options) -> Tensor:
    """RMU's retain term: ‖h − h_ref‖²/d over the retained answers' tokens."""
    ours = found["retain"]
    gap = (_given(ours.hidden) - _given(ours.reference_hidden))[ours.counted]
    return gap.square().sum() / gap.shape[1]


def _given(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise LetheonError("this loss compares with a reference model, and nothing of it was given")
    return tensor


FORGET: Mapping[str, Loss] = {
    "ascent": Loss(_ascent, "tokens", ("forget",)),
    "npo": Loss(_npo, "texts", ("forget",), frozenset({"sums"})),
    "simnpo": Loss(_simnpo, "texts", ("forget",)),
    "refusal": Loss(_nll("refusal"), "tokens", ("refusal",)),
    "dpo": Loss(_dpo, "texts", ("refusal", "forget"), frozenset({"sums"})),
    "wga": Loss(_wga, "tokens", ("forget",)),
    "undial": Loss(_undial, "tokens", ("forget",), frozenset({"logits"})),
    "rmu": Loss(_rmu, "tokens", ("forget",), frozenset({"hidden"})),
}
RETAIN: Mapping[str, Loss] = {
    "nll": Loss(_nll("retain"), "tokens", ("retain",)),
    "kl": Loss(_kl, "tokens", ("retain",), frozenset({"logits"})),
    "stay": Loss(_stay, "tokens", ("retain",), frozenset({"hidden"})),
}


def named(name: str, table: Mapping[str, Loss]) -> Loss:
    """The loss of this name.

    Raises:
        LetheonError: there is none.
    """
    if name not in table:
        raise LetheonError(f"unknown loss {name!r}{did_you_mean(name, table)} Known: {', '.join(table)}")
    return table[name]
