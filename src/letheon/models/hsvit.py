"""HSViT: convolutions whose feature maps are the tokens of small stacks of attention (Xu et al., arXiv 2404.05196)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from letheon.errors import ConfigError

DIM, HEADS = 64, 8
"""Length of a token, which is a feature map of 8×8, and the number of attention heads."""

_STRIDES = {64: (2, 2, 2, 1), 32: (2, 1, 2, 1)}
"""Side of an image to the strides of the four poolings, which leave maps of 8×8."""


@dataclass(frozen=True)
class HSViTShape:
    """What an experiment may choose of an HSViT. The defaults are the published network.

    Attributes:
        channels: of the first block of convolutions; the others have 2, 4 and 4 times as many, so that there are
            4·``channels`` tokens.
        depth: attention blocks of a group.
        groups: stacks of attention blocks, which share the tokens out evenly.
        dropout: of the tokens and of the attention weights. 0 makes the model deterministic, and faster: its clients
            then run in threads instead of forked processes.
    """

    name: ClassVar[str] = "hsvit"

    channels: int = 128
    depth: int = 8
    groups: int = 16
    dropout: float = 0.2

    def __post_init__(self) -> None:
        for field in ("channels", "depth", "groups"):
            if getattr(self, field) < 1:
                raise ConfigError(f"hsvit: {field} must be at least 1, got {getattr(self, field)}")
        if 4 * self.channels % self.groups:
            raise ConfigError(
                f"hsvit: {self.groups} groups cannot share {4 * self.channels} tokens out evenly; "
                "groups must divide 4 x channels"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"hsvit: dropout must lie in [0, 1), got {self.dropout}")

    def build(self, classes: int, side: int) -> HSViT:
        """A new module for images of ``side``×``side``, 64 or 32."""
        return HSViT(self, classes, side)


class HSViT(nn.Module):
    """Four blocks of convolutions, a projection of each feature map to a token, attention in groups of tokens.

    The penultimate feature, the input of ``head``, is the normalised mean of the groups' class tokens, a vector of 64.
    """

    def __init__(self, shape: HSViTShape, classes: int, side: int) -> None:
        super().__init__()
        if side not in _STRIDES:
            raise ConfigError(f"hsvit: needs images of 64x64 or 32x32, got {side}x{side}; choose another network")
        outs = [factor * shape.channels for factor in (1, 2, 4, 4)]
        blocks = zip([3, *outs[:-1]], outs, _STRIDES[side], strict=True)
        self.blocks = nn.Sequential(*(_convolutions(*block) for block in blocks))
        self.project = nn.Linear(DIM, DIM)
        self.dropout = nn.Dropout(shape.dropout)
        tokens = outs[-1] // shape.groups
        self.groups = nn.ModuleList(_Group(tokens, shape.depth, shape.dropout) for _ in range(shape.groups))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """``(n, 3, side, side)`` images to ``(n, classes)`` logits."""
        tokens = self.dropout(F.relu(self.project(self.blocks(inputs).flatten(2))))
        shares = tokens.chunk(len(self.groups), 1)
        answers = [group(share) for group, share in zip(self.groups, shares, strict=True)]
        logits: Tensor = self.head(self.norm(torch.stack(answers).mean(0)))
        return logits


class _Group(nn.Module):
    """A class token before a share of the tokens, learned positions, and a stack of attention blocks of its own."""

    def __init__(self, tokens: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.answer = nn.Parameter(torch.randn(1, 1, DIM))
        self.positions = nn.Parameter(torch.randn(1, 1 + tokens, DIM))
        self.stack = nn.Sequential(*(_Attention(dropout) for _ in range(depth)))

    def forward(self, tokens: Tensor) -> Tensor:
        """``(n, tokens, 64)`` to what the class token has become, ``(n, 64)``."""
        sequence = torch.cat([self.answer.expand(len(tokens), -1, -1), tokens], 1) + self.positions
        answer: Tensor = self.stack(sequence)[:, 0]
        return answer


class _Attention(nn.Module):
    """x + MHSA(LN(x)); nothing follows, there is no perceptron."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self._dropout = dropout
        # As nn.MultiheadAttention begins. That module itself would hide its products from the count of FLOPs.
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        n, length, _ = tokens.shape
        qkv = self.qkv(self.norm(tokens)).view(n, length, 3, HEADS, DIM // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self._dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        change: Tensor = self.out(mixed.transpose(1, 2).reshape(n, length, DIM))
        return tokens + change


def _convolutions(channels: int, out: int, stride: int) -> nn.Sequential:
    """Twice convolution, BN, ReLU; then max-pooling. A ReLU after that would find nothing negative."""
    layers: list[nn.Module] = []
    for before in (channels, out):
        layers += [nn.Conv2d(before, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
    if stride > 1:
        layers.append(nn.MaxPool2d(3, stride, padding=1))
    return nn.Sequential(*layers)
