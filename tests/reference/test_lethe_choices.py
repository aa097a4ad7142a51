"""What the paper leaves open of Lethe, as settings: each does what it says, against its equation or a slow loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from of_three import Small
from torch.nn import functional as F

from letheon import config, tree
from letheon.adapter import Adapter, adapt, adapter_of, ascend, at_head, attached, inside, penultimate
from letheon.errors import ConfigError
from letheon.methods.lethe import PACE, Lethe
from letheon.models.resnet import ResNet18
from letheon.phase import State, drive
from letheon.tasks.base import params_of
from letheon.tasks.cifar import CIFAR10
from letheon.tasks.vision import MNIST5k
from letheon.training import Local

LOCAL = Local(lr=0.05, batch_size=4)
LENET = ("conv2", "fc1", "head")


def images(n: int) -> torch.Tensor:
    return torch.randn(n, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def stirred(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An adapter that does something: nothing of it is zero."""
    generator = torch.Generator().manual_seed(5)
    return {name: 0.1 * torch.randn(t.shape, generator=generator) for name, t in tensors.items()}


def test_each_place_has_a_bottleneck_as_wide_as_what_enters_its_layer() -> None:
    task = MNIST5k()
    params = task.init(0).params
    adapter = Adapter(rank=3, places=LENET)
    widths = {place: weight.shape[1] for place, weight in adapter.layers(params, task.head).items()}
    assert widths == {"conv2": 6, "fc1": 256, "head": 84}
    tensors = adapter.start(params, task.head, seed=1)
    assert tree.count(tensors) == sum(2 * 3 * d + 3 + d for d in (6, 256, 84))
    assert adapter_of(tensors | params) == tensors
    assert set(Adapter().start(params, task.head, seed=1)) == {name.partition("/")[0] for name in tensors}


@pytest.mark.parametrize("place", ["conv9", "norm", "head.weight"])
def test_a_place_that_is_no_such_layer_is_refused_before_any_work(place: str, small: Small) -> None:
    method = Lethe(adapter=Adapter(places=("head", place)), local=LOCAL)
    with pytest.raises(ConfigError, match=rf"adapter\.places: '{place}' is no linear.*fc1, head"):
        method.phases(small.start, small.task)


def test_places_are_named_once_each() -> None:
    for places in ((), ("head", "head")):
        with pytest.raises(ConfigError, match="each once"):
            Adapter(places=places)


def test_a_fresh_adapter_inside_the_model_leaves_every_logit_as_it_was() -> None:
    task = MNIST5k()
    module, inputs = task.model().eval(), images(5)
    tensors = Adapter(places=LENET).start(params_of(module), task.head, seed=1)
    with torch.no_grad():
        plain = module(inputs)
        with attached(module, task.head, tensors):
            assert torch.equal(module(inputs), plain)
        for place in LENET:
            own = {name: t for name, t in stirred(tensors).items() if name.endswith(f"/{place}")}
            with attached(module, task.head, own):
                assert not torch.equal(module(inputs), plain)
        assert torch.equal(module(inputs), plain)


def test_on_feature_maps_the_bottleneck_works_pixel_by_pixel() -> None:
    tensors = stirred(Adapter(rank=3).init(6, seed=0))
    maps = torch.randn(2, 6, 4, 5, generator=torch.Generator().manual_seed(2))
    found = adapt(maps, tensors)
    for n in range(2):
        for row in range(4):
            for column in range(5):
                pixel = adapt(maps[n, :, row, column], tensors)
                torch.testing.assert_close(found[n, :, row, column], pixel)


def test_ascent_at_the_head_alone_is_that_on_penultimate_features() -> None:
    task = MNIST5k()
    module, inputs, targets = task.model(), images(40), torch.arange(40) % 10
    adapter = Adapter(rank=4, lr=0.5, cap=None, steps=6, batch_size=8, places=("head",))
    named = adapter.start(params_of(module), task.head, seed=1)
    plain = {name.partition("/")[0]: tensor for name, tensor in named.items()}
    before = tree.digest(params_of(module))
    answer = inside(module, task.head, chunk=7)
    found, *_ = ascend(adapter, answer, F.cross_entropy, inputs, targets, start=named, seed=3)
    features = penultimate(module, task.head, inputs)
    wanted, *_ = ascend(adapter, at_head(module.head), F.cross_entropy, features, targets, start=plain, seed=3)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[f"{name}/head"], tensor, rtol=1e-4, atol=1e-6)
        assert not torch.equal(tensor, plain[name])
    assert tree.digest(params_of(module)) == before


