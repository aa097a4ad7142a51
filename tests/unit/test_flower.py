"""The server's side of Flower: one message a client and round, and what becomes of replies that go wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from letheon import tree
from letheon.client import Client
from letheon.errors import ConfigError, RoundError
from letheon.middleware import Metered, Quorum
from letheon.request import Request
from letheon.runtimes.flower import ASKED, Flower, client_app, identity
from letheon.runtimes.inprocess import InProcess
from letheon.runtimes.mail import HELLO, WORK, Silence, content, parcel_in
from letheon.runtimes.records import Parcel, pack_replies, unpack_replies
from letheon.runtimes.site import Site
from letheon.runtimes.terms import Terms
from letheon.tasks.vision import Digits, MNIST5k
from letheon.testing.grid import SERVER, Answer, Fault, MemoryGrid, apps_of
from letheon.training import Local
from letheon.work import Reply, Work

TASK = Digits(norm=True)
DATA = TASK.train()
NAMES = {10: "a", 11: "b", 12: "c"}
GONE = Request("client", client="c")
QUICK = Terms(deadline_s=60, gather_s=0.2, poll_s=0.01)
HASTY = replace(QUICK, deadline_s=0.2)
LOST, UNAVAILABLE = 3, 5


def share(node: int) -> Any:
    return DATA.take(torch.arange(30) + 30 * (node - 10))


def apps(folder: Path, names: Mapping[int, str] = NAMES) -> dict[int, Any]:
    sites = {node: Site(name, share(node), TASK, folder / f"{node}.db") for node, name in names.items()}
    return {node: client_app(lambda context, site=site: site) for node, site in sites.items()}


def work(part: Any = "all", **fields: Any) -> Work:
    state = TASK.init(0)
    return Work("train", state.params, state.buffers, part, options=Local().options(0), **fields)


def by_client(replies: Iterable[Reply]) -> dict[str, Reply]:
    return {reply.client: reply for reply in replies}


def broken(folder: Path, fault: Fault, terms: Terms = QUICK) -> tuple[Reply, MemoryGrid]:
    """The reply of client b, at whose node something goes wrong; the others must be as if nothing had."""
    grid = MemoryGrid(apps(folder), names=NAMES, faults={11: fault})
    replies = by_client(Flower(grid, ["a", "b", "c"], terms=terms).run(work()))
    assert sorted(replies) == ["a", "b", "c"]
    assert (replies["a"].error, replies["c"].error) == ("", "")
    return replies["b"], grid


def error(code: int, reason: str = "out") -> Fault:
    return lambda message, answer: Message(Error(code, reason), reply_to=message)


def changed(change: Callable[[Reply], Reply]) -> Fault:
    """The node's own reply, changed."""

    def fault(message: Any, answer: Answer) -> Any:
        replies = unpack_replies(parcel_in(answer(message).content), "")
        return Message(content(pack_replies([change(reply) for reply in replies])), reply_to=message)

    return fault


def test_replies_come_in_the_order_of_clients_and_are_those_of_one_process(tmp_path: Path) -> None:
    clients = [Client(name, share(node), TASK) for node, name in NAMES.items()]
    with InProcess(clients) as runtime:
        expected = list(runtime.run(work()))
    grid = MemoryGrid(dict(reversed(apps(tmp_path).items())), names=NAMES)
    replies = list(Flower(grid, ["c", "a", "b"], terms=QUICK).run(work()))
    assert [reply.client for reply in replies] == ["a", "b", "c"]
    for reply, other in zip(replies, expected, strict=True):
        assert tree.digest(reply.tensors) == tree.digest(other.tensors)
        assert tree.digest(reply.buffers) == tree.digest(other.buffers)
        assert (reply.weight, reply.metrics, reply.work) == (other.weight, other.metrics, other.work)


