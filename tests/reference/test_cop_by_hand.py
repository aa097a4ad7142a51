"""COP's parts against slow loops: moments token by token, directions by SVD, projection by the d×d projector."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cop_toys import ALL, INNER, WIDTH, apart, ids, toy
from torch import Tensor, nn

from letheon.cop import (
    Adapters,
    Basis,
    Batch,
    Guard,
    Moments,
    Selection,
    collect,
    confined,
    find_spaces,
    freeze,
    protect,
)
from letheon.cop.layers import rows
from letheon.models.lenet import LeNet5


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def moments_of(tokens: Tensor) -> Moments:
    return Moments((tokens.double().mT @ tokens.double()), len(tokens), "raw", tokens.dtype)


def gpm(basis: np.ndarray, tokens: np.ndarray, energy: float) -> np.ndarray:
    """Gradient projection memory: the columns that one more task adds, from the SVD of its residual activations."""
    residual = tokens.T - basis @ (basis.T @ tokens.T)
    left, values, _ = np.linalg.svd(residual, full_matrices=False)
    total, held = float((tokens**2).sum()), float(((basis.T @ tokens.T) ** 2).sum())
    r = 0
    while held < energy * total and r < len(values):
        held += values[r] ** 2
        r += 1
    return left[:, :r]


@pytest.mark.parametrize("energy", [0.5, 0.9, 0.99])
def test_directions_are_those_of_gradient_projection_memory(energy: float) -> None:
    by_hand = np.zeros((12, 0))
    basis = Basis.empty(12, torch.float64)
    rule = Selection(energy=energy, rank=12, rank_total=12)
    for request in range(3):
        tokens = normal(9, 12, seed=request) * torch.linspace(3.0, 0.1, 12).double() ** 2
        by_hand = np.concatenate([by_hand, gpm(by_hand, tokens.numpy(), energy)], 1)
        basis = basis.extended(moments_of(tokens), request=request, rule=rule)
        assert basis.rank == by_hand.shape[1]
        np.testing.assert_allclose((basis.vectors @ basis.vectors.mT).numpy(), by_hand @ by_hand.T, atol=1e-9)


@pytest.mark.parametrize("weighting", ["unit", "raw"])
def test_moments_are_sums_over_tokens(weighting: str) -> None:
    model = toy()
    texts, shares = ids(1, rows=3), torch.tensor([[1.0, 0, 0.5, 2], [0, 0, 0, 0], [1, 1, 1, 1]])
    seen: list[Tensor] = []
    handle = model.blocks[1].o.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    model(texts)
    handle.remove()
    by_hand = torch.zeros(24, 24, dtype=torch.float64)
    for x, share in zip(seen[0].flatten(0, 1), shares.flatten(), strict=True):
        by_hand += share * torch.outer(x, x) / (float(x @ x) if weighting == "unit" else 1.0)
    space = {"mixed": ("blocks.1.o",)}
    found = collect(model, [Batch(texts[:1], shares[:1]), Batch(texts[1:], shares[1:])], space, weighting=weighting)
    torch.testing.assert_close(found["mixed"].gram, by_hand)
    assert found["mixed"].tokens == 7.5


CONVOLUTIONS = [
    nn.Conv2d(3, 4, 3),
    nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2)),
    nn.Conv2d(3, 4, 3, padding="same", dilation=2),
    nn.Conv2d(3, 4, 2, padding="same", padding_mode="circular"),
    nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"),
    nn.Conv2d(3, 4, 1, stride=2),
]


def test_activations_of_a_batch_are_gone_when_the_next_one_passes() -> None:
    """Collection streams: of what enters the layers only the second moments stay."""
    model = toy()
    spaces = find_spaces(model, Batch(ids(1)))
    seen: list[weakref.ref[Tensor]] = []
    layers = [name for names in spaces.values() for name in names]
    for name in layers:
        model.get_submodule(name).register_forward_pre_hook(lambda _, inputs: seen.append(weakref.ref(inputs[0])))
    alive = []

    def batches() -> Iterator[Batch]:
        for number in range(3):
            alive.append(sum(ref() is not None for ref in seen))
            yield Batch(ids(number))

    moments = collect(model, batches(), spaces)
    assert len(seen) == 3 * len(layers) == 3 * 15
    assert alive == [0, 0, 0]
    assert {tuple(found.gram.shape) for found in moments.values()} == {(WIDTH, WIDTH), (INNER, INNER)}


@pytest.mark.parametrize("conv", CONVOLUTIONS, ids=str)
def test_patches_are_what_a_convolution_multiplies(conv: nn.Conv2d) -> None:
    images = normal(5, 3, 7, 8, dtype=torch.float32)
    parts = list(rows(conv, images, torch.tensor([1.0, 0, 1, 2, 1])))
    found = torch.cat([part for part, _ in parts]) @ conv.weight.flatten(1).mT
    with torch.no_grad():
        wanted = conv(images[[0, 2, 3, 4]]) - conv.bias[:, None, None]
    torch.testing.assert_close(found, wanted.flatten(2).mT.reshape(-1, 4), atol=1e-5, rtol=1e-4)
    share = torch.cat([share for _, share in parts]).view(4, -1)
    assert share.unique(dim=1).tolist() == [[1], [1], [2], [1]]


def test_projection_and_restore_are_those_of_the_whole_projector() -> None:
    model = nn.Sequential(nn.Linear(7, 5, bias=False)).double()
    vectors = torch.linalg.qr(normal(7, 3))[0]
    basis = Basis.empty(7, torch.float64).extended(moments_of(vectors.mT), request=0, rule=ALL)
    guard = Guard(model, {"0": ("0",)}, {"0": basis})
    weight, start = guard.trainable[0], guard.trainable[0].detach().clone()
    across = torch.eye(7).double() - vectors @ vectors.mT
    gradient = normal(5, 7, seed=1)
    projected = gradient.clone()
    guard.project([projected])
    torch.testing.assert_close(projected, gradient @ across)
    share = float((gradient @ vectors).square().sum() / gradient.square().sum())
    assert guard.blocked() == {"0.weight": pytest.approx(share)}
    with torch.no_grad():
        weight += gradient
    guard.restore()
    torch.testing.assert_close(weight.detach(), start + gradient @ across)
    there = weight.detach().clone()
    guard.restore()
    torch.testing.assert_close(weight.detach(), there, rtol=0, atol=1e-14)


def test_update_from_elsewhere_is_confined_in_the_same_way() -> None:
    model = LeNet5().double()
    images = Batch(normal(2, 1, 28, 28))
    spaces = find_spaces(model, images)
    bases = protect(model, [images], spaces, {}, request=0)
    update = {name: normal(*p.shape, seed=i) for i, (name, p) in enumerate(model.named_parameters())}
    kept = confined(update, spaces, bases)
    for space, (name,) in spaces.items():
        across = torch.eye(len(bases[space].vectors)).double() - bases[space].vectors @ bases[space].vectors.mT
        whole = (update[f"{name}.weight"].flatten(1) @ across).view(update[f"{name}.weight"].shape)
        torch.testing.assert_close(kept[f"{name}.weight"], whole)
        assert not kept[f"{name}.bias"].any()
    assert confined(update, spaces, {})["head.bias"] is update["head.bias"]


def test_layers_of_a_vision_model_hold_too() -> None:
    model = LeNet5().double()
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(0.2 * normal(*parameter.shape, seed=i))
    earlier, later = normal(1, 1, 28, 28, seed=50), normal(2, 1, 28, 28, seed=51)
    earlier[..., 12:] = 0  # few patches, so that they do not span everything
    spaces = find_spaces(model, Batch(earlier))
    assert list(spaces) == ["conv1", "conv2", "fc1", "fc2", "head"]
    every = Selection(energy=1.0, rank=256, rank_total=256)
    bases = protect(model, [Batch(earlier)], spaces, {}, request=0, selection=every)
    assert bases["conv2"].free > 20
    freeze(model, spaces)
    guard = Guard(model, spaces, bases)
    settled, other = model(earlier).detach(), model(later).detach()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(guard.trainable, lr=0.02, weight_decay=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (-model(later).logsumexp(1).sum()).backward()
        guard.project([p.grad for p in guard.trainable])
        optimizer.step()
        guard.restore()
    assert max(guard.drifts().values()) < 1e-12
    assert apart(model(earlier), settled) < 1e-12
    assert apart(model(later), other) > 0.1
    assert apart(model.conv2.weight, before["conv2.weight"]) > 1e-3


def test_statistics_of_batch_norm_are_put_back() -> None:
    def after(bases: dict[str, Basis]) -> tuple[Tensor, Tensor]:
        model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3, affine=False))
        start = model[1].running_mean.clone()
        guard = Guard(model, {"0": ("0",)}, bases)
        model(normal(6, 4, dtype=torch.float32) + 3)
        guard.restore()
        return start, model[1].running_mean

    first, last = after({"0": Basis.from_moments(moments_of(normal(1, 4, dtype=torch.float32)))})
    torch.testing.assert_close(first, last)
    first, last = after({})
    assert not torch.equal(first, last)


def test_adapters_answer_with_the_product_until_merged() -> None:
    model = toy()
    texts = ids(3)
    plain = model(texts).detach()
    adapters = Adapters(model, ["blocks.0.q", "head"], rank=2, scale=3.0, seed=1)
    assert torch.equal(model(texts), plain)  # B is zero
    change = {}
    for name, (a, b) in adapters.pairs.items():
        down, up = model.get_parameter(a), model.get_parameter(b)
        with torch.no_grad():
            up.copy_(normal(*up.shape))
        change[name] = 3.0 * (up @ down).detach()
    adapted = model(texts).detach()
    before = model.get_parameter("head.weight").detach().clone()
    adapters.merge()
    torch.testing.assert_close(model.get_parameter("head.weight").detach(), before + change["head"])
    torch.testing.assert_close(model(texts), adapted)
    assert apart(adapted, plain) > 0.1
    assert not [name for name, _ in model.named_parameters() if "lora" in name]
