"""ResNet-18 for small colour images: a 3×3 stem and no max-pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from letheon.errors import ConfigError


@dataclass(frozen=True)
class ResNet18Shape:
    """What an experiment may choose of a ResNet-18.

    Attributes:
        width: channels of the first stage; the others have 2, 4 and 8 times as many. 64 is the published network,
            11,173,962 parameters for 10 classes.
    """

    name: ClassVar[str] = "resnet18"

    width: int = 64

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(f"resnet18: width must be at least 1, got {self.width}")

    def build(self, classes: int, side: int) -> ResNet18:
        """A new module; images of any ``side`` will do."""
        return ResNet18(classes, self.width)


class ResNet18(nn.Module):
    """A convolution, four stages of two basic blocks with strides 1, 2, 2, 2, global average pooling, a linear layer.

    The penultimate feature, the input of ``head``, is a vector of 8·``width``.
    """

    def __init__(self, classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        channels = width
        for out, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            blocks += [_Block(channels, out, stride), _Block(out, out, 1)]
            channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """``(n, 3, h, w)`` images to ``(n, classes)`` logits."""
        hidden = self.blocks(F.relu(self.norm(self.conv(inputs))))
        logits: Tensor = self.head(hidden.mean((2, 3)))
        return logits


class _Block(nn.Module):
    """ReLU(x' + BN(conv(ReLU(BN(conv(x)))))); x' is x, or a 1×1 convolution of it with BN where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(inputs)))
        return F.relu(self.shortcut(inputs) + self.norm2(self.conv2(hidden)))
