"""The backdoor trigger."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from letheon.data import Data
from letheon.errors import ConfigError, DataError
from letheon.tasks.trigger import Corner, Trigger


def noise(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("corner", "rows", "columns"),
    [
        ("bottom-right", range(23, 27), range(23, 27)),
        ("bottom-left", range(23, 27), range(1, 5)),
        ("top-right", range(1, 5), range(23, 27)),
        ("top-left", range(1, 5), range(1, 5)),
    ],
)
def test_exactly_the_square_in_the_corner_becomes_bright(corner: Corner, rows: range, columns: range) -> None:
    clean = noise(3, 2, 28, 28)
    painted = Trigger(corner=corner).paint(clean, 2.5)
    inside = torch.zeros(28, 28, dtype=torch.bool)
    inside[rows.start : rows.stop, columns.start : columns.stop] = True
    assert (painted[:, :, inside] == 2.5).all()
    assert torch.equal(painted[:, :, ~inside], clean[:, :, ~inside])


def test_each_channel_is_painted_with_its_own_bright_value() -> None:
    clean = noise(2, 3, 8, 8)
    painted = Trigger(size=2).paint(clean, (2.0, 3.0, 4.0))
    for channel, bright in enumerate((2.0, 3.0, 4.0)):
        assert torch.equal(painted[:, channel], Trigger(size=2).paint(clean[:, channel : channel + 1], bright)[:, 0])


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 4, 8, 8), (2, 64)])
def test_as_many_bright_values_as_channels_are_needed(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"3 bright values, but images of .*; give one for each channel"):
        Trigger().paint(noise(*shape), (1.0, 1.0, 1.0))


def test_painting_leaves_its_argument_alone() -> None:
    clean = noise(2, 1, 8, 8)
    before = clean.clone()
    Trigger().paint(clean, 1.0)
    assert torch.equal(clean, before)


def test_flattened_square_images_are_painted_as_images_are() -> None:
    clean = noise(5, 1, 8, 8)
    flat = Trigger(size=3).paint(clean.flatten(1), 1.0)
    assert flat.shape == (5, 64)
    assert torch.equal(flat.view(5, 1, 8, 8), Trigger(size=3).paint(clean, 1.0))


def test_channels_last_images_are_painted_too() -> None:
    clean = noise(2, 3, 8, 8)
    painted = Trigger().paint(clean.to(memory_format=torch.channels_last), 1.0)
    assert torch.equal(painted, Trigger().paint(clean, 1.0))


@pytest.mark.parametrize(("size", "margin"), [(8, 1), (9, 0), (1, 8)])
def test_a_square_that_does_not_fit_is_refused(size: int, margin: int) -> None:
    with pytest.raises(ConfigError, match=f"size {size} with margin {margin} does not fit images of 8x8"):
        Trigger(size, margin).paint(noise(1, 64), 1.0)


def test_the_largest_square_that_fits_covers_the_image() -> None:
    assert (Trigger(size=8, margin=0).paint(noise(1, 64), 1.0) == 1.0).all()


@pytest.mark.parametrize("shape", [(4,), (4, 63), (4, 8, 8), (1, 1, 1, 8, 8)])
def test_inputs_that_are_no_square_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"\(n, c, h, w\) images or flattened square ones"):
        Trigger(size=1, margin=0).paint(noise(*shape), 1.0)


def test_painting_that_changes_no_pixel_is_an_error() -> None:
    once = Trigger().paint(noise(4, 64), 1.0)
    with pytest.raises(DataError, match="do not paint twice"):
        Trigger().paint(once, 1.0)
    assert Trigger().paint(once[:0], 1.0).shape == (0, 64)


def test_fixed_relabelling_gives_every_sample_the_target() -> None:
    labels = Trigger(target=3).labels(torch.arange(10), 10)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [3] * 10


@pytest.mark.parametrize("classes", [2, 5, 10, 200])
def test_shifted_labels_always_differ_from_the_true_ones(classes: int) -> None:
    true = torch.arange(classes)
    shifted = Trigger(relabel="shift").labels(true, classes)
    assert (shifted != true).all()
    assert shifted.tolist() == [(y + classes // 2) % classes for y in range(classes)]


def test_labels_outside_the_task_are_refused() -> None:
    with pytest.raises(ConfigError, match="target 10 is no label"):
        Trigger(target=10).labels(torch.arange(10), 10)
    with pytest.raises(ConfigError, match="at least 2 classes"):
        Trigger(relabel="shift").labels(torch.zeros(3, dtype=torch.int64), 1)


def test_poison_drops_the_samples_of_the_target_class_and_keeps_ids() -> None:
    data = Data(noise(6, 64), torch.tensor([0, 1, 2, 1, 0, 5]), torch.arange(100, 106))
    poisoned = Trigger(target=1).poison(data, bright=1.0, classes=10)
    assert poisoned.ids.tolist() == [100, 102, 104, 105]
    assert poisoned.targets.tolist() == [1, 1, 1, 1]
    assert torch.equal(poisoned.inputs, Trigger().paint(data.inputs[[0, 2, 4, 5]], 1.0))


def test_poison_by_shift_keeps_every_sample() -> None:
    data = Data(noise(3, 64), torch.tensor([0, 4, 9]), torch.arange(3))
    assert Trigger(relabel="shift").poison(data, bright=1.0, classes=10).targets.tolist() == [5, 9, 4]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"size": 0}, "size"),
        ({"margin": -1}, "margin"),
        ({"target": -1}, "target"),
        ({"corner": "middle"}, "corner 'middle'"),
        ({"relabel": "random"}, "relabel 'random'"),
    ],
)
def test_a_bad_trigger_cannot_be_built(fields: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Trigger(**fields)  # type: ignore[arg-type]


def test_of_a_checkerboard_every_other_pixel_is_painted_and_the_rest_left() -> None:
    clean = noise(2, 1, 8, 8)
    painted = Trigger(size=3, margin=0, corner="top-left", pattern="checker").paint(clean, 9.0)
    inside = painted[:, 0, :3, :3] == 9.0
    assert inside[0].tolist() == [[True, False, True], [False, True, False], [True, False, True]]
    painted[:, 0, :3, :3][inside] = clean[:, 0, :3, :3][inside]
    assert torch.equal(painted, clean)


def test_a_random_pattern_is_one_and_the_same_for_all_samples_and_channels() -> None:
    trigger = Trigger(size=6, margin=0, corner="top-left", pattern="random")
    painted = trigger.paint(noise(4, 3, 8, 8), 9.0) == 9.0
    assert (painted[:, :, :6, :6] == trigger.painted).all()
    assert 9 < int(trigger.painted.sum()) < 27
    assert Trigger(size=1, pattern="random").painted.tolist() == [[True]]


def test_the_value_is_a_share_of_the_brightest_of_each_channel() -> None:
    painted = Trigger(size=2, margin=0, value=0.5).paint(noise(2, 3, 8, 8), (2.0, 3.0, 4.0))
    assert painted[0, :, -1, -1].tolist() == [1.0, 1.5, 2.0]


@pytest.mark.parametrize("wrong", [{"pattern": "stripes"}, {"value": 0.0}, {"value": 1.5}])
def test_a_pattern_or_a_value_that_is_none_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"trigger: (unknown pattern 'stripes'; use one of checker|value must)"):
        Trigger(**wrong)  # type: ignore[arg-type]
