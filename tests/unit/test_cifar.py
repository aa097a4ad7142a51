"""CIFAR-10, and the files in which colour images may lie."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from letheon import config
from letheon.data import Data
from letheon.errors import ConfigError, DataError
from letheon.models.hsvit import HSViTShape
from letheon.models.resnet import ResNet18Shape
from letheon.tasks.base import Task
from letheon.tasks.cifar import CIFAR10, MEAN, STD
from letheon.tasks.partition import Partition
from letheon.tasks.population import populate
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger

Write = Callable[..., None]


def arrays() -> dict[str, NDArray[Any]]:
    """A made-up data set: 40 training and 20 test images, sorted by label."""
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8),
        "train_labels": np.repeat(np.arange(10), 4),
        "test_images": rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8),
        "test_labels": np.repeat(np.arange(10), 2),
    }


def png(pixels: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_npz(folder: Path, **changed: NDArray[Any]) -> None:
    np.savez(folder / "cifar10.npz", **(arrays() | changed))


def write_parquet(folder: Path, *, column: str = "image", wrapped: bool = False, **changed: list[Any]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for split in ("train", "test"):
        cells: list[Any] = changed.get(f"{split}_images", [png(image) for image in arrays()[f"{split}_images"]])
        labels = changed.get(f"{split}_labels", arrays()[f"{split}_labels"].tolist())
        table = {column: [{"bytes": cell, "path": None} for cell in cells] if wrapped else cells, "label": labels}
        half = len(labels) // 2
        for part, rows in enumerate((slice(half), slice(half, None))):  # a split may lie in several files
            piece = pyarrow.table({name: values[rows] for name, values in table.items()})
            parquet.write_table(piece, folder / f"{split}-{part}.parquet")


def write_hub_parquet(folder: Path) -> None:
    write_parquet(folder, column="img", wrapped=True)


def write_folders(folder: Path) -> None:
    for split in ("train", "test"):
        images, labels = arrays()[f"{split}_images"], arrays()[f"{split}_labels"]
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = folder / split / f"{label}-name" / f"{i:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(image))


def assert_same(a: Data, b: Data) -> None:
    for left, right in ((a.inputs, b.inputs), (a.targets, b.targets), (a.ids, b.ids)):
        assert torch.equal(left, right)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``cifar10`` folder that the task looks into; there is no hub."""
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "cifar10").mkdir()
    return tmp_path / "cifar10"


@pytest.mark.parametrize("write", [write_npz, write_parquet, write_hub_parquet, write_folders])
def test_every_format_gives_the_pixels_standardised_by_channel(folder: Path, write: Write) -> None:
    write(folder)
    for data, split in ((CIFAR10().train(), "train"), (CIFAR10().test(), "test")):
        pixels = torch.from_numpy(arrays()[f"{split}_images"]).permute(0, 3, 1, 2) / 255
        expected = torch.stack([(pixels[:, c] - MEAN[c]) / STD[c] for c in range(3)], 1)
        torch.testing.assert_close(data.inputs, expected)
        assert data.inputs.is_contiguous()
        assert data.targets.tolist() == arrays()[f"{split}_labels"].tolist()
    assert CIFAR10().test().ids.tolist() == list(range(40, 60))


def test_the_brightest_value_is_that_of_a_white_pixel_and_is_painted_by_channel(folder: Path) -> None:
    images = arrays()["train_images"]
    images[0] = 255
    write_npz(folder, train_images=images)
    white = CIFAR10().train().inputs[0]
    assert white.flatten(1).amax(1).tolist() == pytest.approx(CIFAR10.bright, abs=1e-6)
    assert len(set(CIFAR10.bright)) == 3
    painted = Trigger().paint(CIFAR10().train().inputs, CIFAR10.bright)[:, :, -5:-1, -5:-1]
    torch.testing.assert_close(painted, white[:, -5:-1, -5:-1].expand_as(painted))


