"""Deletion requests, and the clients that resolve them."""

from __future__ import annotations

import pytest
import torch

from letheon.data import Data
from letheon.errors import RequestError
from letheon.request import Request, Scope


def data(*ids: int) -> Data:
    numbers = torch.tensor(ids, dtype=torch.int64)
    return Data(numbers.float().unsqueeze(1), numbers % 3, numbers)


CLIENTS = {"a": data(0, 1, 2), "b": data(3, 4, 5, 6), "empty": data()}
CLIENT, CLASS = Request("client", client="b"), Request("class", label=1)
SAMPLES = Request("samples", samples=(6, 0))


@pytest.mark.parametrize(
    ("request_", "forgotten"),
    [(CLIENT, {"b": [3, 4, 5, 6]}), (CLASS, {"a": [1], "b": [4]}), (SAMPLES, {"a": [0], "b": [6]})],
    ids=["client", "class", "samples"],
)
def test_forget_and_retain_split_the_data_of_every_client(request_: Request, forgotten: dict[str, list[int]]) -> None:
    request_.check(CLIENTS)
    for name, held in CLIENTS.items():
        forget, retain = (request_.select(name, held, part).ids.tolist() for part in ("forget", "retain"))
        assert forget == forgotten.get(name, [])
        assert sorted(forget + retain) == held.ids.tolist()
        assert request_.select(name, held, "all") is held


def test_the_id_is_a_function_of_the_content_and_lists_no_sample() -> None:
    assert SAMPLES.id == Request("samples", samples=(0, 6)).id
    ids = {r.id for r in (CLIENT, CLASS, SAMPLES, Request("samples", samples=(0,)), Request("client", client="a"))}
    assert len(ids) == 5
    assert all(len(i) == 16 and int(i, 16) >= 0 for i in ids)


def test_a_request_for_someone_unknown_is_refused_and_says_who_is_there() -> None:
    with pytest.raises(RequestError, match=r"unknown client 'c'; the federation has a, b, empty"):
        Request("client", client="c").check(CLIENTS)
    many = {f"c{i:03}": data(i) for i in range(30)}
    with pytest.raises(RequestError, match=r"c007 …$"):
        Request("client", client="x").check(many)


def test_a_request_for_an_unknown_class_is_refused_and_says_which_there_are() -> None:
    with pytest.raises(RequestError, match=r"no client holds label 7; labels present: \[0, 1, 2\]"):
        Request("class", label=7).check(CLIENTS)


def test_a_request_for_unknown_samples_is_refused_and_names_some() -> None:
    with pytest.raises(RequestError, match=r"2 of 3 sample ids are held by no client, for instance \[98, 99\]"):
        Request("samples", samples=(99, 1, 98)).check(CLIENTS)


def test_a_client_without_data_has_nothing_to_forget() -> None:
    with pytest.raises(RequestError, match="covers no sample"):
        Request("client", client="empty").check(CLIENTS)


@pytest.mark.parametrize(
    "request_",
    [Request("client", client="a"), Request("class", label=0), Request("samples", samples=(0, 3))],
    ids=["client", "class", "samples"],
)
def test_a_request_that_leaves_nothing_to_retain_is_refused(request_: Request) -> None:
    with pytest.raises(RequestError, match=r"nothing would be left to retain.*narrow the request"):
        request_.check({"a": data(0, 3), "empty": data()})


@pytest.mark.parametrize("scope", ["client", "class", "samples"])
def test_a_request_without_its_object_is_refused(scope: Scope) -> None:
    with pytest.raises(RequestError, match=f"scope '{scope}' needs the field"):
        Request(scope)


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(RequestError, match="unknown scope 'feature'; use one of client, class, samples"):
        Request("feature")  # type: ignore[arg-type]


def test_label_0_and_sample_0_can_be_forgotten() -> None:
    assert Request("class", label=0).mask("a", CLIENTS["a"]).tolist() == [True, False, False]
    assert Request("samples", samples=(0,)).mask("a", CLIENTS["a"]).tolist() == [True, False, False]


def test_each_of_several_served_together_must_cover_something() -> None:
    CLASS.check(CLIENTS)
    with pytest.raises(RequestError, match="covers no sample of any client"):
        Request("class", label=1, also=(Request("client", client="empty"),)).check(CLIENTS)
