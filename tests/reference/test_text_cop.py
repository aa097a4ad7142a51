"""COP as a method: what earlier requests settled stays, whatever the objective trains; and controls that fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from letheon import cop
from letheon.client import Client, load
from letheon.cop import Batch
from letheon.errors import MethodError
from letheon.methods.ascent import GA, GAKL, WGA, GradDiff
from letheon.methods.descent import Cop, Descent, Lora
from letheon.methods.preference import DPO, NPO, SimNPO
from letheon.methods.refusal import IDK
from letheon.methods.steering import RMU, UNDIAL
from letheon.middleware import Excluding, Quorum
from letheon.phase import State, drive
from letheon.request import Request
from letheon.runtimes.alone import Alone, threads
from letheon.text.descent import Recipe
from letheon.text.language import LanguageModel
from text_toys import Toys


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small only lose by more, above all where other work waits for the cores."""
    with threads(1):
        yield


TUNING = Recipe(lr=3e-3, epochs=3, batch_size=2, weight_decay=0.1)
WHOLE = Cop(energy=1.0, rank=10**6, rank_total=10**6)
TASK = Toys()
METHODS: list[Descent] = [
    GA(tuning=TUNING),
    GradDiff(tuning=TUNING),
    GAKL(tuning=TUNING),
    WGA(tuning=TUNING),
    NPO(tuning=TUNING),
    SimNPO(tuning=TUNING, retain="nll"),
    DPO(tuning=TUNING),
    IDK(tuning=TUNING, retain="kl"),
    RMU(tuning=TUNING, block="model.layers.0"),
    UNDIAL(tuning=replace(TUNING, part_size=1)),
]


def served(method: Descent, count: int = 2, *, start: State | None = None) -> list[State]:
    """The states after each request, from random weights: COP's promise does not need a model that has learnt."""
    client = Client("holder", TASK.train(), TASK)
    module: LanguageModel = TASK.prototype()  # type: ignore[assignment]
    state, states = start or TASK.init(0), []
    for k, ids in enumerate(TASK.requests()[:count]):
        request = Request("samples", samples=tuple(ids))
        client.admit(request)
        federation = Excluding(Quorum(Alone(client, module)), request=request.id)
        state = drive(method.phases(state, TASK), federation, state, seed=k)
        states.append(state)
    return states


def first_logits(state: State) -> torch.Tensor:
    """What a model says at each token of the first request's texts."""
    module = TASK.prototype()
    load(module, state.params, state.buffers)
    data = TASK.train()
    with torch.no_grad():
        logits: torch.Tensor = module.eval()(data.take(torch.isin(data.ids, torch.tensor(TASK.requests()[0]))).inputs)
    return logits


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_later_request_leaves_the_network_as_it_was_on_the_earlier_texts(method: Descent) -> None:
    """Invariant 3: with bases that hold all inputs and all else frozen, the output is unchanged to rounding."""
    first, second = served(replace(method, cop=WHOLE))
    moved = max(float((second.params[n] - first.params[n]).abs().max()) for n in first.params)
    assert moved > 1e-4  # it is not that nothing was done
    assert torch.allclose(first_logits(first), first_logits(second), atol=2e-4)


def test_without_cop_the_same_request_changes_what_was_settled() -> None:
    first, second = served(GA(tuning=TUNING))
    assert float((first_logits(first) - first_logits(second)).abs().max()) > 0.01


@pytest.mark.parametrize("method", [GA(tuning=TUNING), NPO(tuning=TUNING)], ids=lambda method: method.name)
def test_adapters_keep_the_promise_too(method: Descent) -> None:
    first, second = served(replace(method, cop=WHOLE, lora=Lora(rank=4)))
    assert torch.allclose(first_logits(first), first_logits(second), atol=2e-4)
    assert max(float((second.params[n] - first.params[n]).abs().max()) for n in first.params) > 1e-5
    assert second.params.keys() == first.params.keys()


def test_layers_answer_protected_inputs_as_before_whatever_the_caps() -> None:
    """Invariant 1, with truncated bases: W x = W₀ x for x in the span."""
    first, second = served(GA(tuning=TUNING, cop=Cop(rank=3)))
    bases = GA(cop=Cop()).bases(first)
    assert {basis.rank for basis in bases.values()} <= set(range(1, 8))
    module = TASK.prototype()
    spaces = cop.find_spaces(module, Batch(TASK.train().inputs[:1]))
    for space, names in spaces.items():
        for name in names:
            before, after = (state.params[f"{name}.weight"] @ bases[space].vectors for state in (first, second))
            assert float((after - before).norm()) <= 1e-5 * float(before.norm())


