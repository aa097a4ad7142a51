"""ALKN as a method: what it does to a model that has learnt, request after request, and what it keeps of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from letheon import config, tree
from letheon.client import Client, load
from letheon.errors import ConfigError, MethodError, RoundError
from letheon.methods.alkn import ALKN, USED
from letheon.methods.ascent import GA
from letheon.methods.base import Method, fedavg
from letheon.middleware import Excluding, Metered, Quorum
from letheon.phase import Phase, State, drive
from letheon.request import Request
from letheon.runtimes.alone import Alone, threads
from letheon.runtimes.inprocess import InProcess
from letheon.runtimes.records import Order, pack_order, pack_replies, unpack_order, unpack_replies
from letheon.stream.experiment import Stream
from letheon.stream.life import run
from letheon.stream_plan import plan
from letheon.text.descent import Recipe, mean_loss
from letheon.text.encoding import PAD
from letheon.text.language import LanguageModel
from letheon.text.negation import Localization, crowded, unpacked
from letheon.training import Local
from text_toys import Toys

TASK = Toys()
TUNING = Recipe(lr=1e-3, epochs=3, batch_size=2)


@pytest.fixture(autouse=True, scope="module")
def one_core() -> Iterator[None]:
    with threads(1):
        yield


class Holder:
    """The holder of all texts, who admits one request after another."""

    def __init__(self, task: Toys = TASK) -> None:
        self.task, self.client, self.module = task, Client("holder", task.train(), task), task.prototype()

    def serve(self, method: Method, state: State, number: int) -> State:
        request = Request("samples", samples=tuple(self.task.requests()[number]))
        self.client.admit(request)
        self.meter = Metered(Alone(self.client, self.module))
        federation = Excluding(Quorum(self.meter), request=request.id)
        observers = [self.meter.observe]
        return drive(method.phases(state, self.task), federation, state, seed=number, observers=observers)

    def loss(self, state: State, ids: Sequence[int]) -> float:
        load(self.module, state.params, state.buffers)
        data = self.client.data
        return mean_loss(self.module, data.take(torch.isin(data.ids, torch.tensor(ids))))


@pytest.fixture(scope="module")
def learnt() -> State:
    """A model that has learnt all twelve people."""
    local = Local(optimizer="adamw", lr=3e-3, batch_size=4, epochs=40)
    with threads(1):
        holder = Holder()
        phases = [Phase("train", fedavg(local, "all"))]
        return drive(phases, Alone(holder.client, holder.module), TASK.init(2), seed=2)


def masks(state: State) -> dict[str, Tensor]:
    return {name: unpacked(state.memory[USED + name], tensor.shape) for name, tensor in state.params.items()}


def test_the_model_goes_the_opposite_way_of_the_tuning_and_c_says_how_far(learnt: State) -> None:
    ends = {c: Holder().serve(ALKN(tuning=TUNING, scale=c), learnt, 0) for c in (0.0, 0.5, 1.0)}
    assert all(torch.equal(ends[0.0].params[n], learnt.params[n]) for n in learnt.params)
    tuned = Holder()
    tuned.serve(ALKN(tuning=TUNING), learnt, 0)
    for name, parameter in tuned.module.named_parameters():  # the holder's copy is the tuned one
        way = parameter.detach() - learnt.params[name]
        for c, end in ends.items():
            assert torch.allclose(end.params[name], learnt.params[name] - c * way, atol=1e-7)
    assert tuned.loss(learnt, TASK.requests()[0]) < tuned.loss(ends[1.0], TASK.requests()[0])
    assert tree.digest(ends[0.0].memory) == tree.digest(ends[1.0].memory)  # what the tuning used, however far it counts


def test_it_forgets_and_costs_the_retained_texts_far_less(learnt: State) -> None:
    tuning, rises = Recipe(lr=1e-3, epochs=40, batch_size=2), {}
    for keeps in ("harmless", "aligned"):
        holder = Holder()
        end = holder.serve(ALKN(tuning=tuning, localization=Localization(keeps=keeps)), learnt, 0)
        sets = (TASK.requests()[0], range(8))
        rises[keeps] = [holder.loss(end, ids) - holder.loss(learnt, ids) for ids in sets]
    forgot, harmed = rises["harmless"]
    assert forgot > 0.15
    assert forgot > 2.5 * harmed
    assert harmed < rises["aligned"][1]


def test_the_second_request_adds_to_the_masks_shuns_what_was_used_and_slows_what_is_crowded(learnt: State) -> None:
    method = ALKN(tuning=TUNING)
    holder = Holder()
    first = holder.serve(method, learnt, 0)
    second = holder.serve(method, first, 1)
    before, after = masks(first), masks(second)
    assert all(bool((after[n] | ~before[n]).all()) for n in before)  # nothing is dropped
    added = {n: after[n] & ~before[n] for n in before}
    assert sum(int(mask.sum()) for mask in added.values()) > 0
    for name, mask in before.items():
        assert bool(mask.any())
        assert bool((first.params[name] != learnt.params[name])[mask].all())  # what is called used has moved
    some = sum(int((first.params[n] != learnt.params[n]).sum()) for n in before)
    assert sum(int(mask.sum()) for mask in before.values()) < 0.95 * some  # others moved in earlier steps only
    for name in before:
        assert bool((second.params[name] != first.params[name])[added[name]].all())

    def moved(localization: Localization, memory: tree.Params) -> dict[str, Tensor]:
        other = Holder()
        other.serve(method, learnt, 0)
        end = other.serve(replace(method, localization=localization), replace(first, memory=memory), 1)
        return {n: (end.params[n] - first.params[n]).abs() for n in end.params}

    plain = moved(Localization(penalty=0.0, slowed=1.0), first.memory)
    shy = moved(Localization(penalty=5.0, slowed=1.0), first.memory)
    on_used = [sum(float(way[n][before[n]].sum()) for n in before) for way in (plain, shy)]
    assert on_used[1] < 0.7 * on_used[0]
    slow = crowded(before, Localization())
    assert 0 < len(slow) < len(before)
    slowed = moved(Localization(penalty=0.0), first.memory)
    for name in before:
        ratio = float(slowed[name].max() / plain[name].max())
        assert ratio == pytest.approx(0.1, abs=0.02) if name in slow else ratio > 0.5, name


class Untied(Toys):
    """An output layer apart from the embedding, of which a text meets some rows only."""

    def model(self) -> LanguageModel:
        module = super().model()
        head = module.lm.get_submodule("lm_head")
        head.weight = nn.Parameter(head.weight.detach().clone())  # type: ignore[assignment]
        return module


def test_rows_that_no_retained_text_meets_may_move_and_rows_that_no_text_meets_are_not_used() -> None:
    task = Untied()
    holder, start = Holder(task), task.init(0)
    end = holder.serve(ALKN(tuning=TUNING), start, 0)
    name = "lm.model.embed_tokens.weight"
    rows = {part: torch.zeros(len(start.params[name])).bool() for part in ("forget", "retain")}
    for part, wanted in (("forget", range(8, 10)), ("retain", range(8))):
        inputs = holder.client.data.inputs[torch.isin(holder.client.data.ids, torch.tensor(list(wanted)))]
        rows[part][inputs[inputs != PAD]] = True
    only = rows["forget"] & ~rows["retain"]
    assert bool(only.any())
    moved, used = end.params[name] != start.params[name], masks(end)[name]
    assert bool(moved[only].any(1).all())
    assert bool(used[only].any(1).all())
    assert not bool(used[~rows["forget"]].any())


def test_memory_is_one_bit_for_each_entry_and_neither_texts_nor_gradients(learnt: State) -> None:
    state = Holder().serve(ALKN(tuning=TUNING), learnt, 0)
    assert state.memory.keys() == {USED + name for name in learnt.params}
    assert {tensor.dtype for tensor in state.memory.values()} == {torch.uint8}
    assert tree.n_bytes(state.memory) == sum(-(-t.numel() // 8) for t in learnt.params.values())
    foreign = {"ga/cop/x": torch.ones(2)}
    both = Holder().serve(ALKN(tuning=TUNING), replace(learnt, memory=foreign), 0)
    assert torch.equal(both.memory["ga/cop/x"], foreign["ga/cop/x"])
    assert tree.digest({n: t for n, t in both.memory.items() if n not in foreign}) == tree.digest(state.memory)


def test_every_text_that_passes_is_counted(learnt: State) -> None:
    holder, passed = Holder(), list[int]()
    holder.module.register_forward_hook(lambda _, inputs, __: passed.append(len(inputs[0])))
    holder.serve(ALKN(tuning=TUNING), learnt, 0)
    (cost,) = holder.meter.phases
    assert cost.samples == sum(passed) == 2 + 2 + 3 * 2
    assert cost.flops == TASK.flops * (2 + 3 * 2 + 3 * 3 * 2)
    assert cost.storage == sum(-(-t.numel() // 8) for t in learnt.params.values())


def test_over_the_wire_comes_what_comes_without(learnt: State) -> None:
    class Wired:
        """Orders and replies as bytes."""

        def __init__(self, client: Client) -> None:
            self._client, self.replies = client, 0

        def run(self, *works: object) -> Iterator[object]:
            sent = pack_order(Order("holder", dict(enumerate(works))))  # type: ignore[arg-type]
            assert len(sent) < 1.1 * tree.n_bytes(learnt.params) + 2**14  # the parameters travel once
            order = unpack_order(sent)
            done = list(Alone(self._client, TASK.prototype()).run(*order.works.values()))
            self.replies += len(done)
            return iter(unpack_replies(pack_replies(done), "holder"))

    holder = Holder()
    expected = holder.serve(ALKN(tuning=TUNING), learnt, 0)
    request = next(iter(holder.client.requests))
    wired = Wired(holder.client)
    method = ALKN(tuning=TUNING)
    found = drive(method.phases(learnt, TASK), Excluding(Quorum(wired), request=request), learnt, seed=0)  # type: ignore[arg-type]
    assert wired.replies == 1
    assert tree.digest(found.params | found.memory) == tree.digest(expected.params | expected.memory)


def test_what_it_cannot_serve_is_refused(learnt: State) -> None:
    data, method = TASK.train(), ALKN(tuning=TUNING)
    alone = Holder()
    alone.client.data = data.take(torch.isin(data.ids, torch.tensor(TASK.requests()[0])))
    with pytest.raises(RoundError, match="alkn: needs retain texts and there are none"):
        alone.serve(method, learnt, 0)
    other = {name: tensor[:-1] for name, tensor in Holder().serve(method, learnt, 0).memory.items()}
    with pytest.raises(MethodError, match="alkn: what earlier requests used is of another model"):
        Holder().serve(method, replace(learnt, memory=other), 0)
    clients = [Client(f"c{side}", data.take(data.ids % 2 == side), TASK) for side in (0, 1)]
    request = Request("samples", samples=tuple(TASK.requests()[0]))
    with InProcess(clients, workers=1) as runtime:
        for client in clients:
            client.admit(request)
        federation = Excluding(Quorum(runtime), request=request.id)
        with pytest.raises(MethodError, match="alkn: 2 clients hold data of the request"):
            drive(method.phases(learnt, TASK), federation, learnt, seed=0)


def test_a_table_that_says_all_comes_back_and_a_wrong_one_is_refused() -> None:
    table = {
        "name": "alkn",
        "scale": 0.5,
        "tuning": {"lr": 1e-4, "epochs": 2},
        "localization": {"keep": 0.7, "keep_last": 0.3, "keeps": "aligned", "penalty": 1.0},
    }
    method = config.build(Method, table, "x.toml")  # type: ignore[type-abstract]
    assert isinstance(method, ALKN)
    assert (method.scale, method.localization.keeps, method.localization.midpoint) == (0.5, "aligned", 0.8)
    assert config.build(Method, config.plain(method), "x.toml") == method  # type: ignore[type-abstract]
    assert Localization.from_options(method.localization.options()) == method.localization
    for wrong, told in (
        ({"scale": -1.0}, "scale"),
        ({"tuning": {"spare": 0.1}}, "ceiling and spare"),
        ({"tuning": {"ceiling": 3.0}}, "ceiling and spare"),
        ({"localization": {"keep": 0.3}}, "keep_last ≤ keep"),
        ({"localization": {"keep": 0.9}}, "1 − trim"),
        ({"localization": {"trim": 0.0, "keep_last": 0.0}}, "keep_last must be positive"),
        ({"localization": {"slowed": 0.0}}, "slowed"),
        ({"localization": {"midpoint": 0.0}}, "midpoint"),
        ({"localization": {"keeps": "most"}}, "keeps"),
        ({"cop": {}}, "cop"),
    ):
        with pytest.raises(ConfigError, match=told):
            config.build(Method, {"name": "alkn"} | wrong, "x.toml")  # type: ignore[type-abstract]


def test_a_stream_costs_what_its_plan_says_and_hands_the_masks_on(tmp_path: Path) -> None:
    local = Local(optimizer="adamw", lr=3e-3, batch_size=4)
    stream = Stream(Toys(count=2), ALKN(tuning=TUNING), local=local, continue_rounds=1, tokens=2)
    priced = {stage.stage: {phase.phase: phase for phase in stage.phases} for stage in plan(stream).stages}
    served = run(stream, tmp_path).served["alkn"]
    costs = [cost for outcome in served.outcomes for cost in outcome.costs]
    assert [cost.phase for cost in costs] == ["negate", "negate"]
    found = priced["alkn.unlearn"]["negate"]
    assert found.is_exact
    assert (found.samples, found.flops) == (sum(c.samples for c in costs), pytest.approx(sum(c.flops for c in costs)))
    states = [outcome.state for outcome in served.outcomes]
    assert states[0].memory.keys() == states[1].memory.keys()
    assert tree.digest(states[0].memory) != tree.digest(states[1].memory)
    assert served.continued is not None
    assert tree.digest(served.continued.state.memory) == tree.digest(states[1].memory)
    each = sum(-(-tensor.numel() // 8) for tensor in states[0].params.values())
    other = plan(replace(stream, method=GA(tuning=TUNING)))
    assert plan(stream).disk_bytes - other.disk_bytes == 3 * each  # two requests and the continued training
