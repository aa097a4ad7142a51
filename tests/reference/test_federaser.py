"""FedEraser: what it records and how it replays, against slow loops written from the equations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from of_three import Small
from torch.nn import functional as F

from letheon import tree
from letheon.client import KINDS, Client
from letheon.errors import ConfigError, MethodError
from letheon.methods.base import fedavg
from letheon.methods.federaser import FIRST, LENGTH, FedEraser, first_updates, lengths
from letheon.middleware import Excluding
from letheon.phase import Phase, State, drive, seed_of
from letheon.request import Request
from letheon.runtimes.inprocess import InProcess
from letheon.tasks.base import buffers_of
from letheon.testing.scene import Tap
from letheon.training import Local, batches
from letheon.tree import Params
from letheon.work import BufferMean, Reply, Work

LOCAL = Local(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=4, decay=0.9)
ROUNDS = 5
METHOD = FedEraser(local=LOCAL).configured(LOCAL, ROUNDS, seed=3)
CALIBRATED = replace(METHOD, first="calibrated")


def trained(small: Small, method: FedEraser) -> tuple[State, Tap, list[State]]:
    """FedAvg on all data with the hook; what was asked and answered; the state after each round."""
    clients, states = [Client(name, data, small.task) for name, data in small.clients.items()], list[State]()
    with InProcess(clients, workers=1) as runtime:
        tap = Tap(runtime)
        phase = Phase("train", method.training(fedavg(LOCAL, "all")), ROUNDS)
        end = drive([phase], tap, small.start, seed=1, observers=[lambda name, done, state: states.append(state)])
    return end, tap, states


def unlearned(small: Small, method: FedEraser, start: State) -> State:
    return drive(method.phases(start, small.task), small.tap, start, seed=9)


def slow_norm(update: Params) -> float:
    return math.sqrt(math.fsum(x * x for tensor in update.values() for x in tensor.double().flatten().tolist()))


def updates_of(tap: Tap, call: int) -> dict[str, Params]:
    return {reply.client: reply.tensors for reply in tap.calls[call][1]}


def test_lengths_of_every_second_round_and_the_first_updates_are_recorded(small: Small) -> None:
    end, tap, _ = trained(small, METHOD)
    first, third = updates_of(tap, 0), updates_of(tap, 2)
    wanted = {f"{LENGTH}000002/{client}" for client in "abc"}
    wanted |= {f"{FIRST}{name}/{client}" for name in small.start.params for client in "abc"}
    assert end.memory.keys() == wanted  # ⌊5/2⌋ = 2 rounds: 0 and 2
    for client in "abc":
        assert lengths(end.memory, 2)[client] == pytest.approx(slow_norm(third[client]), rel=1e-12)
        assert tree.digest(first_updates(end.memory)[client]) == tree.digest(first[client])


def test_calibrating_the_first_round_too_spares_the_copies_of_the_model(small: Small) -> None:
    end, tap, _ = trained(small, CALIBRATED)
    assert end.memory.keys() == {f"{LENGTH}{t:06d}/{client}" for t in (0, 2) for client in "abc"}
    assert lengths(end.memory, 0) == pytest.approx({c: slow_norm(u) for c, u in updates_of(tap, 0).items()})


def test_recording_changes_nothing_and_only_appends(small: Small) -> None:
    end, tap, states = trained(small, METHOD)
    plain, other, _ = trained(small, replace(METHOD, interval=1000, rounds=1, first="calibrated"))
    assert tree.digest(end.params | end.buffers) == tree.digest(plain.params | plain.buffers)
    assert [works[0].seed for works, _ in tap.calls] == [works[0].seed for works, _ in other.calls]
    for before, after in pairwise(states):
        assert all(after.memory[name] is tensor for name, tensor in before.memory.items())


def test_unusable_replies_are_not_recorded(small: Small) -> None:
    update = {n: torch.ones_like(p) for n, p in small.start.params.items()}

    class Three:
        def run(self, *works: Work) -> Iterator[Reply]:
            yield Reply(0, "a", update, small.start.buffers, weight=1.0)
            yield Reply(0, "b", update, small.start.buffers, weight=0.0)

    step = METHOD.training(fedavg(LOCAL, "all"))
    assert lengths(step(Three(), small.start, 2).memory, 2).keys() == {"a"}


def slow_calibration(small: Small, client: str, start: State, *, lr: float, seed: int) -> tuple[Params, Params]:
    """Half a round of one client's training by torch.optim: the update and the buffers."""
    module, data = small.task.model(), small.clients[client]
    module.load_state_dict({**start.params, **start.buffers})
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed_of(f"{seed}|{client}"))
    half = {"a": 2, "c": 2}[client]  # of 3 steps on 10 samples, rounded, and of 5 on 20
    for index in list(batches(len(data), LOCAL, generator, smallest=2))[:half]:
        optimizer.zero_grad()
        F.cross_entropy(module(data.inputs[index]), data.targets[index]).backward()
        optimizer.step()
    return tree.sub(tree.clone(dict(module.named_parameters())), start.params), buffers_of(module)


