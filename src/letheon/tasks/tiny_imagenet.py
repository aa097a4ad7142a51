"""Tiny-ImageNet: colour images of 64×64 in 200 classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from letheon.data import Data
from letheon.models.hsvit import HSViTShape
from letheon.models.resnet import ResNet18Shape
from letheon.tasks import images
from letheon.tasks.base import Task
from letheon.tasks.images import Images, Source

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's mean and standard deviation of each channel."""

_SOURCE = Source("tiny-imagenet", (64, 64, 3), 200, "zh-plus/tiny-imagenet", held_out=("val", "valid"))


@dataclass(frozen=True)
class TinyImageNet(Task):
    """Tiny-ImageNet: what there is of its 100,000 training images; its 10,000 validation images are the test set.

    Looked for in ``tiny-imagenet/`` under the directory that ``LETHEON_DATA`` names (an npz archive, parquet files,
    or folders of images as in the published archive; see ``Source.where``), then on the hub through the package
    ``datasets``. Labels number the WordNet ids in alphabetical order.

    Attributes:
        network: ``hsvit`` or ``resnet18``, with its size.
        subset: train on the first so many images of one fixed permutation, so that smaller subsets are prefixes of
            larger ones. ``None`` means all images, in their original order.
        test_subset: the same for the test images. Models are scored after every round: with a small network that can
            take longer than the training.
    """

    name: ClassVar[str] = "tiny-imagenet"
    head: ClassVar[str] = "head"
    classes: ClassVar[int] = 200
    bright: ClassVar[tuple[float, ...]] = tuple((1 - mean) / std for mean, std in zip(MEAN, STD, strict=True))

    network: HSViTShape | ResNet18Shape = HSViTShape()
    subset: int | None = None
    test_subset: int | None = None

    def __post_init__(self) -> None:
        images.check_subset(self.name, self.subset)
        images.check_subset(self.name, self.test_subset, "test_subset")

    def train(self) -> Data:
        """Inputs ``(n, 3, 64, 64)``, standardised by channel."""
        return self._train_images().standardised(MEAN, STD, first_id=0)

    def test(self) -> Data:
        """The validation images: the labels of the published test images are not public."""
        test = images.first(images.load(_SOURCE, images.root())[1], self.test_subset, self.name, "test_subset")
        return test.standardised(MEAN, STD, first_id=len(self._train_images().labels))

    def model(self) -> nn.Module:
        """The network, with 200 outputs."""
        return self.network.build(self.classes, 64)

    def _train_images(self) -> Images:
        return images.first(images.load(_SOURCE, images.root())[0], self.subset, self.name)