def test_all_that_is_asked_of_a_client_goes_in_one_message(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path), names=NAMES)
    runtime = Flower(grid, ["a", "b", "c"], terms=QUICK)
    runtime.admit([GONE])
    works = (work("retain"), work("forget", request=GONE.id), work("retain", clients=("b",)))
    replies = list(runtime.run(*works))
    assert [(reply.client, reply.work) for reply in replies] == [("a", 0), ("b", 0), ("b", 2), ("c", 1)]
    assert [(p.way, p.node, p.kind) for p in grid.passages if p.way == "down"] == [
        ("down", node, WORK) for node in NAMES
    ]


def test_who_is_not_asked_gets_no_message(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path), names=NAMES)
    assert list(by_client(Flower(grid, ["a", "b", "c"], terms=QUICK).run(work(clients=("b",))))) == ["b"]
    assert {passage.node for passage in grid.passages} == {11}


def test_nothing_is_sent_before_replies_are_asked_for(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path), names=NAMES)
    Flower(grid, ["a", "b", "c"], terms=QUICK).run(work())
    assert grid.passages == []


def test_what_travels_is_what_the_cost_metric_counts(tmp_path: Path) -> None:
    big = Digits(norm=True)
    grid = MemoryGrid(apps(tmp_path), names=NAMES)
    meter = Metered(Flower(grid, ["a", "b", "c"], terms=QUICK))
    list(meter.run(work(), replace(work(), seed=1, options=Local(lr=0.5).options(0))))
    meter.observe("p", 1, big.init(0))
    sent = {way: sum(p.bytes for p in grid.passages if p.way == way) for way in ("down", "up")}
    # A model of 2,500 parameters: what is not tensors is a few kilobytes a message, whatever the model.
    assert 0 < sent["down"] - meter.phases[0].bytes_down < 3 * 5000
    assert 0 < sent["up"] - meter.phases[0].bytes_up < 3 * 5000


def test_of_lenet_s_messages_all_but_two_percent_is_what_the_cost_metric_counts(tmp_path: Path) -> None:
    task = MNIST5k()
    data = task.train().take(torch.arange(8))
    grid = MemoryGrid(apps_of([Site(name, data, task, tmp_path / f"{name}.db") for name in "abc"]))
    meter, state = Metered(Flower(grid, ["a", "b", "c"], terms=QUICK)), task.init(0)
    list(meter.run(Work("train", state.params, state.buffers, options=Local().options(0))))
    meter.observe("p", 1, state)
    sent = {way: sum(p.bytes for p in grid.passages if (p.way, p.kind) == (way, WORK)) for way in ("down", "up")}
    assert 1.0 < sent["down"] / meter.phases[0].bytes_down < 1.02
    assert 1.0 < sent["up"] / meter.phases[0].bytes_up < 1.02


def test_nodes_with_registered_names_are_not_asked_for_them(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path), names=NAMES)
    list(Flower(grid, ["a", "b", "c"], terms=QUICK).run(work()))
    assert {passage.kind for passage in grid.passages} == {WORK}


def test_nodes_without_names_are_asked_once(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path))
    runtime = Flower(grid, ["a", "b", "c"], terms=QUICK)
    assert list(by_client(runtime.run(work()))) == ["a", "b", "c"]
    assert list(by_client(runtime.run(work()))) == ["a", "b", "c"]
    assert [p.kind for p in grid.passages if p.way == "down"] == [HELLO] * 3 + [WORK] * 6


def test_a_node_that_nobody_expects_gets_nothing(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path, {**NAMES, 13: "stranger"}), names={**NAMES, 13: "stranger"})
    assert list(by_client(Flower(grid, ["a", "b", "c"], terms=QUICK).run(work()))) == ["a", "b", "c"]
    assert 13 not in {passage.node for passage in grid.passages}


def test_in_a_federation_with_registered_names_a_name_of_one_s_own_counts_for_nothing(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path, {10: "a", 11: "b", 13: "c"}), names={10: "a", 11: "b"})
    replies = by_client(Flower(grid, ["a", "b", "c"], terms=QUICK).run(work()))
    assert replies["c"].error == "is not connected"
    assert 13 not in {passage.node for passage in grid.passages}


