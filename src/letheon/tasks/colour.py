"""Classification of colour images by a network that an experiment chooses: what CIFAR-10 and Tiny-ImageNet share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from letheon.data import Data
from letheon.errors import ConfigError
from letheon.models.hsvit import HSViTShape
from letheon.models.resnet import ResNet18Shape
from letheon.tasks import images
from letheon.tasks.base import Task
from letheon.tasks.images import Images, Source


def brightest(mean: Sequence[float], std: Sequence[float]) -> tuple[float, ...]:
    """The largest value of each standardised channel."""
    return tuple((1 - m) / s for m, s in zip(mean, std, strict=True))


@dataclass(frozen=True)
class ColourImages(Task):
    """A data set of square colour images. A leaf says where they are, what they are standardised by, and its network.

    Attributes:
        network: ``resnet18`` or ``hsvit``, with its size.
        subset: train on the first so many images of one fixed permutation, so that smaller subsets are prefixes of
            larger ones. ``None`` means all images, in their original order.
        test_subset: the same for the test images. Models are scored after every round: with a small network that can
            take longer than the training.
        labels: use the images of the first so many classes only, for training and test. ``None`` means all classes.

    Class attributes:
        source: of the images.
        mean, std: of the training pixels of each channel, scaled to [0, 1].
    """

    head: ClassVar[str] = "head"
    source: ClassVar[Source]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    network: ResNet18Shape | HSViTShape
    subset: int | None = None
    test_subset: int | None = None
    labels: int | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and not 2 <= self.labels <= type(self).classes:
            most = type(self).classes
            told = f"labels must lie in 2…{most}, got {self.labels}; leave it out to use all"
            raise ConfigError(f"task {self.name}: {told}")
        if self.labels is not None:
            object.__setattr__(self, "classes", self.labels)
        images.check_subset(self.name, self.subset)
        images.check_subset(self.name, self.test_subset, "test_subset")

    def train(self) -> Data:
        """Inputs ``(n, 3, side, side)``, standardised by channel."""
        return self._train_images().standardised(self.mean, self.std, first_id=0)

    def test(self) -> Data:
        """The test images."""
        test = images.first(self._some(1), self.test_subset, self.name, "test_subset")
        return test.standardised(self.mean, self.std, first_id=len(self._train_images().labels))

    def model(self) -> nn.Module:
        """The network, with an output for each class."""
        return self.network.build(self.classes, self.source.shape[0])

    def _train_images(self) -> Images:
        return images.first(self._some(0), self.subset, self.name)

    def _some(self, split: int) -> Images:
        """The training images (0) or the test images (1) of the classes that are used."""
        found = images.load(self.source, images.root())[split]
        return found if self.labels is None else found.take(found.labels < self.labels)
