"""Tiny-ImageNet: colour images of 64×64 in 200 classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from letheon.models.hsvit import HSViTShape
from letheon.models.resnet import ResNet18Shape
from letheon.tasks.colour import ColourImages, brightest
from letheon.tasks.images import Source

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's mean and standard deviation of each channel."""


@dataclass(frozen=True)
class TinyImageNet(ColourImages):
    """Tiny-ImageNet: what there is of its 100,000 training images. Settings: see ``ColourImages``.

    The test set is its 10,000 validation images: the labels of the published test images are not public. Looked for in
    ``tiny-imagenet/`` under the directory that ``LETHEON_DATA`` names (an npz archive, parquet files, or folders of
    images as in the published archive; see ``Source.where``), then on the hub through the package ``datasets``. Labels
    number the WordNet ids in alphabetical order.
    """

    name: ClassVar[str] = "tiny-imagenet"
    classes: ClassVar[int] = 200
    bright: ClassVar[tuple[float, ...]] = brightest(MEAN, STD)
    source: ClassVar[Source] = Source(
        "tiny-imagenet", (64, 64, 3), 200, "zh-plus/tiny-imagenet", held_out=("val", "valid")
    )
    mean: ClassVar[tuple[float, ...]] = MEAN
    std: ClassVar[tuple[float, ...]] = STD

    network: HSViTShape | ResNet18Shape = HSViTShape()
