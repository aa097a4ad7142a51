"""What a client does with work, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from letheon import tree
from letheon.adapter import Adapter
from letheon.client import KINDS, Client, client_work, load
from letheon.errors import LetheonError, RequestError
from letheon.request import Request
from letheon.tasks.base import buffers_of, params_of
from letheon.tasks.vision import Digits
from letheon.training import Local
from letheon.work import Reply, Work

TASK = Digits(norm=True)
START = TASK.init(0)
RETAIN_7 = Request("class", label=7)


def client(n: int = 60, name: str = "a") -> Client:
    return Client(name, TASK.train().take(torch.arange(n)), TASK)


def work(kind: str = "train", **changes: object) -> Work:
    plain = Work(kind, START.params, START.buffers, options=Local(lr=0.1).options(0), seed=5)
    return replace(plain, **changes)  # type: ignore[arg-type]


def same(a: Reply, b: Reply) -> bool:
    return tree.digest(a.tensors | a.buffers) == tree.digest(b.tensors | b.buffers) and a.metrics == b.metrics


def test_a_client_replies_the_update_and_its_buffers_and_what_it_cost() -> None:
    module = TASK.model()
    reply = client().execute(work(), module)
    moved = tree.add(START.params, reply.tensors)
    torch.testing.assert_close(moved, params_of(module))
    assert tree.digest(reply.buffers) == tree.digest(buffers_of(module))
    assert tree.norm(reply.tensors) > 0.0
    assert (reply.client, reply.weight, reply.error) == ("a", 60.0, "")
    assert reply.metrics["samples"] == 60
    assert reply.metrics["flops"] == 60 * 3 * TASK.flops


def test_the_reply_does_not_depend_on_what_the_module_was_used_for_before() -> None:
    module = TASK.model()
    first = client().execute(work(), module)
    client(30, "b").execute(work(seed=1), module)
    assert same(client().execute(work(), module), first)


def test_the_reply_depends_on_the_seed_and_on_the_name() -> None:
    first = client().execute(work(), TASK.model())
    assert not same(client().execute(work(seed=6), TASK.model()), first)
    assert not same(client(name="b").execute(work(), TASK.model()), first)


def test_what_was_sent_is_not_changed() -> None:
    before = tree.digest(START.params | START.buffers)
    extras = Adapter().init(32, 0)
    client().execute(work(extras=extras), TASK.model())
    client().execute(work("amplify", extras=extras, options=Adapter().options()), TASK.model())
    assert tree.digest(START.params | START.buffers) == before
    assert tree.digest(extras) == tree.digest(Adapter().init(32, 0))


def test_the_parts_follow_the_requests_that_were_admitted() -> None:
    holder = client()
    of_class_7 = int((holder.data.targets == 7).sum())
    assert len(holder.part(work(part="retain"))) == 60  # nothing was admitted yet
    holder.admit(RETAIN_7)
    assert len(holder.part(work(part="retain"))) == 60 - of_class_7
    assert len(holder.part(work(part="forget", request=RETAIN_7.id))) == of_class_7 > 0
    assert len(holder.part(work(part="all"))) == 60
    second = Request("samples", samples=(0, 1, 2))
    holder.admit(second)
    assert not torch.isin(holder.part(work(part="retain", request=second.id)).ids, torch.tensor([0, 1, 2])).any()
    assert not (holder.part(work(part="retain", request=second.id)).targets == 7).any()  # and the first one stands


def test_no_copy_of_what_is_to_be_forgotten_stays_in_the_cache() -> None:
    holder = client()
    for part in ("all", "retain"):
        holder.part(work(part=part))
    holder.admit(RETAIN_7)
    assert holder._parts == {}


def test_a_request_that_was_never_admitted_is_not_served() -> None:
    with pytest.raises(RequestError, match=r"client a: request 'xyz' was never admitted here"):
        client().execute(work(part="forget", request="xyz"), TASK.model())


def test_what_the_client_cannot_do_is_an_error_in_its_reply() -> None:
    reply = client(1).execute(work(), TASK.model())
    assert "1 sample(s) cannot train a model with BatchNorm" in reply.error
    assert reply.weight == 0.0
    assert reply.tensors == {}


def test_a_fault_of_the_program_is_raised() -> None:
    with pytest.raises(KeyError, match="no such kind"):
        client().execute(work("no such kind"), TASK.model())


@pytest.mark.parametrize(
    ("params", "buffers", "said"),
    [
        ({"x": torch.zeros(1)}, START.buffers, "parameter names differ"),
        (START.params | {"head.bias": torch.zeros(3)}, START.buffers, r"head.bias: got \(3,\), expected \(10,\)"),
        (START.params, {}, "buffer names differ"),
    ],
)
def test_a_broadcast_that_is_not_of_this_model_is_refused(params: tree.Params, buffers: tree.Params, said: str) -> None:
    with pytest.raises(LetheonError, match=said):
        load(TASK.model(), params, buffers)


def test_a_frozen_parameter_is_neither_sent_nor_expected() -> None:
    module = TASK.model()
    module.get_submodule("fc1").weight.requires_grad_(False)  # type: ignore[operator, union-attr]
    sent = {name: tensor for name, tensor in START.params.items() if name != "fc1.weight"}
    load(module, sent, START.buffers)
    assert params_of(module).keys() == sent.keys()


def test_evaluation_counts_right_answers_and_touches_no_buffer() -> None:
    module = TASK.model()
    data = client().data
    reply = client().execute(work("evaluate", options={"detail": True}), module)
    assert tree.digest(buffers_of(module)) == tree.digest(START.buffers)
    load(module, START.params, START.buffers)
    outputs = module.eval()(data.inputs)
    assert reply.tensors["correct"].tolist() == (outputs.argmax(1) == data.targets).tolist()
    assert reply.metrics["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, data.targets).item(), rel=1e-5)
    assert reply.metrics["flops"] == 60 * TASK.flops


def test_outputs_that_are_not_finite_are_wrong_answers() -> None:
    broken = START.params | {"head.bias": torch.full((10,), float("nan"))}
    reply = client().execute(work("evaluate", params=broken, options={"detail": True}), TASK.model())
    assert not reply.tensors["correct"].any()


def test_an_adapter_is_trained_against_the_data_and_replied() -> None:
    extras = Adapter().init(32, 0)
    options = Adapter(cap=5.0, lr=0.5).options()
    reply = client().execute(work("amplify", extras=extras, options=options), TASK.model())
    assert reply.tensors.keys() == extras.keys()
    assert reply.buffers == {}
    assert reply.metrics["reached"] >= 5.0
    assert reply.metrics["steps"] > 0


def test_training_behind_an_adapter_is_another_training() -> None:
    options = Adapter(cap=5.0, lr=0.5).options()
    raised = client().execute(work("amplify", extras=Adapter().init(32, 0), options=options), TASK.model()).tensors
    assert not same(client().execute(work(extras=raised), TASK.model()), client().execute(work(), TASK.model()))
    assert same(
        client().execute(work(extras=Adapter().init(32, 0)), TASK.model()), client().execute(work(), TASK.model())
    )


def test_a_kind_cannot_be_registered_twice() -> None:
    register = client_work("train", lambda task, work, n: {})
    with pytest.raises(ValueError, match="'train' is registered already"):
        register(KINDS["evaluate"].do)
    assert KINDS["train"].answers == "params"
