"""Properties of COP's bases and of the restore, over random problems."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from letheon.cop import Basis, Guard, Moments, Selection

SEEDS = st.integers(0, 2**32)
DTYPES = st.sampled_from([torch.float32, torch.float64])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices: kernels of several threads would wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moments(tokens: Tensor, dtype: torch.dtype = torch.float64) -> Moments:
    return Moments(tokens.mT @ tokens, len(tokens), "raw", dtype)


@given(seed=SEEDS, dtype=DTYPES, spread=st.floats(0, 6))
@settings(max_examples=6)
def test_columns_stay_orthonormal_over_twenty_requests(seed: int, dtype: torch.dtype, spread: float) -> None:
    basis = Basis.empty(48, dtype)
    shared = normal(seed, 4, 48) * 10.0**spread  # every request sees it: the second time nothing of it may be added
    for request in range(20):
        tokens = torch.cat([shared, normal(seed + request, 5, 48)])
        basis = basis.extended(moments(tokens, dtype), request=request, rule=Selection(1.0, rank=3, rank_total=48))
    vectors = basis.vectors.double()
    assert float((vectors.mT @ vectors - torch.eye(basis.rank)).abs().max()) <= 1e-5
    assert basis.rank + basis.free == 48
    assert len(basis.records) == 20
    assert basis.requests.tolist() == sorted(basis.requests.tolist())


@given(seed=SEEDS, energy=st.floats(0.05, 0.999), known=st.integers(0, 6))
@settings(max_examples=40)
def test_no_fewer_directions_would_hold_the_energy(seed: int, energy: float, known: int) -> None:
    tokens = normal(seed, 10, 12) * torch.linspace(2, 0.1, 12).double()
    every = Selection(1.0, rank=12, rank_total=12)
    start = Basis.empty(12, torch.float64).extended(moments(normal(seed + 1, known, 12)), request=0, rule=every)
    rule = Selection(energy, rank=12, rank_total=12)
    basis = start.extended(moments(tokens), request=1, rule=rule)

    def held(columns: Tensor) -> float:
        return float((tokens @ columns).square().sum() / tokens.square().sum())

    assert held(basis.vectors) >= energy - 1e-9
    assert basis.held == pytest.approx(held(basis.vectors))
    if basis.rank > start.rank:
        assert held(basis.vectors[:, :-1]) < energy


@given(seed=SEEDS, rank=st.integers(1, 5), total=st.integers(1, 9), requests=st.integers(1, 4))
@settings(max_examples=25)
def test_caps_bind(seed: int, rank: int, total: int, requests: int) -> None:
    basis = Basis.empty(10, torch.float64)
    for request in range(requests):
        tokens = normal(seed + request, 20, 10)
        basis = basis.extended(moments(tokens), request=request, rule=Selection(1.0, rank=rank, rank_total=total))
    assert basis.rank == min(requests * rank, total)


@given(seed=SEEDS, dtype=DTYPES, m=st.integers(1, 7), jump=st.floats(1e-3, 1e2))
@settings(max_examples=40)
def test_restore_goes_to_the_nearest_weight_that_answers_as_before(
    seed: int, dtype: torch.dtype, m: int, jump: float
) -> None:
    model = nn.Linear(8, 5, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.copy_(normal(seed, 5, 8))
    start = model.weight.detach().clone()
    every = Selection(1.0, rank=8, rank_total=8)
    basis = Basis.from_moments(moments(normal(seed + 1, m, 8), dtype), rule=every)
    guard = Guard(nn.Sequential(model), {"0": ("0",)}, {"0": basis})
    with torch.no_grad():
        model.weight += jump * normal(seed + 2, 5, 8)
    away = model.weight.detach().clone()
    guard.restore()
    rounding = (1e-6 if dtype == torch.float32 else 1e-14) * (1 + jump) * 10
    assert float(((model.weight.detach() - start) @ basis.vectors).abs().max()) <= rounding
    # nearest: what was moved lies in the span, at right angles to every direction in which one may go
    moved = away - model.weight.detach()
    assert float((moved - moved @ basis.vectors @ basis.vectors.mT).abs().max()) <= rounding


@given(seed=SEEDS)
@settings(max_examples=10)
def test_float32_moments_choose_what_float64_moments_do_where_they_may(seed: int) -> None:
    tokens = normal(seed, 30, 16) * torch.logspace(0, -2, 16).double()
    rule = Selection(0.99, rank=16, rank_total=16)
    fine = Basis.from_moments(moments(tokens, torch.float32), rule=rule)
    coarse = Moments((tokens.float().mT @ tokens.float()), 30, "raw", torch.float32)
    rough = Basis.from_moments(coarse, rule=rule)
    assert abs(fine.rank - rough.rank) <= 1
    held = (tokens @ rough.vectors.double()).square().sum() / tokens.square().sum()
    assert float(held) >= 0.98
