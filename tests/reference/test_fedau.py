"""FedAU: wrong labels, the copy of the last layer against a slow loop, the blend, and the heads trained beforehand."""

from __future__ import annotations

import pytest
import torch
from of_three import Small
from torch import Tensor, nn
from torch.nn import functional as F

from letheon import tree
from letheon.client import Client
from letheon.data import Data
from letheon.errors import ConfigError, DataError, MethodError
from letheon.methods.base import fedavg
from letheon.methods.fedau import DRIFT, FedAU, FedAUInTraining, auxiliary_work, wrong_labels
from letheon.middleware import Excluding, Quorum
from letheon.phase import Phase, State, drive, seed_of
from letheon.request import Request
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.base import buffers_of, params_of
from letheon.testing.scene import Tap
from letheon.training import Local, batches
from letheon.tree import Params

LOCAL = Local(lr=0.1, momentum=0.9, batch_size=4)
HEAD = {"head.weight", "head.bias"}


def digits(n: int) -> Data:
    return Data(torch.zeros(n, 1), torch.arange(n) % 10, torch.arange(n) * 7)


def slow_copy(small: Small, state: State, client: str, *, labels: Tensor, local: Local, seed: int) -> Params:
    """The last layer trained alone by torch.optim, on features of the frozen model."""
    module, data = small.task.model(), small.clients[client]
    module.load_state_dict({**state.params, **state.buffers})
    module.eval()
    features: list[Tensor] = []
    head = module.get_submodule("head")
    head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].detach()))
    with torch.no_grad():
        module(data.inputs)
    copy = nn.Linear(head.in_features, head.out_features)  # type: ignore[arg-type]
    copy.load_state_dict(head.state_dict())
    optimizer = torch.optim.SGD(copy.parameters(), lr=local.lr, momentum=local.momentum)
    generator = torch.Generator().manual_seed(seed_of(f"{seed}|{client}"))
    for index in batches(len(data), local, generator):
        optimizer.zero_grad()
        F.cross_entropy(copy(features[0][index]), labels[index]).backward()
        optimizer.step()
    return {f"head.{name}": parameter.detach() for name, parameter in copy.named_parameters()}


def test_wrong_labels_are_never_right_and_uniform_over_the_others() -> None:
    data = digits(5000)
    labels = wrong_labels(data, 10, seed=3)
    assert labels.dtype == data.targets.dtype
    assert not bool((labels == data.targets).any())
    for target in range(10):
        counts = torch.bincount(labels[data.targets == target], minlength=10)
        assert int(counts[target]) == 0
        assert bool(((counts > 25) | (torch.arange(10) == target)).all())  # 500 draws: 55.6 each, deviation 7


def test_a_wrong_label_belongs_to_the_sample_and_the_seed_alone() -> None:
    data = digits(200)
    labels = wrong_labels(data, 10, seed=3)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    assert torch.equal(wrong_labels(data.take(order), 10, seed=3), labels[order])
    assert not torch.equal(wrong_labels(data, 10, seed=4), labels)


def test_labels_that_are_no_classes_are_refused() -> None:
    data = Data(torch.zeros(4, 1), torch.zeros(4, 3, dtype=torch.int64), torch.arange(4))
    with pytest.raises(DataError, match="one class label for each sample"):
        wrong_labels(data, 10, seed=0)


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_copy_is_trained_alone_on_frozen_features_and_blended(small: Small, rounds: int) -> None:
    local = Local(lr=0.2, batch_size=4, epochs=3)
    method = FedAU(alpha=0.7, auxiliary=local, rounds=rounds, restore_rounds=0, label_seed=5, local=LOCAL)
    end = drive(method.phases(small.start, small.task), small.tap, small.start, seed=9)
    labels = wrong_labels(small.clients["b"], 10, seed=5)
    copy, state = {}, small.start
    for works, replies in small.tap.calls:
        assert [reply.client for reply in replies] == ["b"]
        copy = slow_copy(small, state, "b", labels=labels, local=local, seed=works[0].seed)
        state = State(small.start.params | copy, small.start.buffers)  # the next round goes on from there
    for name, tensor in small.start.params.items():
        if name in HEAD:
            wanted = 0.3 * tensor + 0.7 * copy[name]
            torch.testing.assert_close(end.params[name], wanted, rtol=1e-4, atol=1e-5)
            assert not torch.equal(end.params[name], tensor)
        else:
            assert torch.equal(end.params[name], tensor)
    assert tree.digest(end.buffers) == tree.digest(small.start.buffers)


def test_for_a_class_the_copy_learns_the_class_and_is_subtracted(small: Small) -> None:
    request = Request("class", label=3)
    members = [Client(name, data, small.task) for name, data in small.clients.items()]
    for member in members:
        member.admit(request)
    local = Local(lr=0.2, batch_size=8)
    method = FedAU(factor=0.5, auxiliary=local, restore_rounds=0, local=LOCAL)
    with InProcess(members, workers=1) as runtime:
        tap = Tap(Excluding(Quorum(runtime), request=request.id))
        end = drive(method.phases(small.start, small.task), tap, small.start, seed=9)
    ((works, replies),) = tap.calls
    whole = {name: data.take(data.targets == 3) for name, data in small.clients.items()}
    weights = {name: len(data) for name, data in whole.items() if len(data)}
    assert {reply.client: reply.weight for reply in replies} == weights
    mean = {name: torch.zeros_like(small.start.params[name], dtype=torch.float64) for name in HEAD}
    for name, weight in weights.items():
        part = Small(small.task, whole, request, small.start, tap)
        copy = slow_copy(part, small.start, name, labels=whole[name].targets, local=local, seed=works[0].seed)
        for tensor in HEAD:
            mean[tensor] += weight / sum(weights.values()) * copy[tensor].double()
    for name, before in small.start.params.items():
        wanted = before - 0.5 * mean[name].float() if name in HEAD else before
        torch.testing.assert_close(end.params[name], wanted, rtol=1e-4, atol=1e-6)