def moved(state: State, updates: dict[str, Params], sizes: dict[str, int]) -> State:
    """w + Σ q_k U_k, tensor by tensor."""
    total = sum(sizes[client] for client in updates)
    params = {}
    for name, tensor in state.params.items():
        step = sum(sizes[client] / total * update[name].double() for client, update in updates.items())
        params[name] = (tensor.double() + step).to(tensor.dtype)
    return replace(state, params=params)


SIZES = {"a": 10, "c": 20}


@pytest.mark.parametrize("method", [METHOD, CALIBRATED, replace(METHOD, interval=1, rounds=4)], ids=repr)
def test_a_replay_rescales_each_retained_clients_new_step_to_its_old_length(small: Small, method: FedEraser) -> None:
    start, training, _ = trained(small, method)
    end = unlearned(small, method, start)
    state = small.task.init(3)
    if method.first == "stored":
        first = updates_of(training, 0)
        state = moved(state, {client: first[client] for client in SIZES}, SIZES)
    asked = [works[0] for works, _ in small.tap.calls if works[0].kind == "calibrate"]
    assert len(asked) == len(method.to_calibrate)
    for t, work in zip(method.to_calibrate, asked, strict=True):
        assert work.options["lr"] == pytest.approx(0.1 * 0.9**t)
        buffers, updates = BufferMean(), {}
        for client, size in SIZES.items():
            new, own = slow_calibration(small, client, state, lr=0.1 * 0.9**t, seed=work.seed)
            old = slow_norm(updates_of(training, t)[client])
            updates[client] = {name: tensor * (old / slow_norm(new)) for name, tensor in new.items()}
            buffers.push(own, size)
        state = replace(moved(state, updates, SIZES), buffers=buffers.mean())
    for name, tensor in (end.params | end.buffers).items():
        torch.testing.assert_close(tensor, (state.params | state.buffers)[name], rtol=1e-3, atol=1e-4)


class Echo:
    """Replies a multiple of what each client sent in training: new directions are the old ones."""

    def __init__(self, small: Small, tap: Tap, factors: dict[str, float]) -> None:
        self._small = small
        self._tap = tap
        self._factors = factors
        self._round = 0

    def run(self, *works: Work) -> Iterator[Reply]:
        (work,) = works
        if work.kind == "evaluate":
            yield from (Reply(0, client, {}, weight=size, metrics={}) for client, size in SIZES.items())
            return
        self._round += 2
        for client, size in SIZES.items():
            update = tree.scale(updates_of(self._tap, self._round)[client], self._factors[client])
            yield Reply(0, client, update, self._small.start.buffers, weight=size)


