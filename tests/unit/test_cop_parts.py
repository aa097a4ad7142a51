"""What COP's parts refuse, what they warn of, and what they keep."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from letheon.cop import (
    Adapters,
    Basis,
    Batch,
    Guard,
    Moments,
    Selection,
    Sinks,
    collect,
    damped,
    find_spaces,
    from_params,
    protect,
    to_params,
)
from letheon.errors import ConfigError, DataError, MethodError
from letheon.journal import load_state, save_state
from letheon.phase import State


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices: kernels of several threads would wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Shared(nn.Module):
    """Two layers on one input, one on another, one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(6, 6)
        self.idle = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.c(self.a(x)) + self.b(x).sum(-1, keepdim=True)
        return hidden


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def moments(tokens: Tensor) -> Moments:
    return Moments(tokens.double().mT @ tokens.double(), len(tokens), "raw", torch.float32)


def some_bases() -> dict[str, Basis]:
    first = Basis.from_moments(moments(normal(3, 8)))
    return {"x/y": first.extended(moments(normal(9, 8, seed=1)), request=1), "z": Basis.empty(4)}


def test_layers_that_are_given_the_same_tensor_share_a_space() -> None:
    assert find_spaces(Shared(), Batch(normal(2, 6))) == {"a": ("a", "b"), "c": ("c",)}
    assert find_spaces(Shared(), Batch({"x": normal(2, 6)}), names=["c"]) == {"c": ("c",)}


def test_tied_and_grouped_layers_are_in_no_space() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1))
    model[2].weight = model[1].weight
    assert find_spaces(model, Batch(normal(1, 4, 3, 3))) == {"3": ("3",)}


def test_modes_and_hooks_are_left_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    model[1].eval()
    spaces = find_spaces(model, Batch(normal(3, 6)))
    first = collect(model, [Batch(normal(3, 6))], spaces)
    assert [part.training for part in model] == [True, False, True]
    assert model.training
    assert not any(part._forward_pre_hooks for part in model)
    model[1].train()
    again = collect(model, [Batch(normal(3, 6))], spaces)  # evaluation mode: no dropout
    assert torch.equal(first["2"].gram, again["2"].gram)


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"s": ("a", "c")}, "s: c is not given what the other layers of this space are"),
        ({"s": ("idle",)}, "s: idle: not called"),
        ({"s": ("a", "idle")}, "s: idle: not called"),
        ({"s": ("nope",)}, "no layer 'nope'"),
        ({"s": ()}, "s: no layer: cannot share"),
    ],
)
def test_spaces_that_are_none_are_refused(spaces: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        collect(Shared(), [Batch(normal(2, 6))], spaces)


def test_layers_of_other_kinds_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 1, groups=2), nn.LayerNorm(3), nn.Linear(3, 4), nn.Linear(4, 3))
    for name in ("0", "1"):
        with pytest.raises(MethodError, match=rf"cop: {name} is a \w+; only Linear"):
            find_spaces(model, Batch(normal(1, 2, 3, 3)), names=[name])
    with pytest.raises(MethodError, match="2, 3: cannot share an input"):
        collect(model, [], {"s": ("2", "3")})
    with pytest.raises(MethodError, match="idle: not called by the model"):
        find_spaces(Shared(), Batch(normal(2, 6)), names=["idle"])
    with pytest.raises(MethodError, match="0 is a Conv2d; adapters are for linear"):
        Adapters(nn.Sequential(nn.Conv2d(2, 2, 1)), ["0"], seed=0)
    adapted = nn.Sequential(nn.Linear(3, 3))
    Adapters(adapted, ["0"], seed=0)
    with pytest.raises(MethodError, match="has an adapter already"):
        Adapters(adapted, ["0"], seed=0)


