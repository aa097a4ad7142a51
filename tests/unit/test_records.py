"""What goes over the wire comes out as it went in, and nothing that is damaged gets through."""

from __future__ import annotations

import json
import math
import pickle
import struct
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from letheon import tree
from letheon.client import KINDS
from letheon.errors import RoundError
from letheon.request import Request
from letheon.runtimes import receipt
from letheon.runtimes.receipt import lost, replies_in
from letheon.runtimes.records import Admitted, Order, Parcel, pack_order, pack_replies, unpack_order, unpack_replies
from letheon.work import Reply, Work

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
SHAPES = [(), (1,), (0, 3), (2, 3, 4)]
TENSORS = {
    f"{dtype}{shape}": torch.arange(math.prod(shape)).reshape(shape).to(dtype) for dtype in DTYPES for shape in SHAPES
}
WORK = Work(
    "train",
    {"z": torch.tensor([1.5, -0.0]), "a": torch.tensor([math.nan, math.inf])},
    {"count": torch.tensor(3)},
    "forget",
    "r",
    {"flag": True, "count": 1, "rate": 1.0, "tiny": 5e-324, "negative": -0.0, "name": "1"},
    {"basis": torch.eye(2)},
    ("c1", "c0"),
    2**63 - 1,
)
PARAMS = {"w": torch.zeros(3), "b": torch.zeros(1)}
ASKED = Work("train", PARAMS, {"n": torch.tensor(0)})
REPLY = Reply(0, "c", {"w": torch.ones(3), "b": torch.ones(1)}, {"n": torch.tensor(1)}, 4.0, {"loss": 0.5})


def through(work: Work) -> Work:
    return unpack_order(pack_order(Order("c", {5: work}))).works[5]


def test_every_dtype_and_shape_comes_out_bit_for_bit() -> None:
    back = through(replace(WORK, params=TENSORS))
    assert tree.digest(back.params) == tree.digest(TENSORS)  # over names, dtypes, shapes and bytes


def test_names_keep_their_order() -> None:
    assert list(through(WORK).params) == ["z", "a"]


def test_a_work_comes_out_as_it_went_in() -> None:
    back = through(WORK)
    for part in ("params", "buffers", "extras"):
        assert tree.digest(getattr(back, part)) == tree.digest(getattr(WORK, part))
    for field in ("kind", "part", "request", "clients", "seed", "options"):
        assert getattr(back, field) == getattr(WORK, field)
    assert {name: type(value) for name, value in back.options.items()} == {
        name: type(value) for name, value in WORK.options.items()
    }
    assert math.copysign(1.0, float(back.options["negative"])) == -1.0
    assert through(replace(WORK, clients=None)).clients is None
    assert through(replace(WORK, clients=())).clients == ()


