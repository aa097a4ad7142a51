"""CIFAR-10: 60,000 colour images of 32×32 in 10 classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from letheon.models.hsvit import HSViTShape
from letheon.models.resnet import ResNet18Shape
from letheon.tasks.colour import ColourImages, brightest
from letheon.tasks.images import Source

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of the training pixels of each channel, scaled to [0, 1]."""


@dataclass(frozen=True)
class CIFAR10(ColourImages):
    """CIFAR-10, 50,000 and 10,000 images. Settings: see ``ColourImages``.

    Looked for in ``cifar10/`` under the directory that ``LETHEON_DATA`` names (an npz archive, parquet files, or
    folders of images; see ``Source.where``), then on the hub through the package ``datasets``.
    """

    name: ClassVar[str] = "cifar10"
    classes: ClassVar[int] = 10
    bright: ClassVar[tuple[float, ...]] = brightest(MEAN, STD)
    source: ClassVar[Source] = Source("cifar10", (32, 32, 3), 10, "uoft-cs/cifar10", column="img")
    mean: ClassVar[tuple[float, ...]] = MEAN
    std: ClassVar[tuple[float, ...]] = STD

    network: ResNet18Shape | HSViTShape = ResNet18Shape()
