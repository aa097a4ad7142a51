"""Images from local files or from the hub, as checked arrays of bytes: what the image tasks share."""

from __future__ import annotations

import importlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from letheon.data import Data
from letheon.errors import ConfigError, DataError

KEYS = ("train_images", "train_labels", "test_images", "test_labels")
"""The arrays of an npz archive."""

_SUFFIXES = (".png", ".jpg", ".jpeg")
_BATCH = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Decoded, checked, not yet scaled: what is worth caching. Callers get fresh tensors made from it.

    Attributes:
        pixels: ``(n, h, w)`` grey or ``(n, h, w, 3)`` colour.
        labels: ``(n,)``.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def take(self, index: NDArray[Any]) -> Images:
        """The images at ``index`` (integer positions or a boolean mask)."""
        return Images(self.pixels[index], self.labels[index])

    def numbered(self, inputs: torch.Tensor, first_id: int) -> Data:
        """``inputs`` made from these images as samples with ids from ``first_id`` on."""
        ids = torch.arange(first_id, first_id + len(self.labels))
        return Data(inputs, torch.from_numpy(self.labels.copy()), ids)

    def standardised(self, mean: Sequence[float], std: Sequence[float], *, first_id: int) -> Data:
        """Inputs ``(n, c, h, w)``, scaled to [0, 1], minus the mean, by the deviation of each channel."""
        pixels = torch.from_numpy(self.pixels)
        pixels = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
        # Bytes are put in order first: a float copy of a whole data set is the largest thing there is.
        inputs = pixels.contiguous().float().div_(255.0)
        shift, scale = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
        return self.numbered(inputs.sub_(shift).div_(scale), first_id)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a task's images are looked for, and what they must look like.

    Attributes:
        task: its name, the folder under ``LETHEON_DATA``, and the name of the npz archive.
        shape: of one image, ``(h, w)`` or ``(h, w, 3)``.
        classes: labels lie in 0…classes−1.
        hub: name of the data set on the hub.
        column: what the hub calls the column of images.
        held_out: names under which the test split may go, in parquet files, folders and on the hub.
    """

    task: str
    shape: tuple[int, ...]
    classes: int
    hub: str
    column: str = "image"
    held_out: tuple[str, ...] = ("test",)

    @property
    def where(self) -> str:
        """What to put where, for messages."""
        tests = " or ".join(self.held_out)
        return (
            f"set LETHEON_DATA to a directory that holds {self.task}/{self.task}.npz (arrays {', '.join(KEYS)}), or "
            f"in {self.task}/ parquet files train*.parquet and {tests}*.parquet (columns image and label), or "
            f"folders train/CLASS and {tests}/CLASS of PNG or JPEG files; pickles are not read, they can run any code"
        )

    @property
    def mode(self) -> str:
        """Pillow's name for the kind of pixels."""
        return "RGB" if len(self.shape) == 3 else "L"

    def checked(self, pixels: NDArray[Any], labels: NDArray[Any], origin: str) -> Images:
        """The arrays as ``Images``, or a ``DataError`` that names where they are from."""
        if pixels.dtype != np.uint8 or pixels.shape[1:] != self.shape or not len(pixels):
            expected = f"uint8 of shape (n, {', '.join(map(str, self.shape))})"
            raise DataError(f"{origin}: images must be {expected}, got {pixels.dtype} {pixels.shape}")
        if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
            expected = f"integers of shape ({len(pixels)},), one for each image"
            raise DataError(f"{origin}: labels must be {expected}, got {labels.dtype} {labels.shape}")
        least, most = labels.min(), labels.max()
        if least < 0 or most >= self.classes:
            raise DataError(f"{origin}: labels must lie in 0…{self.classes - 1}, found {least}…{most}")
        # Writable, or torch would warn of every view of them.
        return Images(np.require(pixels, requirements="W"), labels.astype(np.int64))

    def decoded(self, content: bytes, origin: str) -> NDArray[np.uint8]:
        """One PNG or JPEG file as pixels; grey ones become colour where colour is wanted, and the reverse."""
        pillow = package("PIL.Image", f"task {self.task}", "pillow")
        try:
            with pillow.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                if image.size[::-1] != self.shape[:2]:
                    raise DataError(
                        f"{origin}: an image of {image.height}x{image.width}, task {self.task} needs "
                        f"{self.shape[0]}x{self.shape[1]}"
                    )
                return np.asarray(image.convert(self.mode))
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{origin}: not a readable PNG or JPEG image ({error}); copy the file again") from error