def test_of_two_nodes_with_one_name_none_is_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = MemoryGrid(apps(tmp_path, {10: "a", 11: "b", 12: "b"}))
    replies = by_client(Flower(grid, ["a", "b"], terms=QUICK).run(work()))
    assert (replies["a"].error, replies["b"].error) == ("", "is not connected")
    assert "2 nodes say that they are b" in caplog.text


def test_a_stranger_that_does_not_say_its_name_is_asked_a_few_times_only(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path, {**NAMES, 13: "d"}), faults={13: lambda message, answer: None})
    runtime = Flower(grid, ["a", "b", "c"], terms=replace(QUICK, gather_s=0.02))
    for _ in range(ASKED + 2):
        assert not any(reply.error for reply in runtime.run(work()))
    assert sum(p.node == 13 for p in grid.passages) == ASKED


def test_a_client_that_comes_back_as_another_node_is_found_again(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path))
    runtime = Flower(grid, ["a", "b", "c"], terms=QUICK)
    first = by_client(runtime.run(work()))["b"]
    app = grid.apps.pop(11)
    assert by_client(runtime.run(work()))["b"].error == "is not connected"
    grid.apps[99] = app
    assert tree.digest(by_client(runtime.run(work()))["b"].tensors) == tree.digest(first.tensors)


def test_a_run_does_not_begin_without_any_client(tmp_path: Path) -> None:
    with pytest.raises(RoundError, match=r"none of a, b is connected after 0\.2 s"):
        list(Flower(MemoryGrid({}), ["a", "b"], terms=QUICK).run(work()))


def test_a_client_that_raises_is_named_with_its_reason_and_not_asked_again(tmp_path: Path) -> None:
    def fault(message: Any, answer: Answer) -> Any:
        return Message(Error(2, "Traceback\n  File x\nKeyError: 'pixels'"), reply_to=message)

    reply, grid = broken(tmp_path, fault)
    assert reply.error == "Flower error 2: KeyError: 'pixels'"
    assert sum(p.node == 11 and p.way == "down" for p in grid.passages) == 1


def test_an_app_that_raises_is_an_error_of_its_client(tmp_path: Path) -> None:
    def hook(context: Any) -> Site:
        raise OSError("disk is gone")

    grid = MemoryGrid(apps(tmp_path) | {11: client_app(hook)}, names=NAMES)
    reply = by_client(Flower(grid, ["a", "b", "c"], terms=QUICK).run(work()))["b"]
    assert reply.error == "Flower error 2: OSError: disk is gone"