def trained(small: Small, method: FedAUInTraining | None, rounds: int) -> tuple[State, Tap, list[State]]:
    """Before any request; without a method, by FedAvg alone."""
    members = [Client(name, data, small.task) for name, data in small.clients.items()]
    seen, step = [small.start], fedavg(LOCAL, "all")
    with InProcess(members, workers=1) as runtime:
        tap = Tap(Quorum(runtime))
        phase = Phase("train", method.training(step) if method else step, rounds)
        end = drive([phase], tap, small.start, seed=9, observers=[lambda phase, done, state: seen.append(state)])
    return end, tap, seen


def test_heads_trained_beforehand_add_up_their_drifts_and_leave_the_model_alone(small: Small) -> None:
    local = Local(lr=0.2, batch_size=4)
    end, tap, seen = trained(small, FedAUInTraining(carry=0.3, auxiliary=local, label_seed=5, local=LOCAL), rounds=3)
    plain, _, _ = trained(small, None, rounds=3)
    assert tree.digest(end.params | end.buffers) == tree.digest(plain.params | plain.buffers)
    assert {name.removeprefix(DRIFT).partition("/")[0] for name in end.memory} == {"a", "b", "c"}
    recorded = [works[0] for works, _ in tap.calls if works[0].kind == "auxiliary"]
    for client in "abc":
        labels = wrong_labels(small.clients[client], 10, seed=5)
        drift = {name: torch.zeros_like(small.start.params[name]) for name in HEAD}
        for state, work in zip(seen, recorded, strict=False):
            copy = slow_copy(small, state, client, labels=labels, local=local, seed=work.seed)
            drift = {name: 0.3 * drift[name] + copy[name] - state.params[name] for name in HEAD}
        for name in HEAD:
            torch.testing.assert_close(end.memory[f"{DRIFT}{client}/{name}"], drift[name], rtol=1e-3, atol=2e-5)


def test_the_drift_of_who_leaves_is_blended_and_all_drifts_are_dropped(small: Small) -> None:
    method = FedAUInTraining(alpha=0.7, restore_rounds=0, local=LOCAL)
    start, _, _ = trained(small, method, rounds=2)
    foreign = {"other/kept": torch.ones(2)}
    start = State(start.params, start.buffers, start.memory | foreign)
    end = drive(method.phases(start, small.task), small.tap, start, seed=9)
    for name, tensor in start.params.items():
        wanted = tensor + 0.7 * start.memory[f"{DRIFT}b/{name}"] if name in HEAD else tensor
        torch.testing.assert_close(end.params[name], wanted, rtol=1e-6, atol=1e-7)
    assert list(end.memory) == ["other/kept"]


def test_without_heads_trained_beforehand_the_method_refuses(small: Small) -> None:
    with pytest.raises(MethodError, match="no head was trained for who is to be forgotten; train the model with this"):
        drive(FedAUInTraining(local=LOCAL).phases(small.start, small.task), small.tap, small.start, seed=9)


def test_a_head_that_is_not_the_last_layer_is_refused_by_the_client(small: Small) -> None:
    wrong = {name: tensor for name, tensor in small.start.params.items() if name.startswith("fc1.")}
    work = auxiliary_work(small.start, "all", LOCAL, start=wrong, labels=0)
    reply = Client("a", small.clients["a"], small.task).execute(work, small.task.model())
    assert "the last layer is ['head.bias', 'head.weight'], but was sent as ['fc1" in reply.error


def test_the_work_costs_one_pass_and_the_copys_training(small: Small) -> None:
    head = {name: small.start.params[name] for name in ("head.weight", "head.bias")}
    work = auxiliary_work(small.start, "all", Local(batch_size=4, epochs=3), start=head, labels=0)
    module = small.task.model()
    reply = Client("a", small.clients["a"], small.task).execute(work, module)
    assert reply.metrics["samples"] == 10
    assert reply.metrics["flops"] == 10 * small.task.flops + 3 * 10 * 6 * tree.count(head)
    assert {n for n, t in params_of(module).items() if not torch.equal(t, small.start.params[n])} == HEAD
    assert tree.digest(buffers_of(module)) == tree.digest(small.start.buffers)


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"alpha": 0.0}, {"alpha": 1.1}, {"factor": 0.0}, {"rounds": 0}, {"restore_rounds": -1}):
        with pytest.raises(ConfigError, match="fedau"):
            FedAU(**wrong)  # type: ignore[arg-type]
    for wrong in ({"alpha": 0.0}, {"carry": 1.0}, {"restore_rounds": -1}):
        with pytest.raises(ConfigError, match="fedau-in-training"):
            FedAUInTraining(**wrong)


def test_the_seed_of_the_labels_is_the_experiments_unless_given() -> None:
    for method in (FedAU, FedAUInTraining):
        assert method().configured(LOCAL, 5, 12).label_seed == 12
        assert method(label_seed=0).configured(LOCAL, 5, 12).label_seed == 0
