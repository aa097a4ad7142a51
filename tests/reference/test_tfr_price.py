"""What TFR-Net costs, keeps and refuses, against what a plan says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tfr_toys import LAYERS, LOOSE, METHOD, TASK, Holder, learnt

from letheon import tree
from letheon.errors import MethodError
from letheon.methods.tfr import TFRNet
from letheon.runtimes.alone import threads
from letheon.stream.experiment import Stream
from letheon.stream.life import run
from letheon.stream_plan import plan
from letheon.text import channels
from letheon.text.trajectory import Recovery, Suppression
from letheon.training import Local
from letheon.work import Work


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


def test_a_budget_of_less_than_a_channel_is_refused_before_anything_is_done() -> None:
    start = TASK.init(0)
    with pytest.raises(MethodError, match=r"first_budget: 0.005 of a layer's 88 channels is less.*to 0 to wait"):
        TFRNet().phases(start, TASK)
    with pytest.raises(MethodError, match=r"suppression.budget: 0.01 .* raise it to 0.011"):
        TFRNet(Suppression(first_budget=0.0)).phases(start, TASK)
    assert [p.name for p in TFRNet(Suppression(first_budget=0, budget=0.02)).phases(start, TASK)] == [
        "suppress",
        "recover",
    ]


@pytest.mark.parametrize("kind", ["attribute", "probe"])
def test_every_text_that_passes_is_counted(kind: str) -> None:
    holder, module, passed = Holder(), TASK.prototype(), list[int]()
    federation = holder.admitted(0)
    module.register_forward_hook(lambda _, inputs, __: passed.append(len(inputs[0])))
    request = next(iter(holder.client.requests))
    work = Work(kind, learnt().params, part="forget", request=request, options={"texts": 128})
    reply = holder.client.execute(work, module)
    assert (reply.error, reply.metrics["samples"]) == ("", sum(passed))
    assert reply.metrics["flops"] == (2 if kind == "attribute" else 1) * TASK.flops * sum(passed)
    assert federation


EAGER = TFRNet(
    Suppression(hot=0.5, level=0.5, hits=1, first_budget=0.05, budget=0.05, total=0.2),
    Recovery(value=0.0, risk=1.0, tolerance=0.1, block=2, trials=3, texts=4),
)


def stream(method: TFRNet) -> Stream:
    return Stream(TASK, method, local=Local(optimizer="adamw", lr=3e-3, batch_size=4), train_rounds=2, tokens=3)


@pytest.mark.parametrize("method", [EAGER, replace(EAGER, recovery=None)], ids=["recovery", "none"])
def test_a_stream_is_run_and_its_price_held_against_its_cost(method: TFRNet, tmp_path: Path) -> None:
    done = run(stream(method), tmp_path)
    (stage,) = [stage for stage in plan(stream(method)).stages if stage.stage == "tfr-net.unlearn"]
    costs = [cost for outcome in done.served["tfr-net"].outcomes for cost in outcome.costs]
    names = [phase.name for phase in method.phases(done.origin.state, TASK)]
    assert [phase.phase for phase in stage.phases[:-1]] == names
    for phase in stage.phases[:-1]:
        own = [cost for cost in costs if cost.phase == phase.phase]
        seen = [sum(getattr(cost, name) for cost in own) for name in ("rounds", "samples", "flops")]
        said = [phase.rounds, phase.samples, phase.flops]
        assert phase.is_exact == (method.recovery is None)
        if phase.phase == "suppress":
            assert said == pytest.approx(seen)
        else:
            assert all(0 < a <= b for a, b in zip(seen, said, strict=True))
            assert said[0] == 2 * (1 + 3)


def test_a_stream_lists_its_memory_and_what_it_did(tmp_path: Path) -> None:
    done = run(stream(EAGER), tmp_path)
    first, second = done.served["tfr-net"].outcomes
    assert first.logs["suppressed"] == [[4, 4]]
    assert first.logs["reopened"][0] != [0, 0]
    assert second.state.memory.keys() == {f"tfr-net/{layer}/{name}" for layer in LAYERS for name in channels.FIELDS}


def test_memory_takes_as_much_as_a_plan_says_when_it_is_full() -> None:
    holder, state = Holder(), learnt()
    for number in range(2):
        state = holder.serve(METHOD, state, number)
        used = tree.n_bytes(state.memory)
        assert used <= METHOD.kept_bytes(state.params)
    assert used == METHOD.kept_bytes(state.params)
    without = replace(METHOD, suppression=replace(LOOSE, total=0.0))
    columns = 2 * 2 * 8 * 32 * 4  # requests, layers, channels, width, bytes
    assert plan(stream(METHOD)).disk_bytes - plan(stream(without)).disk_bytes == columns