def test_the_first_request_is_the_objective_alone_to_the_last_bit() -> None:
    """Invariant 5."""
    with_cop, without = served(GA(tuning=TUNING, cop=Cop()), 1)[0], served(GA(tuning=TUNING), 1)[0]
    assert all(torch.equal(with_cop.params[n], without.params[n]) for n in without.params)
    assert with_cop.memory
    assert not without.memory


def test_bases_grow_by_request_and_say_which() -> None:
    first, second = (GA(cop=Cop()).bases(state) for state in served(GA(tuning=TUNING, cop=Cop())))
    for space, basis in second.items():
        assert basis.rank >= first[space].rank
        assert torch.equal(basis.vectors[:, : first[space].rank], first[space].vectors)
        assert sorted(set(basis.requests.tolist())) in ([0], [0, 1])
        assert basis.records[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]  # sinks, then the rest


def test_from_the_second_request_on_nothing_trains_that_cannot_be_held() -> None:
    first, second = served(GA(tuning=TUNING, cop=Cop()))
    for name in first.params:
        if "embed" in name or "norm" in name:
            assert torch.equal(first.params[name], second.params[name]), name
    free = served(GA(tuning=TUNING))
    assert not torch.equal(free[0].params["lm.model.norm.weight"], free[1].params["lm.model.norm.weight"])
    linear = served(GA(tuning=TUNING, trains="linear"))
    assert torch.equal(linear[0].params["lm.model.norm.weight"], linear[1].params["lm.model.norm.weight"])


def test_a_model_below_float32_is_refused_before_it_is_ruined() -> None:
    module = TASK.prototype().to(torch.bfloat16)
    client = Client("holder", TASK.train(), TASK)
    request = Request("samples", samples=tuple(TASK.requests()[0]))
    client.admit(request)
    start = TASK.init(0)
    federation = Excluding(Alone(client, module), request=request.id)
    with pytest.raises(Exception, match="stored below float32"):
        drive(GA(tuning=TUNING).phases(start, TASK), federation, start, seed=0)


def test_two_holders_of_one_request_are_refused_by_cop() -> None:
    from letheon.runtimes.inprocess import InProcess

    data = TASK.train()
    ids = torch.tensor(TASK.requests()[0])
    halves = [data.take(torch.isin(data.ids, ids[:1])), data.take(~torch.isin(data.ids, ids[:1]))]
    clients = [Client(f"c{i}", half, TASK) for i, half in enumerate(halves)]
    request = Request("samples", samples=tuple(ids.tolist()))
    start = TASK.init(0)
    with InProcess(clients, workers=1) as runtime:
        for client in clients:
            client.admit(request)
        federation = Excluding(Quorum(runtime), request=request.id)
        plain = drive(GA(tuning=TUNING).phases(start, TASK), federation, start, seed=0)
        assert not torch.equal(plain.params["lm.model.norm.weight"], start.params["lm.model.norm.weight"])
        with pytest.raises(MethodError, match="2 clients hold data of the request"):
            drive(GA(tuning=TUNING, cop=Cop()).phases(start, TASK), federation, start, seed=0)


def test_recomputed_activations_change_no_gradient_and_adapters_still_train() -> None:
    """A known fault elsewhere: with LoRA and checkpointing nothing trained, since inputs had no gradient."""
    plain = served(GA(tuning=TUNING, lora=Lora(rank=4)), 1)[0]
    task = Toys(language=replace(TASK.language, checkpointing=True))
    client, start = Client("holder", task.train(), task), task.init(0)
    request = Request("samples", samples=tuple(task.requests()[0]))
    client.admit(request)
    federation = Excluding(Quorum(Alone(client, task.prototype())), request=request.id)
    method = GA(tuning=TUNING, lora=Lora(rank=4))
    found = drive(method.phases(start, task), federation, start, seed=0)
    assert max(float((found.params[n] - start.params[n]).abs().max()) for n in found.params) > 1e-5
    assert all(torch.allclose(found.params[n], plain.params[n], atol=1e-6) for n in plain.params)
