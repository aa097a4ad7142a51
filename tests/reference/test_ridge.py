"""Ridge heads in a federation against the normal equations, sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from of_three import Small
from torch import Tensor
from torch.nn import functional as F

from letheon import tree
from letheon.client import Client
from letheon.errors import ConfigError, MethodError, RoundError
from letheon.methods.base import fedavg
from letheon.methods.gram import GRAM, INVERSE, MOMENT, Statistics
from letheon.methods.ridge import FACTOR, Ridge, factors, total
from letheon.middleware import Excluding, Quorum
from letheon.phase import State, drive
from letheon.request import Request
from letheon.runtimes.inprocess import InProcess
from letheon.training import Local
from letheon.work import Reply

LOCAL = Local()


def features(small: Small, names: str, *, without: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Penultimate features with a constant, and labels, of some clients' samples, one at a time by hand."""
    module = small.task.model()
    module.load_state_dict({**small.start.params, **small.start.buffers})
    module.eval()
    rows, labels = [], []
    for name in names:
        data = small.clients[name]
        for x, y, i in zip(data.inputs, data.targets.tolist(), data.ids.tolist(), strict=True):
            if i in without:
                continue
            with torch.no_grad():
                hidden = F.relu(module.norm(module.fc1(x[None])))[0]  # type: ignore[operator]
            rows.append(torch.cat([hidden, torch.ones(1)]))
            labels.append(y)
    return torch.stack(rows).double(), torch.tensor(labels)