def check_subset(task: str, subset: int | None, field: str = "subset") -> None:
    """Refuse a subset of nothing."""
    if subset is not None and subset < 1:
        raise ConfigError(f"task {task}: {field} must be at least 1, got {subset}; leave it out to use all")


def first(images: Images, subset: int | None, task: str, field: str = "subset") -> Images:
    """The first ``subset`` of one fixed permutation; all of them, in their own order, if it is ``None``."""
    if subset is None:
        return images
    if subset > len(images.labels):
        kind = "training" if field == "subset" else "test"
        raise DataError(f"task {task}: {field} is {subset}, but there are {len(images.labels)} {kind} images")
    return images.take(np.random.default_rng(0).permutation(len(images.labels))[:subset])


def root() -> str | None:
    """The directory of local data, if one is named."""
    return os.environ.get("LETHEON_DATA") or None


def not_found(where: str, directory: str | None) -> str:
    """``where`` to put data, and what is wrong with the directory that is named now."""
    if directory is None:
        return where
    return f"{where}; now it is {directory}, {'without them' if Path(directory).is_dir() else 'which is no directory'}"


@lru_cache(maxsize=2)
def load(source: Source, directory: str | None) -> tuple[Images, Images]:
    """Training and test images: an npz archive, parquet files or folders of images, or else the hub.

    Raises:
        DataError: what is there cannot be used, or nothing is there and the hub gave nothing; says what to put where.
    """
    folder = Path(directory) / source.task if directory else None
    if folder is not None:
        for read in (from_npz, _from_parquet, _from_folders):
            found = read(folder, source)
            if found is not None:
                return found
    return from_hub(source, not_found(source.where, directory))


def from_npz(folder: Path, source: Source) -> tuple[Images, Images] | None:
    """The archive ``TASK.npz``, if it is there."""
    path = folder / f"{source.task}.npz"
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file) as archive:
            missing = [key for key in KEYS if key not in archive]
            if missing:
                raise DataError(f"{path}: lacks the arrays {', '.join(missing)}; it holds {', '.join(archive)}")
            arrays = [archive[key] for key in KEYS]
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: not a readable npz archive ({error}); copy the file again") from error
    return source.checked(arrays[0], arrays[1], str(path)), source.checked(arrays[2], arrays[3], str(path))


def _both(
    folder: Path, source: Source, find: Callable[[str], Sequence[Path]], what: str
) -> tuple[Sequence[Path], Sequence[Path]] | None:
    """What ``find`` gives for the training split and for the test split, under the first name that exists."""
    train = find("train")
    test = next((found for name in source.held_out if (found := find(name))), [])
    if not train and not test:
        return None
    if not train or not test:
        lacking = " or ".join(source.held_out) if train else "train"
        raise DataError(f"{folder}: incomplete, lacks {what.format(lacking)}; both splits are needed")
    return train, test


def _from_parquet(folder: Path, source: Source) -> tuple[Images, Images] | None:
    found = _both(folder, source, lambda name: sorted(folder.glob(f"{name}*.parquet")), "{}*.parquet")
    return None if found is None else (_parquet_split(found[0], source), _parquet_split(found[1], source))


def _parquet_split(paths: Sequence[Path], source: Source) -> Images:
    read = [pair for path in paths for pair in _parquet_batches(path, source)]
    if not read:
        raise DataError(f"{paths[0]}: holds no rows")
    pixels, labels = (np.concatenate(parts) for parts in zip(*read, strict=True))
    return source.checked(pixels, labels, str(paths[0]))


