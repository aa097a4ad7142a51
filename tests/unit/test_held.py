"""COP around a federated method: the first request is the other method's own, later ones leave earlier answers be."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from letheon import config, cop, tree
from letheon.client import Client, load
from letheon.cop import Batch, collect
from letheon.errors import ConfigError
from letheon.methods.base import Method
from letheon.methods.descent import Cop
from letheon.methods.held import Held
from letheon.methods.lethe import Lethe
from letheon.methods.puf import PUF
from letheon.phase import State
from letheon.testing.scene import Scene, second, small
from letheon.text.passes import passes
from letheon.work import Work
from text_toys import TINY, Toys

WIDE = Cop(energy=1.0, rank=10_000, rank_total=10_000)
"""Holds all that entered the layers, as far as there are dimensions."""


def end_of(scene: Scene, method: Method) -> State:
    return scene.reference(method).end


def the_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("base", [Lethe(), PUF()])
def test_the_first_request_is_the_bases_own_to_the_last_bit(base: Method) -> None:
    scene = small("client", norm=True)
    alone, held = end_of(scene, base), end_of(scene, Held(base=base))
    assert the_same(held.params, alone.params)
    assert the_same(held.buffers, alone.buffers)
    assert {name.split("/")[0] for name in held.memory.keys() - alone.memory.keys()} == {"cop"}


@pytest.mark.parametrize("base", [Lethe(), PUF()])
def test_a_second_request_moves_the_layers_but_not_what_they_answer_along_the_bases(base: Method) -> None:
    scene = second("client")
    method = Held(base=base)
    reference = scene.reference(method)
    start, end = reference.start, reference.end
    bases = cop.from_params(start.memory)
    moved = tree.sub(end.params, start.params)
    assert bases
    for layer, basis in bases.items():
        step = moved[f"{layer}.weight"].flatten(1)
        assert 0 < basis.rank < basis.vectors.shape[0]
        assert float(step.norm()) > 1e-3
        assert float((step @ basis.vectors).norm()) < 1e-4 * float(step.norm())
    held = {f"{layer}.weight" for layer in bases}
    assert all(not moved[name].any() for name in moved.keys() - held)  # norms and biases
    assert the_same(end.buffers, start.buffers)
    free = end_of(scene, base)
    change = tree.sub(free.params, scene.reference(base).start.params)
    layer, basis = next(iter(bases.items()))
    assert float((change[f"{layer}.weight"].flatten(1) @ basis.vectors).norm()) > 1e-3  # alone it does move them


def test_several_holders_sums_are_those_of_all_their_data_together() -> None:
    scene = small("class")
    reference = scene.reference(Held(base=PUF(rounds=1), cop=WIDE))
    asked = [(works, replies) for works, replies in reference.calls if works[0].kind == "inputs"]
    ((works, replies),) = asked
    assert len(replies) > 1
    module = scene.task.model()
    load(module, works[0].params, works[0].buffers)
    covered = torch.cat([data.inputs[scene.request.mask(name, data)] for name, data in scene.clients.items()])
    spaces = {name: (name,) for name in cop.untied(module)}
    expected = collect(module, [Batch(covered)], spaces, weighting="unit")
    for space, basis in cop.from_params(reference.end.memory).items():
        gram, whole = expected[space].gram, float(expected[space].gram.trace())
        assert basis.records[-1, 1] == pytest.approx(expected[space].tokens)
        assert basis.records[-1, 2] == pytest.approx(whole)
        outside = gram - basis.vectors.double() @ (basis.vectors.double().mT @ gram)
        assert float(outside.trace()) < 1e-5 * whole


def test_settings_reach_the_base_and_come_back_from_a_table() -> None:
    table = {"name": "cop", "base": {"name": "puf", "rounds": 2}, "cop": {"rank": 3}}
    method = config.build(Method, table, "here")  # type: ignore[type-abstract]
    assert method == Held(base=PUF(rounds=2), cop=Cop(rank=3))
    local = small("client").configured(method).recipe
    filled = method.configured(local, 5, 0)
    assert isinstance(filled, Held)
    assert filled.base.recipe == filled.recipe == local


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ({"name": "federaser"}, "federaser cannot be held"),
        ({"name": "ridge"}, "ridge cannot be held"),
        ({"name": "fats"}, "fats cannot be held"),
        ({"name": "fedosd"}, "fedosd cannot be held"),
        ({"name": "pga"}, "pga cannot be held"),
        ({"name": "fedau"}, "fedau cannot be held"),
        ({"name": "cop"}, "cop cannot be held"),
        ({"name": "npo"}, "npo has a setting `cop` of its own"),
    ],
)
def test_what_cannot_be_held_is_refused_by_name(base: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config.build(Method, {"name": "cop", "base": base}, "here")  # type: ignore[type-abstract]


@pytest.mark.parametrize("base", [Lethe(), PUF()])
def test_where_all_inputs_are_held_the_model_answers_the_first_requests_data_as_before(base: Method) -> None:
    scene = second("client")
    assert scene.before is not None
    first = scene.before.request
    gone = torch.cat([data.inputs[first.mask(name, data)] for name, data in scene.clients.items()])

    def answers(state: State) -> Tensor:
        module = scene.task.model().eval()
        load(module, state.params, state.buffers)
        with torch.no_grad():
            return module(gone)

    held, alone = scene.reference(Held(base=base, cop=WIDE)), scene.reference(base)
    assert torch.allclose(answers(held.start), answers(held.end), atol=1e-3)
    assert not the_same(held.start.params, held.end.params)
    assert float((answers(alone.start) - answers(alone.end)).abs().max()) > 0.1


def test_padding_and_what_all_texts_begin_with_do_not_count_as_inputs() -> None:
    task = Toys(language=TINY)
    client = Client("holder", task.train(), task)
    state = task.init(0)
    module = task.model()
    reply = client.execute(Work("inputs", state.params, state.buffers, "all"), module)
    load(module, state.params, state.buffers)
    texts = passes(client.data, torch.device("cpu"))
    for space, found in collect(module, texts, {name: (name,) for name in cop.untied(module)}, weighting="raw").items():
        assert torch.allclose(reply.tensors[f"raw/{space}"] * len(client.data), found.gram)
        assert float(reply.tensors[f"rows/{space}"]) < client.data.inputs.shape[1]
