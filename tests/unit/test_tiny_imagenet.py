"""Tiny-ImageNet."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from letheon.errors import ConfigError, DataError
from letheon.models.hsvit import HSViT, HSViTShape
from letheon.models.resnet import ResNet18, ResNet18Shape
from letheon.tasks.tiny_imagenet import MEAN, STD, TinyImageNet


def plain(label: int, grey: bool = False) -> Image.Image:
    """An image of one colour that tells its label."""
    return Image.new("L", (64, 64), label) if grey else Image.new("RGB", (64, 64), (label, 255 - label, 7))


def colour(task_input: torch.Tensor) -> list[int]:
    """The first pixel of an input, as bytes."""
    return [round(float(task_input[c, 0, 0] * STD[c] + MEAN[c]) * 255) for c in range(3)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``tiny-imagenet`` folder that the task looks into; there is no hub."""
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "tiny-imagenet").mkdir()
    return tmp_path / "tiny-imagenet"


def write_published_layout(folder: Path) -> None:
    """As in the published archive: validation images in one folder, their classes in a file; the last one is grey."""
    for label in range(200):
        images = folder / "train" / f"n{label:08d}" / "images"
        images.mkdir(parents=True)
        plain(label, grey=label == 199).save(images / f"n{label:08d}_0.PNG")
        (images.parent / f"n{label:08d}_boxes.txt").write_text("n_0.PNG\t0\t0\t63\t63\n")
    (folder / "val" / "images").mkdir(parents=True)
    rows = []
    for i, label in enumerate((7, 199, 0)):
        plain(label).save(folder / "val" / "images" / f"val_{i}.PNG")
        rows.append(f"val_{i}.PNG\tn{label:08d}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))


def test_the_published_layout_is_read_with_labels_in_the_order_of_the_ids(folder: Path) -> None:
    write_published_layout(folder)
    train, test = TinyImageNet().train(), TinyImageNet().test()
    assert train.inputs.shape == (200, 3, 64, 64)
    assert train.targets.tolist() == list(range(200))
    assert colour(train.inputs[42]) == [42, 213, 7]
    assert colour(train.inputs[199]) == [199, 199, 199]
    assert test.targets.tolist() == [7, 199, 0]
    assert [colour(image)[0] for image in test.inputs] == [7, 199, 0]
    assert test.ids.tolist() == [200, 201, 202]


def test_a_damaged_annotation_file_is_refused(folder: Path) -> None:
    write_published_layout(folder)
    (folder / "val" / "val_annotations.txt").write_text("val_0.PNG n00000007\n")
    with pytest.raises(DataError, match=r"val_annotations\.txt: each line must hold"):
        TinyImageNet().train()
    (folder / "val" / "val_annotations.txt").unlink()
    with pytest.raises(DataError, match="of class 'images', which the training split does not have"):
        TinyImageNet().train()


@pytest.mark.parametrize("held_out", ["val", "valid-00000-of-00001"])
def test_parquet_files_of_a_part_of_the_images_are_enough(folder: Path, held_out: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def cell(label: int) -> bytes:
        file = io.BytesIO()
        plain(label).save(file, "PNG")
        return file.getvalue()

    for name, labels in (("train_000-099", [3, 150]), (held_out, [9])):
        table = pyarrow.table({"image": [cell(n) for n in labels], "label": np.array(labels, np.uint8), "path": labels})
        parquet.write_table(table, folder / f"{name}.parquet")
    assert TinyImageNet().train().targets.tolist() == [3, 150]
    assert [colour(image)[0] for image in TinyImageNet().train().inputs] == [3, 150]
    assert TinyImageNet().test().targets.tolist() == [9]


def test_without_local_data_and_hub_package_the_error_says_what_to_put_where(folder: Path) -> None:
    with pytest.raises(DataError, match=r"pip install datasets.*tiny-imagenet/tiny-imagenet\.npz.*val or valid"):
        TinyImageNet().train()


def test_the_network_can_be_made_small() -> None:
    small = TinyImageNet(network=HSViTShape(channels=4, depth=1, groups=2)).model()
    assert isinstance(small, HSViT)
    assert small.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 200)
    assert isinstance(TinyImageNet(network=ResNet18Shape(4)).model(), ResNet18)
    with pytest.raises(ConfigError, match="task tiny-imagenet: subset must be at least 1"):
        TinyImageNet(subset=0)


def test_the_local_copy_is_balanced_and_within_the_bright_values(data_root: Path) -> None:
    if not (data_root / "tiny-imagenet").is_dir():
        pytest.fail(f"{data_root} has no tiny-imagenet folder")
    task = TinyImageNet(subset=2000, test_subset=500)
    train, test = task.train(), task.test()
    assert train.inputs.shape == (2000, 3, 64, 64)
    assert len(train.targets.unique()) == 200
    assert test.ids.tolist() == list(range(2000, 2500))
    for data in (train, test):
        assert data.inputs.amax((0, 2, 3)).tolist() == pytest.approx(TinyImageNet.bright, abs=1e-5)
        assert float(data.inputs.mean()) == pytest.approx(0.0, abs=0.1)


def test_only_the_first_classes_are_used_if_asked(folder: Path) -> None:
    write_published_layout(folder)
    task = TinyImageNet(labels=8, subset=5, network=HSViTShape(channels=4, depth=1, groups=1))
    assert (task.classes, TinyImageNet.classes, TinyImageNet().classes) == (8, 200, 200)
    assert len(TinyImageNet(labels=8).train()) == 8
    train, test = task.train(), task.test()
    assert len(train) == 5
    assert set(train.targets.tolist()) < set(range(8))
    assert test.targets.tolist() == [7, 0]  # 199 is no class of it
    assert test.ids.tolist() == [5, 6]
    assert task.model()(train.inputs).shape == (5, 8)
    for labels in (1, 201):
        with pytest.raises(ConfigError, match="task tiny-imagenet: labels must lie in 2…200"):
            TinyImageNet(labels=labels)