def test_in_the_old_directions_it_accumulates_the_old_updates(small: Small) -> None:
    start, tap, _ = trained(small, METHOD)
    end = drive(METHOD.phases(start, small.task), Echo(small, tap, {"a": 0.3, "c": 7.0}), start, seed=9)
    state = small.task.init(3)
    for call in (0, 2):
        state = moved(state, {client: updates_of(tap, call)[client] for client in SIZES}, SIZES)
    for name, tensor in end.params.items():
        torch.testing.assert_close(tensor, state.params[name], rtol=1e-5, atol=1e-6)


def test_a_client_that_does_not_move_takes_no_step_and_breaks_nothing(small: Small) -> None:
    start, tap, _ = trained(small, METHOD)
    end = drive(METHOD.phases(start, small.task), Echo(small, tap, {"a": 0.0, "c": 1.0}), start, seed=9)
    state = moved(small.task.init(3), {client: updates_of(tap, 0)[client] for client in SIZES}, SIZES)
    still = {"a": tree.zeros_like(state.params), "c": updates_of(tap, 2)["c"]}
    state = moved(state, still, SIZES)
    for name, tensor in end.params.items():
        torch.testing.assert_close(tensor, state.params[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [METHOD, CALIBRATED], ids=repr)
def test_the_model_that_knew_the_forgotten_data_has_no_influence(small: Small, method: FedEraser) -> None:
    start, _, _ = trained(small, method)
    other = replace(start, params=tree.scale(start.params, -3.0), buffers={n: b + 1 for n, b in start.buffers.items()})
    ends = [unlearned(small, method, each) for each in (start, other)]
    assert tree.digest(ends[0].params | ends[0].buffers) == tree.digest(ends[1].params | ends[1].buffers)


def test_nothing_of_the_forgotten_client_outlives_the_first_round_and_the_rest_is_left_alone(small: Small) -> None:
    start, _, _ = trained(small, METHOD)
    start = replace(start, memory=start.memory | {"other/b": torch.ones(2)})
    states = list[State]()
    drive(METHOD.phases(start, small.task), small.tap, start, seed=9, observers=[lambda *a: states.append(a[2])])
    gone = {f"{LENGTH}000002/b", *(f"{FIRST}{name}/b" for name in start.params)}
    for state in states:
        assert state.memory.keys() == start.memory.keys() - gone
        assert all(state.memory[name] is start.memory[name] for name in state.memory)


def test_the_history_that_is_left_serves_the_next_request_as_if_both_had_come_together(small: Small) -> None:
    def forget(clients: Sequence[str], start: State) -> State:
        members = [Client(name, data, small.task) for name, data in small.clients.items()]
        for member in members:
            for client in clients:
                member.admit(Request("client", client=client))
        with InProcess(members, workers=1) as runtime:
            federation = Excluding(runtime, request=Request("client", client=clients[-1]).id)
            return drive(METHOD.phases(start, small.task), federation, start, seed=9)

    start, _, _ = trained(small, METHOD)
    one_by_one = forget(("b", "c"), forget(("b",), start))
    together = forget(("b", "c"), start)
    for part in ("params", "buffers", "memory"):
        assert tree.digest(getattr(one_by_one, part)) == tree.digest(getattr(together, part))


def test_a_client_of_which_a_round_has_no_record_takes_no_part_in_it(small: Small) -> None:
    memory = {n: t for n, t in trained(small, METHOD)[0].memory.items() if n != f"{LENGTH}000002/a"}
    end = unlearned(small, METHOD, replace(small.start, memory=memory))
    calls = {works[0].kind: (works[0], replies) for works, replies in small.tap.calls}
    assert calls["calibrate"][0].clients == ("c",)
    assert [reply.client for reply in calls["calibrate"][1]] == ["c"]
    assert [reply.client for reply in calls["evaluate"][1]] == ["a", "c"]  # it is retained: its first step counts
    assert f"{FIRST}fc1.weight/a" in end.memory


@pytest.mark.parametrize("others", [(), (LENGTH,)])  # who never took part, or in the later round only
def test_a_round_of_the_forgotten_client_alone_is_no_step(others: tuple[str, ...], small: Small) -> None:
    memory = {n: t for n, t in trained(small, METHOD)[0].memory.items() if n.endswith("/b") or n.startswith(others)}
    end = unlearned(small, METHOD, replace(small.start, memory=memory)).params
    assert (tree.digest(end) != tree.digest(small.task.init(3).params)) == bool(others)


def test_a_client_without_a_first_record_joins_later(small: Small) -> None:
    start, tap, _ = trained(small, METHOD)
    memory = {n: t for n, t in start.memory.items() if not (n.startswith(FIRST) and n.endswith("/a"))}
    unlearned(small, METHOD, replace(start, memory=memory))
    (work, replies) = next((works[0], got) for works, got in small.tap.calls if works[0].kind == "calibrate")
    begin = moved(small.task.init(3), {"c": updates_of(tap, 0)["c"]}, SIZES)
    assert [reply.client for reply in replies] == ["a", "c"]
    for name, tensor in work.params.items():
        torch.testing.assert_close(tensor, begin.params[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("recorded", [None, replace(METHOD, interval=3, rounds=1), replace(METHOD, rounds=1)])
def test_without_its_history_it_refuses_before_it_asks_anybody(small: Small, recorded: FedEraser | None) -> None:
    start = trained(small, recorded)[0] if recorded else small.start
    with pytest.raises(MethodError, match="no record of round"):
        unlearned(small, METHOD, start)
    assert small.tap.calls == []


@pytest.mark.parametrize(("train_rounds", "interval", "kept", "calibrated"), [
    (5, 2, [0, 2], [2]),
    (6, 2, [0, 2, 4], [2, 4]),
    (3, 1, [0, 1, 2], [1, 2]),
    (7, 3, [0, 3], [3]),
    (1, 2, [0], [0]),  # one kept round is calibrated: nothing else would be asked
])
def test_as_many_rounds_are_kept_as_go_into_the_training_run(
    train_rounds: int, interval: int, kept: list[int], calibrated: list[int]
) -> None:
    method = FedEraser(interval=interval).configured(LOCAL, train_rounds, seed=0)
    assert list(method.kept) == kept
    assert list(method.to_calibrate) == calibrated
    assert list(replace(method, first="calibrated").to_calibrate) == kept


@pytest.mark.parametrize(("local", "ratio", "samples"), [
    (Local(batch_size=4), 0.5, 8),  # round(1.5) = 2 of the 3 steps on 10 samples
    (Local(batch_size=4), 1.0, 10),
    (Local(batch_size=4), 0.01, 4),  # at least one step
    (Local(batch_size=4, epochs=3), 0.5, 14),  # round(4.5) = 4 of 9 steps: an epoch and one step
    (Local(batch_size=4, steps=6), 0.5, 10),
])
def test_a_calibration_costs_its_share_of_the_local_work(
    small: Small, local: Local, ratio: float, samples: int
) -> None:
    work = Work("calibrate", small.start.params, small.start.buffers, options=local.options(0) | {"ratio": ratio})
    cost = KINDS["calibrate"].cost(small.task, work, 10)
    assert cost == {"samples": samples, "flops": 3.0 * small.task.flops * samples}
    reply = Client("a", small.clients["a"], small.task).execute(work, small.task.model())
    tracked = reply.buffers.get("norm.num_batches_tracked")
    assert reply.error == ""
    assert reply.metrics["samples"] == samples
    if tracked is not None:
        assert int(tracked) == max(1, round(ratio * local.count(10)))


@pytest.mark.parametrize(("field", "value"), [
    ("interval", 0), ("ratio", 0.0), ("ratio", 1.5), ("ratio", math.nan), ("rounds", 0), ("first", "kept"),
])
def test_settings_out_of_range_are_refused(field: str, value: float | str) -> None:
    with pytest.raises(ConfigError, match=f"federaser.{field}"):
        FedEraser(**{field: value})  # type: ignore[arg-type]