def test_a_client_and_the_test_images_get_the_trigger(folder: Path) -> None:
    write_npz(folder)
    target = Target(client="c001", min_forget=1, trigger=Trigger(target=3))
    population = populate(CIFAR10(), Partition("iid", min_size=1), target, clients=4, seed=0)
    assert population.triggered_test is not None
    assert len(population.triggered_test) == 18
    for data in (population.clients["c001"], population.triggered_test):
        assert set(data.targets.tolist()) == {3}
        assert torch.equal(data.inputs[:, :, -2, -2], torch.tensor(CIFAR10.bright).expand(len(data), 3))


def test_smaller_subsets_are_prefixes_of_larger_ones(folder: Path) -> None:
    write_npz(folder)
    small, large = CIFAR10(subset=10, test_subset=5), CIFAR10(subset=25, test_subset=20)
    assert_same(small.train(), large.train().take(torch.arange(10)))
    assert small.test().ids.tolist() == list(range(10, 15))
    assert torch.equal(small.test().inputs, large.test().inputs[:5])
    with pytest.raises(DataError, match="subset is 41, but there are 40 training images"):
        CIFAR10(subset=41).train()
    with pytest.raises(DataError, match="test_subset is 21, but there are 20 test images"):
        CIFAR10(test_subset=21).test()


def test_a_file_is_decoded_once_and_no_caller_can_spoil_it(folder: Path) -> None:
    write_npz(folder)
    CIFAR10().train().inputs.zero_()
    (folder / "cifar10.npz").unlink()
    assert float(CIFAR10().train().inputs.abs().max()) > 1.0


def test_grey_images_become_colour(folder: Path) -> None:
    grey = arrays()["train_images"][0, :, :, 0]
    write_parquet(folder, train_images=[png(grey)] * 40)
    inputs = CIFAR10().train().inputs[0]
    pixels = [inputs[c] * STD[c] + MEAN[c] for c in range(3)]
    torch.testing.assert_close(pixels[0], torch.from_numpy(grey) / 255)
    torch.testing.assert_close(pixels[2], pixels[0])


def test_pickled_batches_are_never_opened(folder: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("a pickle was opened",))

    for name in ("data_batch_1", "test_batch", "cifar10.pkl"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match=r"pip install datasets.*LETHEON_DATA.*train\*\.parquet.*pickles are not read"):
        CIFAR10().train()
    np.savez(folder / "cifar10.npz", **(arrays() | {"train_images": np.array([Bomb()], dtype=object)}))
    with pytest.raises(DataError, match=r"cifar10\.npz: not a readable npz archive"):
        CIFAR10().train()


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"train_images": np.zeros((40, 3, 32, 32), np.uint8)}, r"shape \(n, 32, 32, 3\), got uint8 \(40, 3, 32, 32\)"),
        ({"train_images": np.zeros((40, 32, 32), np.uint8)}, r"\(40, 32, 32\)"),
        ({"test_images": np.zeros((20, 32, 32, 3), np.float32)}, "float32"),
        ({"test_labels": np.full(20, 10)}, "labels must lie in 0…9, found 10…10"),
        ({"train_labels": np.zeros(39, np.uint8)}, r"\(39,\)"),
    ],
)
def test_malformed_arrays_are_refused_by_file_name(folder: Path, changed: dict[str, NDArray[Any]], word: str) -> None:
    write_npz(folder, **changed)
    with pytest.raises(DataError, match=rf"cifar10\.npz: .*{word}"):
        CIFAR10().train()


def test_a_bad_image_in_a_parquet_file_is_refused_by_file_and_row(folder: Path) -> None:
    good = [png(image) for image in arrays()["train_images"]]
    large = png(np.zeros((32, 33, 3), np.uint8))
    gif = io.BytesIO()
    Image.fromarray(arrays()["train_images"][0]).save(gif, "GIF")
    for bad, word in (
        (large, "an image of 32x33, task cifar10 needs 32x32"),
        (good[0][:100], "not a readable PNG or JPEG"),
        (gif.getvalue(), "not a readable PNG or JPEG"),
        (None, "not a readable PNG or JPEG"),
    ):
        write_parquet(folder, train_images=[*good[:23], bad, *good[24:]])
        with pytest.raises(DataError, match=rf"train-1\.parquet: row 3: {word}"):
            CIFAR10().train()