def test_nothing_to_protect_is_an_error() -> None:
    with pytest.raises(DataError, match="a: no batch"):
        collect(Shared(), [], {"a": ("a",)})
    with pytest.raises(DataError, match="a: no batch"):
        collect(Shared(), [Batch(normal(2, 6), torch.zeros(2))], {"a": ("a",)})
    with pytest.raises(MethodError, match=r"weights of shape \(3,\) do not fit inputs of shape \(2, 6\)"):
        collect(Shared(), [Batch(normal(2, 6), torch.ones(3))], {"a": ("a",)})
    with pytest.raises(MethodError, match=r"in torch\.float16"):
        collect(Shared(), [Batch(normal(2, 6))], {"a": ("a",)}, dtype=torch.float16)


def test_rows_of_weight_zero_are_not_read() -> None:
    x = normal(3, 6)
    broken = torch.cat([x, torch.full((1, 6), torch.nan)])
    found = collect(Shared(), [Batch(broken, torch.tensor([1.0, 1, 1, 0]))], {"a": ("a",)})
    assert torch.equal(found["a"].gram, collect(Shared(), [Batch(x)], {"a": ("a",)})["a"].gram)
    diverged = collect(Shared(), [Batch(broken)], {"a": ("a",)})
    with pytest.raises(DataError, match="not finite"):
        Basis.from_moments(diverged["a"])


def test_first_tokens_are_damped_on_either_side_of_padding() -> None:
    weights = torch.tensor([[1.0, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
    assert damped(weights, first=2, factor=0.5).tolist() == [[0.5, 0.5, 1, 0, 0], [0, 0, 0.5, 0.5, 1]]


def test_sink_hides_everything_by_raw_energy_but_not_by_unit_norm() -> None:
    layer = nn.Sequential(nn.Linear(64, 2))
    sink = torch.zeros(1, 64)
    sink[0, 7] = 3e3
    batch = Batch(torch.cat([sink, normal(200, 64)]))
    spaces = {"0": ("0",)}
    wide = Selection(energy=0.95, rank=64, rank_total=64)
    raw = Basis.from_moments(collect(layer, [batch], spaces, weighting="raw")["0"], rule=wide)
    assert raw.rank == 1
    unit = Basis.from_moments(collect(layer, [batch], spaces)["0"], rule=wide)
    assert unit.rank > 40
    narrow = Selection(rank=4)
    alone = Basis.from_moments(collect(layer, [batch], spaces)["0"], rule=narrow)
    assert float(alone.vectors[7].norm()) < 0.9
    basis = protect(layer, [batch], spaces, {}, request=0, selection=narrow)["0"]
    assert float(basis.vectors[7].norm()) > 0.999
    assert basis.rank == 5


def test_caps_follow_the_width_and_what_they_cost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    layer = nn.Sequential(nn.Linear(32, 2))
    spaces, bases = {"0": ("0",)}, {}
    with caplog.at_level(logging.WARNING):
        for request in range(5):
            bases = protect(layer, [Batch(normal(40, 32, seed=request))], spaces, bases, request=request)
    ranks = [int((bases["0"].requests == request).sum()) for request in range(5)]
    assert ranks == [4, 4, 4, 4, 0]
    assert bases["0"].free == 16
    assert "within the caps 1 of 1 spaces hold less" in caplog.messages[0]
    assert "the 99.0 % asked for, 0 only" in caplog.messages[0]
    assert sum("saturated: 0: as many" in message for message in caplog.messages) == 2
    assert Selection().columns(2048) == 1024
    caplog.clear()
    enough = Selection(rank=32, rank_total=32)
    protect(layer, [Batch(normal(3, 32))], spaces, {}, request=0, selection=enough)
    assert caplog.messages == []


def test_request_that_is_known_already_adds_nothing_and_is_recorded() -> None:
    tokens = normal(3, 20)
    every = Selection(1.0, rank=20, rank_total=20)
    basis = Basis.from_moments(moments(tokens), rule=every)
    again = basis.extended(moments(2 * tokens), request=1, rule=every)
    assert torch.equal(again.vectors, basis.vectors)
    assert again.records[:, 0].tolist() == [0, 1]
    assert again.held == pytest.approx(1.0)
    assert Basis.empty(3).held == 1.0


def test_nearly_all_of_a_gradient_blocked_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(5, 3, bias=False))
    tokens = normal(2, 5)
    basis = Basis.from_moments(moments(tokens), rule=Selection(1.0, rank=5, rank_total=5))
    guard = Guard(model, {"0": ("0",)}, {"0": basis})
    guard.project([None])
    assert guard.blocked() == {"0.weight": 0.0}
    guard.project([normal(3, 2) @ tokens])
    with caplog.at_level(logging.WARNING):
        assert guard.blocked()["0.weight"] == pytest.approx(1.0)
    assert "at least 90 % of the gradient is blocked in 0.weight" in caplog.text


def test_guard_holds_inside_an_autocast_region() -> None:
    model = nn.Sequential(nn.Linear(6, 3, bias=False))
    basis = Basis.from_moments(moments(normal(2, 6)), rule=Selection(1.0, rank=6))
    start = model[0].weight.detach().clone()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guard = Guard(model, {"0": ("0",)}, {"0": basis})
        assert torch.equal(model[0].weight, start)
        with torch.no_grad():
            model[0].weight += 1
        guard.restore()
    assert float(((model[0].weight.detach() - start) @ basis.vectors).abs().max()) < 1e-6


def test_bases_of_another_model_are_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 3, bias=False))
    spaces = {"0": ("0",), "1": ("1",)}
    six, five = (Basis.from_moments(moments(normal(2, d))) for d in (6, 5))
    with pytest.raises(MethodError, match="1 has 6 inputs, the basis of 1 has 5"):
        Guard(model, spaces, {"0": six, "1": five})
    with pytest.raises(MethodError, match="no basis for 1"):
        Guard(model, spaces, {"0": six})