def test_a_node_that_died_is_named_although_the_superlink_speaks_for_it(tmp_path: Path) -> None:
    def fault(message: Any, answer: Answer) -> Any:
        reply = Message(Error(UNAVAILABLE, "node is gone"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = SERVER
        return reply

    reply, grid = broken(tmp_path, fault)
    assert reply.error == "Flower error 5: node is gone"
    assert sum(p.node == 11 and p.way == "down" for p in grid.passages) == QUICK.tries


def test_a_message_that_got_lost_is_sent_again_and_the_reply_is_the_same(tmp_path: Path) -> None:
    calls: list[Any] = []

    def fault(message: Any, answer: Answer) -> Any:
        calls.append(answer(message))  # it had done the work, then its reply got lost
        return error(LOST)(message, answer) if len(calls) == 1 else calls[-1]

    reply, _ = broken(tmp_path, fault)
    whole, _ = broken(tmp_path, lambda message, answer: answer(message))
    assert reply.error == ""
    assert len(calls) == 2
    assert tree.digest(reply.tensors | reply.buffers) == tree.digest(whole.tensors | whole.buffers)


def test_a_reply_that_is_not_there_at_the_deadline_is_missing(tmp_path: Path) -> None:
    started = time.monotonic()
    reply, _ = broken(tmp_path, lambda message, answer: None, HASTY)
    assert reply.error == "no reply within 0.2 s"
    assert 0.2 <= time.monotonic() - started < 30


def test_a_late_reply_is_not_taken_for_one_of_the_next_round(tmp_path: Path) -> None:
    answers: list[Any] = []

    def fault(message: Any, answer: Answer) -> Any:
        answers.append(answer(message))
        return answers[-2] if len(answers) > 1 else None  # always the reply of the round before

    grid = MemoryGrid(apps(tmp_path), names=NAMES, faults={11: fault})
    runtime = Flower(grid, ["a", "b", "c"], terms=HASTY)
    for seed in range(3):
        assert by_client(runtime.run(work(seed=seed)))["b"].error == "no reply within 0.2 s"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: replace(r, tensors={n: t * torch.nan for n, t in r.tensors.items()}), "its reply is not finite"),
        (lambda r: replace(r, weight=float("nan")), "its weight is nan"),
        (lambda r: replace(r, weight=-1.0), "its weight is -1.0"),
        (lambda r: replace(r, metrics={"loss": float("inf")}), "its loss is inf"),
        (lambda r: replace(r, tensors={n: t[..., :1] for n, t in r.tensors.items()}), "does not match what was sent"),
        (lambda r: replace(r, tensors={n: t.double() for n, t in r.tensors.items()}), "does not match what was sent"),
        (lambda r: replace(r, tensors={}), "does not match what was sent"),
        (lambda r: replace(r, buffers={}), "its buffers do not match"),
        (lambda r: replace(r, tensors={"x": torch.zeros(10**6)}), "bytes, "),
        (lambda r: replace(r, work=3), "it answers works [3], asked were [0]"),
    ],
)
def test_a_reply_that_cannot_be_used_is_quarantined_by_name(
    change: Callable[[Reply], Reply], reason: str, tmp_path: Path
) -> None:
    grid = MemoryGrid(apps(tmp_path), names=NAMES, faults={11: changed(change)})
    quorum = Quorum(Flower(grid, ["a", "b", "c"], terms=QUICK))
    assert list(by_client(quorum.run(work()))) == ["a", "c"]
    quorum.observe("p", 1, TASK.init(0))
    (event,) = quorum.events
    assert event["client"] == "b"
    assert reason in event["reason"]


@pytest.mark.parametrize(
    "record",
    [
        RecordDict,
        lambda: RecordDict({"text": ConfigRecord({"letheon": "x", "client": ""})}),
        lambda: content(Parcel("{}", b"")),
        lambda: RecordDict(
            {
                "text": ConfigRecord({"letheon": 1, "client": ""}),
                "tensors": ArrayRecord({"letheon": Array("uint8", (0,), "safetensors", b"")}),
            }
        ),
    ],
)
def test_a_reply_that_letheon_did_not_write_is_an_error(record: Callable[[], Any], tmp_path: Path) -> None:
    reply, _ = broken(tmp_path, lambda message, answer: Message(record(), reply_to=message))
    assert reply.error


def test_pickled_tensors_are_not_read(tmp_path: Path) -> None:
    def fault(message: Any, answer: Answer) -> Any:
        record = answer(message).content
        array = record["tensors"]["letheon"]
        record["tensors"]["letheon"] = Array(array.dtype, tuple(array.shape), "pickle", array.data)
        return Message(record, reply_to=message)

    reply, _ = broken(tmp_path, fault)
    assert "'pickle', expected str and safetensors" in reply.error


def test_a_message_that_the_superlink_does_not_take_is_an_error_of_its_client(tmp_path: Path) -> None:
    class Refusing(MemoryGrid):
        def push_messages(self, messages: Iterable[Any]) -> list[Any]:
            ids = list(super().push_messages(messages))
            return [None, *ids[1:]]

    grid = Refusing(apps(tmp_path), names=NAMES)
    replies = by_client(Flower(grid, ["a", "b", "c"], terms=QUICK).run(work()))
    assert replies["a"].error == "the SuperLink did not take its message"
    assert (replies["b"].error, replies["c"].error) == ("", "")


class Stuck(MemoryGrid):
    """Whose SuperLink is gone: flwr itself would wait for it for ever."""

    stuck = ""
    release: threading.Event

    def get_nodes(self) -> Any:
        return self._held("nodes") or super().get_nodes()

    def push_messages(self, messages: Iterable[Any]) -> Any:
        return self._held("push") or super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Any:
        return self._held("pull") or super().pull_messages(message_ids)

    def _held(self, what: str) -> list[Any]:
        if self.stuck == what:
            self.release.wait()
        return []