def test_parquet_files_that_are_broken_or_lack_a_column_are_refused(folder: Path) -> None:
    write_parquet(folder)
    whole = (folder / "train-1.parquet").read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:200] + bytes(300) + whole[500:]):
        (folder / "train-1.parquet").write_bytes(content)
        with pytest.raises(DataError, match=r"train-1\.parquet"):
            CIFAR10().train()
    write_parquet(folder, column="picture")
    with pytest.raises(DataError, match=r"needs the columns image and label; it holds picture, label"):
        CIFAR10().train()
    write_parquet(folder, train_labels=[None] * 40)
    with pytest.raises(DataError, match="labels must be integers"):
        CIFAR10().train()


def test_one_split_alone_is_incomplete(folder: Path) -> None:
    write_parquet(folder)
    for path in folder.glob("test*"):
        path.unlink()
    with pytest.raises(DataError, match=r"incomplete, lacks test\*\.parquet"):
        CIFAR10().train()


def test_folders_of_images_need_the_same_ten_classes_in_both_splits(folder: Path) -> None:
    write_folders(folder)
    (folder / "test" / "0-name").rename(folder / "test" / "zebra")
    with pytest.raises(DataError, match=r"zebra.*of class 'zebra', which the training split does not have"):
        CIFAR10().train()
    (folder / "train" / "eleventh").mkdir()
    with pytest.raises(DataError, match="needs 10 folders, one for each class, found 11"):
        CIFAR10().train()


def test_images_from_the_hub_become_the_same_data_as_local_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_dataset(name: str) -> dict[str, dict[str, list[Any]]]:
        assert name == "uoft-cs/cifar10"
        return {
            split: {
                "img": [Image.fromarray(image) for image in arrays()[f"{split}_images"]],
                "label": arrays()[f"{split}_labels"].tolist(),
            }
            for split in ("train", "test")
        }

    hub = ModuleType("datasets")
    monkeypatch.setattr(hub, "load_dataset", load_dataset, raising=False)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    from_hub = CIFAR10().train()
    (tmp_path / "other" / "cifar10").mkdir(parents=True)
    write_npz(tmp_path / "other" / "cifar10")
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path / "other"))
    assert_same(from_hub, CIFAR10().train())


def test_the_network_is_a_value_of_the_configuration() -> None:
    def built(**network: Any) -> Task:
        return config.build(Task, {"name": "cifar10", "network": network}, "test")  # type: ignore[type-abstract]

    assert built(name="resnet18", width=8) == built(width=8) == CIFAR10(network=ResNet18Shape(8))
    small = CIFAR10(network=HSViTShape(8, 2, 4))
    assert built(name="hsvit", channels=8, depth=2, groups=4) == small
    assert config.build(Task, config.plain(small), "test") == small  # type: ignore[type-abstract]
    with pytest.raises(ConfigError, match=r"network\.width: unknown key"):
        built(name="hsvit", width=8)
    for field in ("subset", "test_subset"):
        with pytest.raises(ConfigError, match=f"task cifar10: {field} must be at least 1, got 0"):
            CIFAR10(**{field: 0})


def test_full_cifar10_has_the_published_counts_mean_and_deviation(data_root: Path) -> None:
    if not (data_root / "cifar10").is_dir():
        pytest.fail(f"{data_root} has no cifar10 folder")
    train, test = CIFAR10().train(), CIFAR10(subset=1).test()
    assert torch.bincount(train.targets).tolist() == [5000] * 10
    assert torch.bincount(test.targets).tolist() == [1000] * 10
    # Two decimals: the images may have gone through JPEG.
    assert train.inputs.mean((0, 2, 3)).tolist() == pytest.approx([0.0] * 3, abs=5e-3)
    assert train.inputs.std((0, 2, 3)).tolist() == pytest.approx([1.0] * 3, abs=1e-2)
    assert train.inputs.amax((0, 2, 3)).tolist() == pytest.approx(CIFAR10.bright, abs=1e-5)