def solved(small: Small, names: str, penalty: float, *, without: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Weight and bias by the normal equations."""
    phi, labels = features(small, names, without=without)
    gram = sum(torch.outer(row, row) for row in phi)
    moment = sum(torch.outer(row, F.one_hot(y, 10).double()) for row, y in zip(phi, labels, strict=True))
    weights = torch.linalg.inv(gram + penalty * torch.eye(33, dtype=torch.float64)) @ moment
    return weights[:-1].T, weights[-1]


def trained(small: Small, method: Ridge) -> State:
    """Ridge's own Origin."""
    members = [Client(name, data, small.task) for name, data in small.clients.items()]
    with InProcess(members, workers=1) as runtime:
        return drive(method.origin(small.task, LOCAL, 5), Quorum(runtime), small.start, seed=1)


def assert_head(state: State, wanted: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(state.params["head.weight"], wanted[0].float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state.params["head.bias"], wanted[1].float(), rtol=1e-4, atol=1e-6)


def test_its_origin_is_ridge_regression_on_everyones_data(small: Small) -> None:
    origin = trained(small, Ridge(penalty=0.5))
    assert_head(origin, solved(small, "abc", 0.5))
    for name, old in (small.start.params | small.start.buffers).items():
        if not name.startswith("head"):
            assert torch.equal((origin.params | origin.buffers)[name], old)
    assert set(origin.memory) == {GRAM, MOMENT}


def test_deletion_gives_the_head_and_the_statistics_of_retraining_without(small: Small) -> None:
    method = Ridge(penalty=0.5)
    origin = trained(small, method)
    end = drive(method.phases(origin, small.task), small.tap, origin, seed=2)
    assert_head(end, solved(small, "ac", 0.5))
    phi, _ = features(small, "ac")
    torch.testing.assert_close(end.memory[GRAM], phi.T @ phi, rtol=1e-6, atol=1e-6)
    assert float(end.memory[MOMENT][-1].sum()) == pytest.approx(30)
    (works, replies), *_ = small.tap.calls
    assert [(work.part, work.kind) for work in works] == [("forget", "ridge-statistics")]
    assert [reply.client for reply in replies] == ["b"]
    assert replies[0].metrics["samples"] == 14
    assert replies[0].metrics["flops"] == 14 * (small.task.flops + 2 * 33 * 33 + 2 * 33 * 10)


def test_what_an_earlier_request_deleted_is_not_deleted_again(small: Small) -> None:
    method = Ridge(penalty=0.5)
    state = trained(small, method)
    label = int(small.clients["b"].targets[0])
    requests = [Request("class", label=label), Request("client", client="b")]
    members = [Client(name, data, small.task) for name, data in small.clients.items()]
    with InProcess(members, workers=1) as runtime:
        for request in requests:
            for member in members:
                member.admit(request)
            federation = Excluding(Quorum(runtime), request=request.id)
            state = drive(method.phases(state, small.task), federation, state, seed=2)
    ids = [
        i for d in small.clients.values() for i, y in zip(d.ids.tolist(), d.targets.tolist(), strict=True) if y == label
    ]
    assert_head(state, solved(small, "ac", 0.5, without=tuple(ids)))


def test_by_woodbury_the_head_is_the_same_and_holders_send_a_root_of_their_statistics(small: Small) -> None:
    method = Ridge(penalty=0.5, solver="woodbury")
    origin = trained(small, method)
    assert set(origin.memory) == {INVERSE, MOMENT}
    assert_head(origin, solved(small, "abc", 0.5))
    end = drive(method.phases(origin, small.task), small.tap, origin, seed=2)
    assert_head(end, solved(small, "ac", 0.5))
    phi, _ = features(small, "ac")
    left = torch.linalg.inv(phi.T @ phi + 0.5 * torch.eye(33, dtype=torch.float64))
    torch.testing.assert_close(end.memory[INVERSE], left, rtol=1e-6, atol=1e-7)
    (works, (reply,)), *_ = small.tap.calls
    assert [(work.part, work.kind) for work in works] == [("forget", "ridge-factor")]
    gone, _ = features(small, "b")
    factor = reply.tensors[FACTOR]
    torch.testing.assert_close(factor.T @ factor, gone.T @ gone, rtol=1e-6, atol=1e-6)
    across = factor @ factor.T  # its rows are axes of the features, not samples
    assert float((across - across.diag().diag()).abs().max()) < 1e-9 * float(across.trace())
    assert factor.numel() == 14 * 33 < 33 * 33


def test_both_solvers_delete_a_class_held_by_several_to_the_same_float64_head(small: Small) -> None:
    heads = []
    for solver in (None, "woodbury"):
        method = Ridge(solver=solver)  # type: ignore[arg-type]
        state = trained(small, method)
        members = [Client(name, data, small.task) for name, data in small.clients.items()]
        request = Request("class", label=int(small.clients["b"].targets[0]))
        with InProcess(members, workers=1) as runtime:
            for member in members:
                member.admit(request)
            federation = Excluding(Quorum(runtime), request=request.id)
            state = drive(method.phases(state, small.task), federation, state, seed=2)
        heads.append(method.kept(state, small.task).solve(method.penalty))
    assert float((heads[1] - heads[0]).norm() / heads[0].norm()) < 1e-9


def test_a_model_of_the_other_solver_and_factors_that_do_not_fit_are_refused(small: Small) -> None:
    origin = trained(small, Ridge())
    method = Ridge(solver="woodbury")
    with pytest.raises(MethodError, match="no statistics to delete from"):
        drive(method.phases(origin, small.task), small.tap, origin, seed=2)

    class Narrow:
        def __init__(self, **tensors: Tensor) -> None:
            self.tensors = tensors

        def run(self, *works: object) -> Iterator[Reply]:
            yield Reply(0, "b", {f"ridge/{name}": tensor for name, tensor in self.tensors.items()}, weight=1.0)

    kept = trained(small, method)
    moment = torch.zeros_like(kept.memory[MOMENT])
    for wrong in (Narrow(factor=torch.ones(1, 3), moment=moment), Narrow(factor=torch.ones(1, 33), moment=moment[:3])):
        with pytest.raises(RoundError, match="client b: its factor does not fit the statistics"):
            factors(wrong, kept)
    with pytest.raises(RoundError, match="client b: its factor does not fit the statistics"):
        factors(Narrow(moment=moment), kept)


def test_a_model_that_is_not_its_own_or_was_trained_since_is_refused(small: Small) -> None:
    method = Ridge()
    with pytest.raises(MethodError, match="no statistics to delete from"):
        drive(method.phases(small.start, small.task), small.tap, small.start, seed=2)
    origin = trained(small, method)
    later = fedavg(Local(lr=0.1))(small.tap, origin, 0)
    assert tree.digest(later.memory) == tree.digest(origin.memory)
    with pytest.raises(MethodError, match="was trained since"):
        drive(method.phases(later, small.task), small.tap, later, seed=2)


def test_a_sum_over_nothing_and_statistics_that_do_not_fit_are_refused() -> None:
    start = Statistics.none(2, 3)
    good = {GRAM: torch.ones(3, 3, dtype=torch.float64), MOMENT: torch.ones(3, 3, dtype=torch.float64)}
    with pytest.raises(RoundError, match="no usable reply"):
        total([], start)
    with pytest.raises(RoundError, match="client a: out of order"):
        total([Reply(0, "a", {}, error="out of order")], start)
    with pytest.raises(RoundError, match="client a: its statistics do not fit"):
        total([Reply(0, "a", good | {GRAM: torch.ones(2, 2, dtype=torch.float64)}, weight=1.0)], start)
    found = total([replace(Reply(0, "a", good), weight=weight) for weight in (2.0, 0.0, 5.0)], start)
    assert float(found.gram[0, 0]) == 2.0  # a sum, not a mean: weight 0 is out, others count once


def test_a_penalty_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ridge\.penalty"):
        Ridge(penalty=0.0)
