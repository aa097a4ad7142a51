"""The problems on which methods are checked are what the checks take them for."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from letheon import tree
from letheon.methods.fine_tuning import FineTuning
from letheon.middleware import Excluding
from letheon.phase import State
from letheon.request import Scope, free
from letheon.testing.scene import FORGOTTEN, RETAINED, Backwards, Tap, Watch, digest, second, small
from letheon.work import Work

SCOPES: tuple[Scope, ...] = get_args(Scope)


@pytest.mark.parametrize("scope", SCOPES)
def test_every_holder_of_a_part_has_enough_for_batchnorm(scope: Scope) -> None:
    scene = small(scope, norm=True)
    for part in ("forget", "retain"):
        sizes = [len(scene.request.select(name, data, part)) for name, data in scene.clients.items()]  # type: ignore[arg-type]
        assert any(sizes)
        assert all(size == 0 or size >= 2 for size in sizes)
    assert len(scene.request.select(RETAINED, scene.clients[RETAINED], "retain")) >= 2


def test_at_client_level_one_client_goes_and_otherwise_several_hold_what_goes() -> None:
    holders = {
        scope: [n for n, data in small(scope).clients.items() if len(small(scope).request.select(n, data, "forget"))]
        for scope in SCOPES
    }
    assert holders["client"] == [FORGOTTEN]
    assert len(holders["class"]) > 1
    assert len(holders["samples"]) > 1


@pytest.mark.parametrize("scope", SCOPES)
def test_the_second_request_comes_after_the_first_and_leaves_enough(scope: Scope) -> None:
    scene = second(scope)
    first, then = scene.requests
    assert scene.before is small(scope, norm=True)
    covered = {name: then.covers(name, data, [first]) for name, data in scene.clients.items()}
    left = {name: free(scene.requests, name, data) for name, data in scene.clients.items()}
    for masks in (covered, left):
        sizes = [int(mask.sum()) for mask in masks.values()]
        assert any(sizes)
        assert all(size == 0 or size >= 2 for size in sizes)
    assert int(left[RETAINED].sum()) >= 2
    again = sum(int((then.mask(name, data) & first.mask(name, data)).sum()) for name, data in scene.clients.items())
    assert (again > 0) == (scope == "samples")


@pytest.mark.parametrize("scope", SCOPES)
def test_the_second_request_starts_from_what_the_first_one_left(scope: Scope) -> None:
    method = FineTuning(rounds=1)
    left, start = small(scope, norm=True).reference(method).end, second(scope).start(method)
    assert digest(start) == digest(left)
    (calls,) = second(scope).reference(method).calls
    held = {name: int(free(second(scope).requests, name, data).sum()) for name, data in second(scope).clients.items()}
    assert {reply.client: int(reply.weight) for reply in calls[1]} == {name: n for name, n in held.items() if n}


def test_replies_come_in_the_order_of_names_however_the_clients_are_listed() -> None:
    scene, orders = small("class"), []
    work = Work("train", scene.origin.params, scene.origin.buffers, "retain", options={"steps": 1})
    for backwards in (False, True):
        with scene.runtime(backwards=backwards) as runtime:
            orders.append([reply.client for reply in Excluding(runtime, request=scene.request.id).run(work)])
    assert orders[0] == orders[1] == sorted(scene.clients)


def test_backwards_hands_the_same_replies_over_in_reverse() -> None:
    scene = small("class")
    work = Work("train", scene.origin.params, scene.origin.buffers, "all", options={"steps": 1})
    with scene.runtime() as runtime:
        tap = Tap(runtime)
        arrived = [reply.client for reply in Backwards(tap).run(work)]
    assert arrived == [reply.client for reply in tap.calls[0][1]][::-1]


def test_each_run_begins_with_a_copy_of_its_own() -> None:
    scene = small("client", norm=True)
    first, second = scene.start(FineTuning()), scene.start(FineTuning())
    for tensors in (first.params, first.buffers, first.memory):
        for tensor in tensors.values():
            tensor.zero_()
    assert (
        tree.digest(second.params) == tree.digest(scene.start(FineTuning()).params) == tree.digest(scene.origin.params)
    )
    assert tree.norm(second.memory) > 0


def test_the_undisturbed_run_is_kept_for_equal_settings_only() -> None:
    scene = small("client", norm=True)
    kept = scene.reference(FineTuning(rounds=1))
    assert scene.reference(FineTuning(rounds=1)) is kept
    assert scene.reference(FineTuning(rounds=2)) is not kept
    assert kept.asked() == {"retain": [0]}


def test_a_watch_sees_a_change_in_place_and_nothing_else() -> None:
    watch, state = Watch(), State({"w": torch.ones(2)})
    watch.observe("step", 1, state)
    watch.demand_untouched()
    state.params["w"].mul_(2.0)
    with pytest.raises(AssertionError, match="the state after round 1 of 'step' was changed in place"):
        watch.demand_untouched()