def _parquet_batches(path: Path, source: Source) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Images are encoded bytes, bare or, as on the hub, in a struct with the field ``bytes``."""
    parquet = package("pyarrow.parquet", f"task {source.task}: {path}", "pyarrow")
    at = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            column = next((name for name in ("image", source.column) if name in names), None)
            if column is None or "label" not in names:
                raise DataError(f"{path}: needs the columns image and label; it holds {', '.join(names)}")
            for batch in file.iter_batches(_BATCH, columns=[column, "label"]):
                cells = [cell["bytes"] if isinstance(cell, dict) else cell for cell in batch.column(column).to_pylist()]
                pixels = [source.decoded(cell or b"", f"{path}: row {at + i}") for i, cell in enumerate(cells)]
                yield np.stack(pixels), batch.column("label").to_numpy(zero_copy_only=False)
                at += len(cells)
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:  # pyarrow's own are among them
        raise DataError(f"{path}: not a readable parquet file ({error}); copy the file again") from error


def _from_folders(folder: Path, source: Source) -> tuple[Images, Images] | None:
    found = _both(folder, source, lambda name: [folder / name] if (folder / name).is_dir() else [], "the folder {}")
    if found is None:
        return None
    train, test = found[0][0], found[1][0]
    names = sorted(path.name for path in train.iterdir() if path.is_dir())
    if len(names) != source.classes:
        raise DataError(f"{train}: needs {source.classes} folders, one for each class, found {len(names)}")
    labels = {name: label for label, name in enumerate(names)}
    return _folder_split(train, labels, source), _folder_split(test, labels, source)


def _folder_split(split: Path, labels: Mapping[str, int], source: Source) -> Images:
    """All images of a split; a class is the folder under ``split``, or what an annotation file says."""
    listed = _annotated(split)
    pixels, targets = [], []
    for path in sorted(path for path in split.rglob("*") if path.suffix.lower() in _SUFFIXES):
        name = listed.get(path.name, path.relative_to(split).parts[0])
        if name not in labels:
            raise DataError(f"{path}: is of class {name!r}, which the training split does not have")
        pixels.append(source.decoded(path.read_bytes(), str(path)))
        targets.append(labels[name])
    if not pixels:
        raise DataError(f"{split}: holds no PNG or JPEG files in folders of classes")
    return source.checked(np.stack(pixels), np.array(targets), str(split))


def _annotated(split: Path) -> dict[str, str]:
    """File name to class, from ``val_annotations.txt`` as Tiny-ImageNet has it; empty without that file."""
    path = split / "val_annotations.txt"
    rows = [line.split("\t") for line in path.read_text().splitlines()] if path.is_file() else []
    if any(len(row) < 2 for row in rows):
        raise DataError(f"{path}: each line must hold a file name, a tab and a class")
    return {row[0]: row[1] for row in rows}


def from_hub(source: Source, where: str) -> tuple[Images, Images]:
    """The data set on the hub; ``where`` says what to do where there is no hub."""
    hub = package("datasets", f"task {source.task}", "datasets", otherwise=where)
    try:
        splits = hub.load_dataset(source.hub)
    except Exception as error:  # the hub's client raises several unrelated families when offline
        raise DataError(f"task {source.task}: the hub gave no {source.hub} ({error}); {where}") from error
    test = next((name for name in source.held_out if name in splits), source.held_out[0])
    return _hub_split(splits, "train", source), _hub_split(splits, test, source)


def _hub_split(splits: Mapping[str, Any], name: str, source: Source) -> Images:
    origin = f"hub data set {source.hub}, split {name}"
    if name not in splits:
        raise DataError(f"{origin}: is not there; there are {', '.join(splits)}")
    split = splits[name]
    images = (image if isinstance(image, np.ndarray) else image.convert(source.mode) for image in split[source.column])
    return source.checked(np.stack([np.asarray(image) for image in images]), np.asarray(split["label"]), origin)


def package(name: str, what: str, install: str, *, otherwise: str = "") -> ModuleType:
    """Import an optional package.

    Raises:
        DataError: it is not installed; says what needs it, and how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = f", or {otherwise}" if otherwise else ""
        raise DataError(f"{what}: needs the package {install}; run 'pip install {install}'{hint}") from error