@given(st.dictionaries(st.text(), st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_options_keep_value_and_type(options: dict[str, bool | int | float]) -> None:
    back = through(replace(WORK, options=options)).options
    assert [(name, repr(value)) for name, value in back.items()] == [(n, repr(v)) for n, v in options.items()]


def test_a_tensor_that_works_share_is_sent_once() -> None:
    one = pack_order(Order("c", {0: WORK}))
    two = pack_order(Order("c", {0: WORK, 1: replace(WORK, part="retain")}))
    assert two.tensors == one.tensors


def test_an_order_names_its_client_and_the_requests_but_no_sample() -> None:
    requests = [Request("samples", samples=(123456789,)), Request("client", client="c3"), Request("class", label=4)]
    order = Order("c", {0: WORK}, tuple(map(Admitted.of, requests)), "life")
    parcel = pack_order(order)
    back = unpack_order(parcel)
    assert (back.client, back.admitted, back.life) == (order.client, order.admitted, order.life)
    assert "123456789" not in parcel.text


def test_replies_come_out_as_they_went_in_even_broken_ones() -> None:
    replies = [REPLY, replace(REPLY, work=2, weight=math.nan, metrics={"x": -math.inf, "n": 3}, error="none")]
    back = unpack_replies(pack_replies(replies), "c")
    assert repr(back) == repr(replies).replace("'n': 3", "'n': 3.0")


def test_who_replies_is_said_by_the_receiver() -> None:
    assert unpack_replies(pack_replies([REPLY]), "other")[0].client == "other"


def altered(**fields: object) -> Parcel:
    parcel = pack_replies([REPLY])
    content = json.loads(parcel.text)
    content["replies"][0] |= fields
    return replace(parcel, text=json.dumps(content))


def of_type(name: str) -> bytes:
    """A safetensors file whose tensors, a byte a number, are of a type that torch may not have."""
    told = {place: {"dtype": name, "shape": [1], "data_offsets": [place, place + 1]} for place in range(3)}
    header = json.dumps(told)
    return struct.pack("<Q", len(header)) + header.encode() + b"\1" * 3


@pytest.mark.parametrize(
    "parcel",
    [
        Parcel("", b""),
        Parcel("[]", b""),
        Parcel("{}", b""),
        Parcel("[" * 100_000, b""),
        replace(pack_replies([REPLY]), text=pack_replies([REPLY]).text.replace('"version": 1', '"version": 2')),
        replace(pack_replies([REPLY]), tensors=b""),
        replace(pack_replies([REPLY]), tensors=pack_replies([REPLY]).tensors[:-1]),
        replace(pack_replies([REPLY]), tensors=pickle.dumps(REPLY.tensors)),
        altered(weight="much"),
        altered(weight=True),
        altered(tensors={"w": 7}),
        altered(tensors={"w": "0"}),
        altered(tensors={"w": -1}),
        altered(extra=1),
        pack_order(Order("c", {0: WORK})),
        pack_replies([replace(REPLY, tensors={"w": torch.zeros(3).to(torch.float8_e4m3fn)})]),
        replace(pack_replies([REPLY]), tensors=of_type("F8_E8M0")),
    ],
)
def test_what_is_damaged_is_refused(parcel: Parcel) -> None:
    with pytest.raises(RoundError):
        unpack_replies(parcel, "c")


def test_the_two_ends_must_have_the_same_format() -> None:
    parcel = pack_order(Order("c", {0: WORK}))
    with pytest.raises(RoundError, match="wire format 7, this side has 1; install the same Letheon"):
        unpack_order(replace(parcel, text=parcel.text.replace('"version": 1', '"version": 7')))


def told(parcel: Parcel, works: dict[int, Work] | None = None) -> list[Reply]:
    return list(replies_in(works or {0: ASKED}, "c", parcel))


def test_a_reply_in_order_is_let_through() -> None:
    assert repr(told(pack_replies([REPLY]))) == repr([REPLY])


def test_replies_are_put_in_the_order_of_the_works() -> None:
    parcel = pack_replies([replace(REPLY, work=1), REPLY])
    assert [reply.work for reply in told(parcel, {0: ASKED, 1: ASKED})] == [0, 1]


@pytest.mark.parametrize(
    ("parcel", "reason"),
    [
        (pack_replies([replace(REPLY, work=1)]), "it answers works [1], asked were [0]"),
        (pack_replies([REPLY, REPLY]), "it answers works [0, 0], asked were [0]"),
        (Parcel("{", b""), "damaged"),
        (pack_replies([replace(REPLY, tensors={"w": torch.ones(10**6)})]), "bytes, 68632 are expected at most"),
        (replace(pack_replies([REPLY]), text=" " * 10**6), "bytes, 68632 are expected at most"),
    ],
)
def test_a_reply_that_is_not_as_it_must_be_counts_as_an_error(parcel: Parcel, reason: str) -> None:
    (reply,) = told(parcel)
    assert reason in reply.error
    assert (reply.client, reply.work, reply.tensors) == ("c", 0, {})


def test_of_a_pass_for_statistics_no_more_than_the_buffers_may_come_back() -> None:
    work = Work("refresh", {"w": torch.ones(10**5)}, {"mean": torch.ones(3)})
    back = Reply(0, "c", {}, work.buffers, weight=1.0)
    assert told(pack_replies([back]), {0: work})[0].error == ""
    assert "are expected at most" in told(pack_replies([replace(back, tensors=work.params)]), {0: work})[0].error


def test_what_may_come_back_depends_on_the_kind_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    parcel = pack_replies([replace(REPLY, tensors={"w": torch.ones(10**5)}, buffers={})])
    assert told(parcel)[0].error
    monkeypatch.setitem(KINDS, "train", replace(KINDS["train"], answers="free"))
    assert not told(parcel)[0].error
    monkeypatch.setattr(receipt, "LARGEST_FREE_REPLY", 10**5)
    assert "expected at most" in told(parcel)[0].error


def test_a_client_that_is_not_heard_is_missing_for_each_of_its_works() -> None:
    replies = list(lost({0: ASKED, 3: ASKED}, "c", "no\nreply" + "x" * 10**4))
    assert [(reply.work, reply.client) for reply in replies] == [(0, "c"), (3, "c")]
    assert replies[0].error.startswith("no reply")
    assert len(replies[0].error) == receipt.LONGEST_REASON


def test_no_more_than_the_tensors_travels() -> None:
    state = {str(i): torch.zeros(1000) for i in range(10)}
    assert len(pack_order(Order("c", {0: Work("train", state)}))) <= tree.n_bytes(state) + 1500
    assert set(safetensors.torch.load(pack_order(Order("c", {0: WORK})).tensors)) == {"0", "1", "2", "3"}
