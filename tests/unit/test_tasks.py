"""The image tasks and how their data is found."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from letheon import tree
from letheon.data import Data
from letheon.errors import ConfigError, DataError
from letheon.tasks.base import Task
from letheon.tasks.vision import MNIST, Digits, MNIST5k

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
SMALL: list[Task] = [Digits(), Digits(norm=True, dropout=0.2), MNIST5k()]


def small_arrays() -> dict[str, Any]:
    """A made-up data set in MNIST's format: 40 training and 20 test images."""
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (40, 28, 28), dtype=np.uint8),
        "train_labels": rng.integers(0, 10, 40, dtype=np.uint8),
        "test_images": rng.integers(0, 256, (20, 28, 28), dtype=np.uint8),
        "test_labels": rng.integers(0, 10, 20, dtype=np.uint8),
    }


def idx_bytes(array: NDArray[Any]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``mnist`` folder that MNIST looks into."""
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    return tmp_path / "mnist"


def write_npz(folder: Path, **changed: NDArray[Any]) -> None:
    np.savez_compressed(folder / "mnist.npz", **(small_arrays() | changed))


def write_idx(folder: Path, suffix: str = "") -> None:
    for name, array in zip(IDX, small_arrays().values(), strict=True):
        content = idx_bytes(array)
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)


def assert_same(a: Data, b: Data) -> None:
    for left, right in ((a.inputs, b.inputs), (a.targets, b.targets), (a.ids, b.ids)):
        assert torch.equal(left, right)


@pytest.mark.parametrize("task", SMALL, ids=repr)
def test_data_is_typed_numbered_and_within_the_bright_value(task: Task) -> None:
    train, test = task.train(), task.test()
    for data in (train, test):
        assert data.inputs.dtype == torch.float32
        assert data.targets.dtype == data.ids.dtype == torch.int64
        assert set(data.targets.tolist()) == set(range(task.classes))
        assert float(data.inputs.max()) == pytest.approx(task.bright, abs=1e-6)
    assert torch.cat([train.ids, test.ids]).tolist() == list(range(len(train) + len(test)))


@pytest.mark.parametrize("task", SMALL, ids=repr)
def test_no_caller_can_spoil_the_data_of_the_next(task: Task) -> None:
    first = task.train()
    first.inputs.zero_()
    first.targets.zero_()
    assert float(task.train().inputs.abs().max()) > 0.5
    assert int(task.train().targets.max()) == 9


@pytest.mark.parametrize("task", SMALL, ids=repr)
def test_training_and_test_samples_are_different_images(task: Task) -> None:
    train = {image.numpy().tobytes() for image in task.train().inputs}
    assert all(image.numpy().tobytes() not in train for image in task.test().inputs)


@pytest.mark.parametrize("task", SMALL, ids=repr)
def test_the_model_learns_the_task_from_its_initial_state(task: Task) -> None:
    data, order = task.train(), torch.Generator().manual_seed(0)
    model = task.model()
    model.load_state_dict({**task.init(0).params, **task.init(0).buffers})
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    for _ in range(40):
        batch = data.take(torch.randint(len(data), (32,), generator=order))
        optimizer.zero_grad()
        task.loss(model(batch.inputs), batch.targets).backward()
        optimizer.step()
    test = task.test()
    assert float(task.correct(model.eval()(test.inputs), test.targets).float().mean()) > 0.5


@pytest.mark.parametrize("task", SMALL, ids=repr)
def test_the_initial_state_is_a_function_of_the_seed(task: Task) -> None:
    assert tree.digest(task.init(5).params) == tree.digest(task.init(5).params) != tree.digest(task.init(6).params)


@pytest.mark.parametrize("task", SMALL, ids=repr)
def test_the_head_is_the_last_layer(task: Task) -> None:
    assert list(task.layers)[-1] == task.head
    assert task.init(0).params[f"{task.head}.weight"].shape[0] == task.classes


def test_digits_keep_every_fifth_sample_for_the_test() -> None:
    assert (len(Digits().train()), len(Digits().test())) == (1437, 360)
    assert Digits().train().inputs.shape == (1437, 64)
    from sklearn.datasets import load_digits

    assert Digits().test().targets.tolist() == load_digits().target[::5].tolist()


def test_mnist5k_keeps_eighty_test_samples_of_each_class() -> None:
    train, test = MNIST5k().train(), MNIST5k().test()
    assert torch.bincount(train.targets).tolist() == [420] * 10
    assert torch.bincount(test.targets).tolist() == [80] * 10
    assert train.inputs.shape == (4200, 1, 28, 28)


def test_only_the_asked_for_parts_of_the_perceptron_exist() -> None:
    assert not Digits().draws
    assert not Digits().init(0).buffers
    assert Digits(dropout=0.3).draws
    assert "norm.running_var" in Digits(norm=True).init(0).buffers


def test_bad_fields_are_refused() -> None:
    for dropout in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="dropout"):
            Digits(dropout=dropout)
    with pytest.raises(ConfigError, match="subset"):
        MNIST(subset=0)


def test_importing_the_tasks_imports_no_data_package() -> None:
    code = (
        "import sys, letheon.tasks.vision, letheon.tasks.population\n"
        "print(sorted({'sklearn', 'mlxtend', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_and_the_npz_archive_give_the_same_data(folder: Path, tmp_path: Path, suffix: str) -> None:
    write_idx(folder, suffix)
    from_idx = (MNIST().train(), MNIST().test())
    with pytest.MonkeyPatch.context() as patch:
        (tmp_path / "other" / "mnist").mkdir(parents=True)
        write_npz(tmp_path / "other" / "mnist")
        patch.setenv("LETHEON_DATA", str(tmp_path / "other"))
        assert_same(from_idx[0], MNIST().train())
        assert_same(from_idx[1], MNIST().test())
    assert from_idx[0].targets.tolist() == small_arrays()["train_labels"].tolist()


def test_pixels_are_standardised(folder: Path) -> None:
    write_npz(folder)
    expected = (torch.from_numpy(small_arrays()["test_images"]) / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(MNIST().test().inputs[:, 0], expected)


def test_a_smaller_subset_is_a_prefix_of_a_larger_one(folder: Path) -> None:
    write_npz(folder)
    small, large = MNIST(subset=10).train(), MNIST(subset=25).train()
    assert_same(small, large.take(torch.arange(10)))
    assert MNIST(subset=10).test().ids.tolist() == list(range(10, 30))
    everything = {image.numpy().tobytes() for image in MNIST().train().inputs}
    assert len({image.numpy().tobytes() for image in large.inputs} & everything) == 25
    with pytest.raises(DataError, match="subset is 41, but there are 40"):
        MNIST(subset=41).train()


def test_a_file_is_decoded_once(folder: Path) -> None:
    write_npz(folder)
    before = MNIST().train()
    (folder / "mnist.npz").write_bytes(b"")
    assert_same(before, MNIST().train())


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"train_images": np.zeros((40, 28, 27), np.uint8)}, r"\(40, 28, 27\)"),
        ({"train_images": np.zeros((40, 28, 28), np.float32)}, "float32"),
        ({"train_images": np.zeros((0, 28, 28), np.uint8)}, r"\(0, 28, 28\)"),
        ({"train_labels": np.zeros(39, np.uint8)}, r"\(39,\)"),
        ({"test_labels": np.zeros(20, np.float64)}, "float64"),
        ({"test_labels": np.full(20, 10, np.uint8)}, r"found 10…10"),
        ({"test_labels": np.full(20, -1, np.int64)}, r"found -1…-1"),
    ],
)
def test_malformed_arrays_are_refused_by_file_name(folder: Path, changed: dict[str, NDArray[Any]], word: str) -> None:
    write_npz(folder, **changed)
    with pytest.raises(DataError, match=rf"mnist\.npz: .*{word}"):
        MNIST().train()


def test_archives_that_are_broken_or_lack_arrays_are_refused_by_file_name(folder: Path) -> None:
    write_npz(folder)
    whole = (folder / "mnist.npz").read_bytes()
    spoilt = whole[:2000] + bytes(100) + whole[2100:]
    for content in (b"", b"not a zip", whole[: len(whole) // 2], spoilt):
        (folder / "mnist.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"mnist\.npz: not a readable npz archive"):
            MNIST().train()
    with (folder / "mnist.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"mnist\.npz: not a readable npz archive"):
        MNIST().train()
    np.savez(folder / "mnist.npz", train_images=np.zeros(3))
    with pytest.raises(DataError, match=r"mnist\.npz: lacks the arrays train_labels, test_images, test_labels"):
        MNIST().train()


@pytest.mark.parametrize("name", IDX)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_truncated_idx_files_are_refused_by_file_name(folder: Path, name: str, suffix: str) -> None:
    write_idx(folder, suffix)
    path = folder / f"{name}{suffix}"
    whole = path.read_bytes()
    for keep in (0, 3, 7, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(DataError, match=path.name):
            MNIST().train()


def test_idx_files_of_another_type_or_length_are_refused(folder: Path) -> None:
    write_idx(folder)
    path = folder / IDX[1]
    whole = path.read_bytes()
    for content in (whole + b"\x00", b"\x00\x00\x0d" + whole[3:], b"\x01" + whole[1:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=IDX[1]):
            MNIST().train()


def test_an_incomplete_set_of_idx_files_names_what_is_missing(folder: Path) -> None:
    write_idx(folder)
    (folder / IDX[2]).unlink()
    with pytest.raises(DataError, match=rf"lacks {IDX[2]} \(gzipped or plain\)"):
        MNIST().train()


def test_without_local_data_and_hub_package_the_error_says_what_to_put_where(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError) as caught:
        MNIST().train()
    for word in ("LETHEON_DATA", "mnist/mnist.npz", "train_images", IDX[0], "pip install datasets"):
        assert word in str(caught.value)


def test_the_directory_that_lacks_the_data_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    for place, problem in ((tmp_path, "without them"), (tmp_path / "gone", "which is no directory")):
        monkeypatch.setenv("LETHEON_DATA", str(place))
        with pytest.raises(DataError, match=f"now it is {place}, {problem}"):
            MNIST().train()
    monkeypatch.delenv("LETHEON_DATA")
    with pytest.raises(DataError, match=r"gzipped or plain$"):
        MNIST().train()


def test_without_a_network_the_error_says_what_to_put_where(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(name: str) -> object:
        raise ConnectionError("no route")

    hub = ModuleType("datasets")
    monkeypatch.setattr(hub, "load_dataset", load_dataset, raising=False)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    with pytest.raises(DataError, match=r"no route.*LETHEON_DATA"):
        MNIST().train()


def test_images_from_the_hub_become_the_same_data_as_local_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = small_arrays()

    def load_dataset(name: str) -> dict[str, dict[str, list[Any]]]:
        assert name == "ylecun/mnist"
        return {
            split: {"image": list(arrays[f"{split}_images"]), "label": arrays[f"{split}_labels"].tolist()}
            for split in ("train", "test")
        }

    hub = ModuleType("datasets")
    monkeypatch.setattr(hub, "load_dataset", load_dataset, raising=False)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    from_hub = MNIST().test()
    (tmp_path / "other" / "mnist").mkdir(parents=True)
    write_npz(tmp_path / "other" / "mnist")
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path / "other"))
    assert_same(from_hub, MNIST().test())


def test_full_mnist_has_the_published_counts_mean_and_deviation(data_root: Path) -> None:
    if not (data_root / "mnist").is_dir():
        pytest.fail(f"{data_root} has no mnist folder")
    train, test = MNIST().train(), MNIST().test()
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(train.targets).tolist() == counts
    assert (len(test), int(test.ids[0])) == (10_000, 60_000)
    assert float(train.inputs.mean()) == pytest.approx(0.0, abs=1e-3)
    assert float(train.inputs.std()) == pytest.approx(1.0, abs=1e-3)
