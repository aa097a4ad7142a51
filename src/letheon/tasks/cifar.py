"""CIFAR-10: 60,000 colour images of 32×32 in 10 classes."""

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

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of the training pixels of each channel, scaled to [0, 1]."""

_SOURCE = Source("cifar10", (32, 32, 3), 10, "uoft-cs/cifar10", column="img")


@dataclass(frozen=True)
class CIFAR10(Task):
    """CIFAR-10, 50,000 and 10,000 images.

    Looked for in ``cifar10/`` under the directory that ``LETHEON_DATA`` names (an npz archive, parquet files, or
    folders of images; see ``Source.where``), then on the hub through the package ``datasets``.

    Attributes:
        network: ``resnet18`` or ``hsvit``, with its size.
        subset: train on the first so many images of one fixed permutation, so that smaller subsets are prefixes of
            larger ones. ``None`` means all images, in their original order.
        test_subset: the same for the test images. Models are scored after every round: with a small network that can
            take longer than the training.
    """

    name: ClassVar[str] = "cifar10"
    head: ClassVar[str] = "head"
    classes: ClassVar[int] = 10
    bright: ClassVar[tuple[float, ...]] = tuple((1 - mean) / std for mean, std in zip(MEAN, STD, strict=True))

    network: ResNet18Shape | HSViTShape = ResNet18Shape()
    subset: int | None = None
    test_subset: int | None = None

    def __post_init__(self) -> None:
        images.check_subset(self.name, self.subset)
        images.check_subset(self.name, self.test_subset, "test_subset")

    def train(self) -> Data:
        """Inputs ``(n, 3, 32, 32)``, standardised by channel."""
        return self._train_images().standardised(MEAN, STD, first_id=0)

    def test(self) -> Data:
        """The test images."""
        test = images.first(images.load(_SOURCE, images.root())[1], self.test_subset, self.name, "test_subset")
        return test.standardised(MEAN, STD, first_id=len(self._train_images().labels))

    def model(self) -> nn.Module:
        """The network, with 10 outputs."""
        return self.network.build(self.classes, 32)

    def _train_images(self) -> Images:
        return images.first(images.load(_SOURCE, images.root())[0], self.subset, self.name)
