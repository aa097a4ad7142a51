"""COP's invariants: what earlier requests settled stays, layer by layer, to first order, and for the whole network.

Each invariant is tried against the naive way, too, which must break it.
"""

from __future__ import annotations

import pytest
import torch
from cop_toys import (
    ALL,
    INNER,
    Rule,
    Way,
    adamw,
    apart,
    ascent,
    ids,
    leaks,
    moved,
    opened,
    projectors,
    request,
    sgd,
    toy,
    train,
    weights,
)
from torch import Tensor

from letheon import tree
from letheon.cop import Adapters, Basis, Batch, Guard, collect, damped, find_spaces, freeze, protect
from letheon.errors import MethodError

FIRST, SECOND = ids(1), ids(2)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
RULES = pytest.mark.parametrize("rule", [sgd, adamw])
WAYS = pytest.mark.parametrize("way", ["full", "lora"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


@RULES
@WAYS
@DTYPES
def test_layers_answer_to_protected_inputs_as_before(rule: Rule, way: Way, dtype: torch.dtype) -> None:
    model = toy(dtype=dtype)
    spaces = find_spaces(model, Batch(FIRST))
    bases = request(model, FIRST, {}, number=0, way=way, rule=rule)
    for number, texts in enumerate((SECOND, ids(3)), start=1):
        before = weights(model, spaces)
        after_bases = request(model, texts, bases, number=number, way=way, rule=rule)
        after = weights(model, spaces)
        assert max(leaks(before, after, spaces, bases)) <= TOLERANCE[dtype]
        assert moved(before, after) > 1e-3  # far above the tolerance: something was trained
        bases = after_bases


@WAYS
@DTYPES
def test_first_order_change_of_earlier_losses_is_zero(way: Way, dtype: torch.dtype) -> None:
    model = toy(dtype=dtype)
    bases = request(model, FIRST, {}, number=0, way=way)
    spaces = find_spaces(model, Batch(FIRST))
    names = [n for ns in spaces.values() for n in ns]
    params = [model.get_parameter(f"{n}.weight").requires_grad_() for n in names]
    slopes = torch.autograd.grad(ascent(model, FIRST), params)
    before = weights(model, spaces)
    request(model, SECOND, bases, number=1, way=way)
    for name, slope in zip(names, slopes, strict=True):
        change = weights(model, spaces)[name] - before[name]
        assert abs(float((slope * change).sum())) <= TOLERANCE[dtype] * float(slope.norm() * change.norm())
        # the same change in other directions would have had a first-order effect
        assert float(slope.norm() * change.norm()) > 1e-6


@WAYS
@DTYPES
@pytest.mark.parametrize("attends", [True, False])
def test_network_answers_to_earlier_requests_as_before(way: Way, dtype: torch.dtype, attends: bool) -> None:
    model = toy(dtype=dtype, attends=attends)
    bases = request(model, FIRST, {}, number=0, way=way)
    settled, other = model(FIRST).detach(), model(SECOND).detach()
    for number, texts in enumerate((SECOND, ids(3)), start=1):
        bases = request(model, texts, bases, number=number, way=way)
        assert apart(model(FIRST), settled) <= TOLERANCE[dtype]
    assert apart(model(SECOND), other) > 0.01


def test_base_objective_moves_earlier_answers() -> None:
    model = toy()
    request(model, FIRST, {}, number=0)
    settled = model(FIRST).detach()
    request(model, SECOND, {}, number=1)
    assert apart(model(FIRST), settled) > 0.1


@pytest.mark.parametrize("drifting", ["embed.weight", "last.weight", "blocks.0.up.bias"])
def test_drift_of_anything_else_voids_the_network_guarantee(drifting: str) -> None:
    model = toy(tied=True)
    bases = request(model, FIRST, {}, number=0)
    settled = model(FIRST).detach()
    spaces = find_spaces(model, Batch(FIRST))
    guard = Guard(model, spaces, bases)
    model.get_parameter(drifting).requires_grad_()  # behind the guard's back
    before = weights(model, spaces)
    train(model, SECOND, adamw, guard=guard, project=False)
    assert max(leaks(before, weights(model, spaces), spaces, bases)) <= 1e-12  # every layer holds
    assert apart(model(FIRST), settled) > 1e-3  # the network does not


def test_tied_embedding_is_refused_by_name() -> None:
    model = toy(tied=True)
    texts = Batch(FIRST)
    spaces = {**find_spaces(model, texts), "head": ("head",)}
    bases = protect(model, [texts], spaces, {}, request=0, selection=ALL)
    with pytest.raises(MethodError, match=r"tied: embed\.weight = head\.weight"):
        Guard(model, spaces, bases)
    assert "embed.weight" in freeze(model, spaces)
    Guard(model, spaces, bases)


def test_norms_and_biases_are_refused_by_name_and_frozen_on_demand() -> None:
    model = toy()
    bases = protect(model, [Batch(FIRST)], spaces := find_spaces(model, Batch(FIRST)), {}, request=0)
    with pytest.raises(MethodError, match=r"embed\.weight, blocks\.0\.norm\.weight.*blocks\.0\.gate\.bias.*last\.bias"):
        Guard(model, spaces, bases)
    frozen = freeze(model, spaces)
    left = {n for n, p in model.named_parameters() if p.requires_grad}
    assert left == {f"{n}.weight" for n in weights(model, spaces)}
    assert "blocks.1.down.bias" in frozen
    assert freeze(model, spaces) == ()


@RULES
@WAYS
@DTYPES
def test_without_earlier_requests_the_run_is_the_base_objective_bit_for_bit(
    rule: Rule, way: Way, dtype: torch.dtype
) -> None:
    digests = []
    for guarded in (True, False):
        model = toy(dtype=dtype)
        spaces = find_spaces(model, Batch(FIRST))
        opened(model, spaces, way)
        bases = {space: Basis.empty(WIDTHS[space.rpartition(".")[2]], dtype) for space in spaces}
        train(model, FIRST, rule, guard=Guard(model, spaces, bases) if guarded else None)
        digests.append(tree.digest(model.state_dict()))
    assert digests[0] == digests[1]


WIDTHS = {"q": 24, "o": 24, "gate": 24, "down": INNER, "head": 24}


def test_without_earlier_requests_anything_may_train() -> None:
    model = toy(tied=True)
    guard = Guard(model, find_spaces(model, Batch(FIRST)), {})
    assert len(guard.trainable) == len(list(model.parameters()))


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=str)
def test_order_of_batches_rows_and_devices_changes_the_basis_by_rounding(dtype: torch.dtype, rounding: float) -> None:
    model = toy(dtype=dtype)
    spaces = find_spaces(model, Batch(FIRST))
    texts = ids(4, rows=6)
    whole = protect(model, [Batch(texts)], spaces, {}, request=0)
    shuffled = texts[torch.tensor([4, 1, 5, 0, 2, 3])]
    parts = protect(model, [Batch(shuffled[:1]), Batch(shuffled[1:])], spaces, {}, request=0, at_once=3)
    split = [collect(model, [Batch(half)], spaces) for half in texts.chunk(2)]
    both = collect(model, [Batch(texts)], spaces)
    for space, projector in projectors(whole).items():
        assert float((projector - projectors(parts)[space]).abs().max()) < rounding
        torch.testing.assert_close(split[1][space].plus(split[0][space]).gram, both[space].gram)


def test_padding_changes_nothing() -> None:
    model = toy()
    spaces = find_spaces(model, Batch(FIRST))
    texts = ids(4, rows=3)
    plain = protect(model, [Batch({"ids": texts})], spaces, {}, request=0)
    for side in ("right", "left"):
        pad = torch.zeros(3, 50, dtype=torch.int64)
        mask = torch.cat([torch.ones_like(texts), pad] if side == "right" else [pad, torch.ones_like(texts)], 1)
        padded = torch.cat([texts, pad] if side == "right" else [pad, texts], 1)
        found = protect(model, [Batch({"ids": padded, "mask": mask}, mask)], spaces, {}, request=0)
        for space, projector in projectors(plain).items():
            assert float((projector - projectors(found)[space]).abs().max()) < 1e-6
            assert found[space].records[0, 1] == texts.numel()


def test_shared_prefix_counts_once() -> None:
    prefix, own = ids(5, rows=1, length=3), ids(6, rows=4, length=2)
    texts = torch.cat([prefix.expand(4, -1), own], 1)
    model = toy()
    spaces = find_spaces(model, Batch(texts))
    once = torch.ones(4, 5)
    once[1:, :3] = 0
    damp = damped(torch.ones(4, 5), first=3, factor=0.25)
    some = collect(model, [Batch(texts, once)], spaces), collect(model, [Batch(texts, damp)], spaces)
    for space in spaces:  # attention is causal: the prefix is the same in every row
        torch.testing.assert_close(some[0][space].gram, some[1][space].gram)
        assert some[0][space].tokens == some[1][space].tokens == 11


# What must fail by design, and does.


def projected_only(model: torch.nn.Module, guard: Guard, optimizer: torch.optim.Optimizer, steps: int = 5) -> None:
    """Gradient projection without the restore."""
    for _ in range(steps):
        optimizer.zero_grad()
        ascent(model, SECOND).backward()
        guard.project([p.grad for p in guard.trainable])
        optimizer.step()


def second_request() -> tuple[torch.nn.Module, dict[str, tuple[str, ...]], dict[str, Basis], Guard]:
    model = toy()
    bases = request(model, FIRST, {}, number=0)
    spaces = find_spaces(model, Batch(FIRST))
    return model, spaces, bases, Guard(model, spaces, bases)


@pytest.mark.parametrize("naive", ["adamw", "adam", "decay", "carried"])
def test_gradient_projection_alone_leaks(naive: str) -> None:
    model, spaces, bases, guard = second_request()
    before = weights(model, spaces)
    if naive == "carried":  # momentum of the request before
        optimizer: torch.optim.Optimizer = torch.optim.SGD(guard.trainable, lr=0.01, momentum=0.9)
        ascent(model, FIRST).backward()
        optimizer.step()
        before = weights(model, spaces)
    elif naive == "decay":
        optimizer = torch.optim.SGD(guard.trainable, lr=0.1, weight_decay=0.01)
    else:
        optimizer = torch.optim.AdamW(guard.trainable, lr=0.03, weight_decay=0.1 if naive == "adamw" else 0.0)
    projected_only(model, guard, optimizer)
    assert max(leaks(before, weights(model, spaces), spaces, bases)) > 1e-3
    assert max(guard.drifts().values()) > 1e-3
    guard.restore()
    assert max(guard.drifts().values()) < 1e-12


def test_gradient_projection_alone_is_enough_for_plain_descent() -> None:
    model, spaces, bases, guard = second_request()
    before = weights(model, spaces)
    projected_only(model, guard, torch.optim.SGD(guard.trainable, lr=0.1, momentum=0.9))
    assert max(leaks(before, weights(model, spaces), spaces, bases)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_stored_below_float32_hold_nothing_and_are_refused(dtype: torch.dtype) -> None:
    model, spaces, bases, _ = second_request()
    model.to(dtype)
    with pytest.raises(MethodError, match=r"blocks\.0\.q\.weight is stored in torch\.\w+, whose rounding"):
        Guard(model, spaces, bases)
    name, vectors = "blocks.0.q", bases["blocks.0.q"].vectors
    weight = model.get_parameter(f"{name}.weight").detach()
    start = weight.double()
    for step in range(20):
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        held = weight.double() + 1e-3 * noise
        weight.copy_(held - (held - start) @ vectors @ vectors.mT)  # restored exactly, stored with rounding
    change = weight.double() - start
    assert float((change @ vectors).norm() / change.norm()) > 1e-3


def test_adapter_that_goes_on_into_the_next_request_leaks_and_is_refused() -> None:
    model = toy()
    spaces = find_spaces(model, Batch(FIRST))
    adapters = opened(model, spaces, "lora")
    assert isinstance(adapters, Adapters)
    train(model, FIRST, adamw, guard=None)
    bases = protect(model, [Batch(FIRST)], spaces, {}, request=0, selection=ALL)
    with pytest.raises(MethodError, match=r"adapter of blocks\.0\.q is not fresh.*Merge"):
        Guard(model, spaces, bases, adapters=adapters.pairs)
    down, up = (model.get_parameter(name) for name in adapters.pairs["blocks.0.q"])
    vectors = bases["blocks.0.q"].vectors
    before, start = (up @ down).detach(), (down @ vectors).detach()
    optimizer = adamw([p for p in model.parameters() if p.requires_grad])
    for _ in range(5):  # A is held where it was, as W would be, but B moves
        optimizer.zero_grad()
        ascent(model, SECOND).backward()
        optimizer.step()
        with torch.no_grad():
            down -= (down @ vectors - start) @ vectors.mT
    assert apart((up @ down) @ vectors, before @ vectors) > 1e-2


def test_average_of_adapters_in_the_complement_stays_there() -> None:
    found: list[Tensor] = []
    for seed in (2, 3):
        model, spaces, bases, _ = second_request()
        adapters = opened(model, spaces, "lora")
        assert adapters is not None
        guard = Guard(model, spaces, bases, adapters=adapters.pairs)
        assert max(guard.drifts().values()) < 1e-14  # in the complement from the start
        train(model, ids(seed), adamw, guard=guard)
        found.append(model.get_parameter(adapters.pairs["blocks.1.down"][0]).detach())
    mean = (found[0] + found[1]) / 2
    vectors = bases["blocks.1.down"].vectors
    assert float((mean @ vectors).norm() / mean.norm()) < 1e-14