def test_ascent_inside_the_model_raises_the_loss_at_every_place(small: Small) -> None:
    adapter = Adapter(rank=4, lr=0.5, cap=None, steps=5, batch_size=5, places=("fc1", "head"))
    method = Lethe(adapter=adapter, rounds=1, restore_rounds=1, local=LOCAL)
    states: list[State] = []
    phases = method.phases(small.start, small.task)
    end = drive(phases, small.tap, small.start, seed=1, observers=[lambda phase, done, state: states.append(state)])
    raised = adapter_of(states[0].scratch)
    start = adapter.start(small.start.params, "head", seed=0)
    assert raised.keys() == start.keys()
    assert all(float(raised[f"adapter.up/{place}"].norm()) > 0 for place in ("fc1", "head"))
    (reply,) = small.tap.calls[0][1]
    n = len(small.clients["b"])
    assert reply.metrics["samples"] == 5 * 5 + 6 * n
    assert reply.metrics["flops"] == (small.task.flops + 2 * tree.count(start)) * (3 * 25 + 6 * n)
    assert end.params.keys() == small.start.params.keys()
    works = [work for works, _ in small.tap.calls[1:2] for work in works]
    assert all(work.extras.keys() == raised.keys() for work in works)


def test_an_adapter_goes_into_any_convolution_of_a_resnet() -> None:
    module = ResNet18(10, width=4).eval()
    adapter = Adapter(rank=2, places=("blocks.2.conv1", "blocks.4.conv1", "head"))
    tensors = adapter.start(params_of(module), "head", seed=0)
    inputs = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert CIFAR10.head == "head"
    with torch.no_grad():
        plain = module(inputs)
        with attached(module, "head", stirred(tensors)):
            assert not torch.equal(module(inputs), plain)


def streams(small: Small, **settings: Any) -> tuple[list[State], list[dict[str, Any]]]:
    """The states after two rectification rounds, and the options of the works on the data to forget."""
    method = Lethe(adapter=None, rounds=2, restore_rounds=1, search=None, local=LOCAL, **settings)
    states: list[State] = []
    phases = method.phases(small.start, small.task)
    drive(phases, small.tap, small.start, seed=1, observers=[lambda phase, done, state: states.append(state)])
    works = [work for works, _ in small.tap.calls for work in works if work.kind == "train"]
    return states, [dict(work.options) for work in works if work.part == "forget"]


def test_without_forget_steps_the_forget_stream_is_as_long_as_its_data(small: Small) -> None:
    _, options = streams(small)
    assert all("steps" not in each for each in options)


def test_forget_steps_are_the_forget_stream_s_alone(small: Small) -> None:
    _, options = streams(small, forget_steps=9)
    assert [each["steps"] for each in options] == [9, 9]
    trained = [work for works, _ in small.tap.calls for work in works if work.kind == "train"]
    retained = [work for work in trained if work.part == "retain"]
    assert retained
    assert all("steps" not in work.options for work in retained)


def test_the_median_retained_client_sets_the_pace_and_is_counted_once(small: Small) -> None:
    states, options = streams(small, forget_steps="median")
    assert [each["steps"] for each in options] == [3, 3]  # 10 and 20 samples in batches of 4: 3 and 5 steps
    assert [int(state.scratch[PACE]) for state in states[:2]] == [3, 3]
    counts = [works for works, _ in small.tap.calls if works[0].kind == "evaluate"]
    assert len(counts) == 1
    with pytest.raises(ConfigError, match="forget_steps"):
        Lethe(forget_steps=0)


def test_buffers_of_origin_stay_through_phase_2_and_follow_the_retained_clients_in_phase_3(small: Small) -> None:
    (first, second, restored), _ = streams(small, buffers="origin")
    before = tree.digest(small.start.buffers)
    assert tree.digest(first.buffers) == tree.digest(second.buffers) == before
    moved, _ = streams(small)
    assert (tree.digest(moved[0].buffers) != before) == bool(small.start.buffers)
    assert (tree.digest(restored.buffers) != before) == bool(small.start.buffers)


def test_a_block_is_a_part_of_the_model_and_global_is_all_of_it() -> None:
    module = ResNet18(10, width=4)
    start, task = State(params_of(module)), CIFAR10()
    blocks = Lethe(layer="block").layers(start, task)
    assert list(blocks) == ["conv", "norm", "blocks", "head"]
    assert blocks["head"] == ["head.weight", "head.bias"]
    whole = Lethe(layer="global").layers(start, task)
    assert list(whole) == ["all"]
    assert len(whole["all"]) == len(start.params)


def test_norms_that_follow_the_retain_stream_are_in_no_block(small: Small) -> None:
    (first, *_), _ = streams(small, layer="global", norm="retain")
    works, replies = small.tap.calls[0]
    retain = [reply for reply in replies if works[reply.work].part == "retain"]
    weights = sum(reply.weight for reply in retain)
    for name in small.task.norms:
        mean = sum(reply.weight * reply.tensors[name].double() for reply in retain) / weights
        torch.testing.assert_close(first.params[name], (small.start.params[name] + mean).float())
    groups = Lethe(layer="global", norm="retain").layers(small.start, small.task)
    assert set(groups.get("norms", ())) == small.task.norms


def test_settings_that_are_not_given_leave_the_experiment_s_name_as_it_was() -> None:
    table = config.plain(Lethe())
    assert not {"buffers", "forget_steps", "weights"} & table.keys()
    assert not {"places", "kind"} & table["adapter"].keys()
    assert "cap" not in table["gamma"]
    given = replace(Lethe(), adapter=Adapter(places=("head",)), forget_steps="median", buffers="origin")
    assert config.build(Lethe, {k: v for k, v in config.plain(given).items() if k != "name"}, "again") == given