def test_adapters_are_not_merged_into_coarse_weights() -> None:
    model = nn.Sequential(nn.Linear(6, 3)).to(torch.bfloat16)
    adapters = Adapters(model, ["0"], seed=0)
    assert model.get_parameter("0.lora_a").dtype == torch.float32
    assert model(normal(2, 6).bfloat16()).dtype == torch.bfloat16
    with pytest.raises(MethodError, match="0: convert the weights to float32"):
        adapters.merge()


def test_bases_are_plain_tensors_that_a_state_and_its_journal_hold(tmp_path: Path) -> None:
    bases = some_bases()
    params = to_params(bases)
    assert {name: tuple(t.shape) for name, t in params.items() if "x/y" in name} == {
        "cop/x/y/vectors": (8, 2),
        "cop/x/y/values": (2,),
        "cop/x/y/requests": (2,),
        "cop/x/y/records": (2, 5),
    }
    path = tmp_path / "state.safetensors"
    path.write_bytes(save_state(State({}, memory=params | {"other/z": torch.ones(1)}), {}))
    back = from_params(load_state(path)[0].memory)
    assert to_params(back).keys() == params.keys()
    assert all(torch.equal(tensor, params[name]) for name, tensor in to_params(back).items())


@pytest.mark.parametrize("values", [{"energy": 0.0}, {"energy": 1.1}, {"rank": 0}, {"rank_total": 0}])
def test_rules_that_are_none_cannot_be_built(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"selection\.{next(iter(values))}"):
        Selection(**values)
    with pytest.raises(ConfigError, match=r"sinks\.share"):
        Sinks(0.0)


def test_bases_that_are_none_cannot_be_built() -> None:
    basis = some_bases()["x/y"]
    with pytest.raises(ValueError, match="not orthonormal"):
        Basis(basis.vectors * 1.1, basis.values, basis.requests, basis.records)
    with pytest.raises(ValueError, match="not orthonormal"):
        Basis(basis.vectors * torch.nan, basis.values, basis.requests, basis.records)
    with pytest.raises(ValueError, match="shapes do not fit"):
        Basis(basis.vectors, basis.values[:1], basis.requests, basis.records)
    with pytest.raises(ValueError, match=r"moments are \(5, 5\), the basis has width 8"):
        basis.extended(moments(normal(2, 5)), request=2)
    with pytest.raises(ValueError, match="cannot be added"):
        moments(normal(2, 5)).plus(moments(normal(2, 6)))
