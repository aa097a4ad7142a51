"""ALKN against slow loops from its equations; the second request; and what it does to a model that has learnt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from letheon import config, tree
from letheon.client import Client, load
from letheon.data import Data
from letheon.errors import ConfigError, MethodError, RoundError
from letheon.methods.alkn import ALKN, USED
from letheon.methods.ascent import GA
from letheon.methods.base import Method, fedavg
from letheon.middleware import Excluding, Metered, Quorum
from letheon.phase import Phase, State, drive, seed_of
from letheon.request import Request
from letheon.runtimes.alone import Alone, threads
from letheon.runtimes.inprocess import InProcess
from letheon.runtimes.records import Order, pack_order, pack_replies, unpack_order, unpack_replies
from letheon.stream.experiment import Stream
from letheon.stream.life import run
from letheon.stream_plan import plan
from letheon.text.descent import Recipe, mean_loss
from letheon.text.encoding import MASKED, PAD
from letheon.text.language import LanguageModel
from letheon.text.negation import Localization, crowded, grown, localize, packed, soft_targets, threshold, unpacked
from letheon.training import Local
from text_toys import Toys

V = 5
TASK = Toys()
TUNING = Recipe(lr=1e-3, epochs=3, batch_size=2)


@pytest.fixture(autouse=True, scope="module")
def one_core() -> Iterator[None]:
    with threads(1):
        yield


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Bigram(nn.Module):
    """Logits of the next token from the one before, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(drawn(V, 3, seed=1), freeze=False)
        self.out = nn.Linear(3, V, bias=False, dtype=torch.float64)
        self.out.weight.data = drawn(V, 3, seed=2)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.embed(ids.clamp_min(0)))
        return found


def texts(seed: int, count: int) -> Data:
    inputs = torch.randint(V, (count, 5), generator=torch.Generator().manual_seed(seed))
    targets = inputs.clone()
    targets[:, :2] = MASKED
    inputs[1, 4:], targets[1, 4:] = PAD, MASKED  # one text is shorter
    return Data(inputs, targets, torch.arange(count))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def pairs(data: Data, rows: Sequence[int]) -> list[tuple[int, int]]:
    """(token before, answer token) of some texts."""
    places = [(i, t) for i in rows for t in range(1, 5) if int(data.targets[i, t]) != MASKED]
    return [(int(data.inputs[i, t - 1]), int(data.targets[i, t])) for i, t in places]


def by_hand(
    embed: Tensor, out: Tensor, tokens: Sequence[tuple[int, int]], weights: Sequence[float]
) -> tuple[list[Tensor], float]:
    """Gradients of Σ s ℓ / Σ 1 for the bigram, term by term, and the value."""
    slopes, value = [torch.zeros_like(embed), torch.zeros_like(out)], 0.0
    for (before, label), s in zip(tokens, weights, strict=True):
        logits = [math.fsum(float(out[v, d] * embed[before, d]) for d in range(3)) for v in range(V)]
        total = math.fsum(math.exp(x) for x in logits)
        value += -s * (logits[label] - math.log(total)) / len(tokens)
        for v in range(V):
            error = s * (math.exp(logits[v]) / total - (v == label)) / len(tokens)
            for d in range(3):
                slopes[0][before, d] += error * out[v, d]
                slopes[1][v, d] += error * embed[before, d]
    return slopes, value


def line(values: list[float], share: float, trim: float) -> float:
    ordered, count = sorted(values), max(1, int(trim * len(values)))
    return ordered[-count] - (ordered[-count] - ordered[count - 1]) * (share - trim) / (1 - 2 * trim)


def slow_loop(
    texts: Mapping[str, Data],
    rule: Localization,
    recipe: Recipe,
    *,
    used: Sequence[Tensor],
    factors: Sequence[float],
) -> tuple[list[Tensor], list[Tensor], float]:
    """The tuned tables, the entries that the last step let move, and the mean loss: AdamW written out."""
    forget, retain = texts["forget"], texts["retain"]
    tables = [drawn(V, 3, seed=1), drawn(V, 3, seed=2)]
    order, draw = (torch.Generator().manual_seed(seed_of(f"7|{what}")) for what in ("order", "retain"))
    known = []
    for before, label in pairs(forget, range(len(forget))):
        known.append(math.exp(-by_hand(*tables, [(before, label)], [1.0])[1]))  # type: ignore[misc]
    targets = iter(sigmoid((p - rule.midpoint) * rule.slope) - sigmoid(-rule.midpoint * rule.slope) for p in known)
    per_text = [[next(targets) for _ in pairs(forget, [i])] for i in range(len(forget))]
    rows = torch.randint(len(retain), (len(forget),), generator=draw).tolist()
    held = pairs(retain, rows)
    retained = by_hand(*tables, held, [1.0] * len(held))[0]  # type: ignore[misc]
    sign = -1 if rule.keeps == "harmless" else 1
    importance, first, second = ([torch.zeros_like(t) for t in tables] for _ in range(3))
    kept, values, steps = [torch.zeros_like(t) for t in tables], [], recipe.steps(len(forget))
    batches = [b for _ in range(recipe.epochs) for b in torch.randperm(len(forget), generator=order).split(2)]
    for step, batch in enumerate(batches):
        chosen = batch.tolist()
        weights = [s for i in chosen for s in per_text[i]]
        gradients, value = by_hand(*tables, pairs(forget, chosen), weights)  # type: ignore[misc]
        values.append(value)
        share = rule.keep + (rule.keep_last - rule.keep) * step / (steps - 1)
        for g, r, m, u, k in zip(gradients, retained, importance, used, kept, strict=True):
            product = [sign * float(a * b) for a, b in zip(g.view(-1), r.view(-1), strict=True)]
            mean = math.fsum(product) / len(product)
            deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in product) / len(product))
            for i, x in enumerate(product):
                m.view(-1)[i] += x - (rule.penalty * deviation if u.reshape(-1)[i] else 0.0)
            limit = line(m.view(-1).tolist(), share, rule.trim)
            for i, x in enumerate(m.view(-1).tolist()):
                k.view(-1)[i] = x >= limit
                g.view(-1)[i] *= x >= limit
        norm = math.sqrt(math.fsum(float(x) ** 2 for g in gradients for x in g.view(-1)))
        for at, unclipped in enumerate(gradients):
            g = unclipped * min(1.0, recipe.clip / norm)  # type: ignore[operator]
            rate = factors[at] * recipe.rate(step, steps)
            tables[at] *= 1 - rate * recipe.weight_decay
            first[at] += 0.1 * (g - first[at])
            second[at] += 0.001 * (g * g - second[at])
            root = torch.sqrt(second[at] / (1 - 0.999 ** (step + 1))) + 1e-8
            tables[at] -= rate * first[at] / (1 - 0.9 ** (step + 1)) / root
    return tables, [k.bool() for k in kept], math.fsum(values) / len(values)