@pytest.mark.parametrize("stuck", ["nodes", "push", "pull"])
def test_a_superlink_that_is_gone_ends_the_round_and_nothing_hangs(
    stuck: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("letheon.runtimes.mail.LOOK_S", 0.1)
    grid = Stuck(apps(tmp_path), names=NAMES)
    grid.stuck, grid.release = stuck, threading.Event()
    try:
        with pytest.raises(RoundError) as raised:
            list(Quorum(Flower(grid, ["a", "b", "c"], terms=HASTY)).run(work()))
    finally:
        grid.release.set()
    if stuck == "pull":
        assert "0 usable replies" in str(raised.value)
        assert "a: no reply within 0.2 s" in str(raised.value)
    else:
        assert isinstance(raised.value, Silence)


def test_what_flower_raises_is_raised(tmp_path: Path) -> None:
    class Stopped(BaseException):
        pass

    class Ended(MemoryGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Any:
            raise Stopped

    with pytest.raises(Stopped):
        list(Flower(Ended(apps(tmp_path), names=NAMES), ["a", "b", "c"], terms=QUICK).run(work()))


def test_a_model_beyond_the_limit_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path), names=NAMES)
    runtime = Flower(grid, ["a", "b", "c"], terms=replace(QUICK, largest_mib=1))
    with pytest.raises(RoundError, match="a message of 4 MiB, more than largest_mib = 1; raise it"):
        list(runtime.run(Work("train", {"w": torch.zeros(2**20)})))
    assert grid.passages == []


def test_an_array_larger_than_a_chunk_arrives_whole(tmp_path: Path) -> None:
    grid = MemoryGrid(apps(tmp_path), names=NAMES)
    basis = {"basis": torch.arange(4e6)}  # 16 MB: Flower cuts it into chunks of 5 MiB
    replies = list(Flower(grid, ["a", "b", "c"], terms=QUICK).run(work(extras=basis)))
    assert [reply.error for reply in replies] == ["", "", ""]


@pytest.mark.parametrize("field", ["deadline_s", "gather_s", "tries", "poll_s", "largest_mib"])
def test_terms_are_positive(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: must be positive, got 0"):
        replace(Terms(), **{field: 0})


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_client_names_must_differ_and_there_must_be_one(names: list[str]) -> None:
    with pytest.raises(RoundError, match="client names must differ"):
        Flower(MemoryGrid({}), names)


def context(node: dict[str, Any]) -> Context:
    return Context(7, 10, node, RecordDict(), {"folder": "/state"})


def test_a_site_is_who_its_node_configuration_says() -> None:
    node = {"client": "b", "table": "/tables/b.db", "partition-id": 0, "num-partitions": 9}
    assert identity(context(node), ["a", "b"]) == ("b", Path("/tables/b.db"))


def test_a_node_of_the_simulation_engine_is_a_client_by_its_number() -> None:
    found = [identity(context({"partition-id": k, "num-partitions": 2}), ["b", "a"]) for k in range(2)]
    assert found == [("a", Path("/state/sites/a.db")), ("b", Path("/state/sites/b.db"))]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({}, "names no site; start it with --node-config"),
        ({"client": "a"}, "names no site; start it with --node-config"),
        ({"partition-id": 1, "num-partitions": 5}, "5 simulated nodes for 2 clients; .*num-supernodes=2"),
    ],
)
def test_a_node_that_is_nobody_says_what_to_do(node: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        identity(context(node), ["a", "b"])


def test_private_keys_are_their_owner_s_alone_from_the_first_moment(tmp_path: Path) -> None:
    from letheon.federation.keys import certify, key_pair

    files = certify(tmp_path / "certificates", "127.0.0.1")
    public = key_pair(tmp_path / "keys/site-a")
    for private in (files.key, public.with_suffix("")):
        assert private.stat().st_mode & 0o777 == 0o600
        assert private.parent.stat().st_mode & 0o777 == 0o700