RULES = [
    Localization(),
    Localization(keeps="aligned", midpoint=0.3, slope=4.0),
    Localization(trim=0.1, keep=0.6, keep_last=0.2, penalty=2.0, slowed=0.3),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("again", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("part_size", [None, 1])
def test_a_tuning_is_what_the_equations_say(rule: Localization, again: bool, part_size: int | None) -> None:
    given = {"forget": texts(3, 5), "retain": texts(4, 7)}
    recipe = Recipe(lr=0.02, epochs=2, batch_size=2, part_size=part_size, clip=0.02, weight_decay=0.1)
    used = [drawn(V, 3, seed=5) > 0.8, drawn(V, 3, seed=6) > 0.0] if again else [torch.zeros(V, 3).bool()] * 2
    assert not again or used[1].sum() > used[0].sum() > 0
    module = Bigram()
    names = [name for name, _ in module.named_parameters()]
    found = localize(module, given, rule, recipe, used=dict(zip(names, used, strict=True)), seed=7)
    factors = [1.0, rule.slowed if again else 1.0]
    tables, kept, loss = slow_loop(given, rule, recipe, used=used, factors=factors)
    assert (found.steps, found.loss) == (6, pytest.approx(loss, rel=1e-12))
    for parameter, table, name, mask in zip(module.parameters(), tables, names, kept, strict=True):
        assert torch.allclose(parameter.detach(), table, rtol=1e-9, atol=1e-12)
        assert torch.equal(found.kept[name], mask)
        assert 0 < int(mask.sum()) < mask.numel()


def test_a_token_weighs_the_more_the_better_it_was_known() -> None:
    known = torch.tensor([0.0, 0.5, 0.8, 1.0], dtype=torch.float64)
    found = soft_targets(known, Localization()).tolist()
    assert found == pytest.approx([sigmoid((p - 0.8) * 1.5) - sigmoid(-1.2) for p in known.tolist()])
    assert found[0] == 0 < found[1] < found[2] < found[3] < 0.35


def test_what_is_kept_harms_least_once_it_is_negated() -> None:
    """To first order the retained loss changes by c η Σ g ḡ over what is kept: ``aligned`` raises it."""
    g, r = drawn(40, 30, seed=8), drawn(40, 30, seed=9)
    none = torch.zeros_like(g).bool()
    harm = {}
    for keeps in ("harmless", "aligned"):
        m = grown(torch.zeros_like(g), g, r, none, Localization(keeps=keeps))
        harm[keeps] = float((g * r)[m >= threshold(m, 0.4, 0.15)].sum())
    assert harm["harmless"] < -100 < 100 < harm["aligned"]


def test_the_share_that_is_kept_is_the_nominal_one_where_importance_is_spread_evenly() -> None:
    even = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).double()
    for share in (0.8, 0.4):
        assert int((even >= threshold(even, share, 0.15)).sum()) == pytest.approx(1000 * share, abs=2)
    rows = torch.cat([torch.zeros(900), -torch.ones(50), torch.ones(50)])  # most rows of an embedding are not met
    assert int((rows >= threshold(rows, 0.4, 0.15)).sum()) == 950


def test_the_tensors_used_most_move_slowly() -> None:
    used = {name: torch.arange(10) < count for name, count in (("a", 3), ("b", 9), ("c", 0), ("d", 4), ("e", 1))}
    assert crowded(used, Localization()) == {"b", "d", "a"}
    assert crowded(used, Localization(crowded=0.2)) == {"b"}
    assert crowded(used, Localization(crowded=1.0)) == {"a", "b", "d", "e"}
    assert crowded(used, Localization(crowded=0.0)) == frozenset()


@pytest.mark.parametrize("shape", [(1,), (8,), (3, 5), (2, 3, 7)])
def test_masks_are_packed_and_come_out_as_they_were(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.4
    octets = packed(mask)
    assert (octets.dtype, len(octets)) == (torch.uint8, -(-mask.numel() // 8))
    assert torch.equal(unpacked(octets, shape), mask)


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
