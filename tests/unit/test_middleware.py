"""Federations that wrap a federation."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import pytest
import torch

from letheon.errors import Diverged, Excluded, RoundError
from letheon.middleware import Cost, DryRun, Excluding, Metered, Quorum, fault
from letheon.phase import State
from letheon.tasks.vision import Digits
from letheon.tree import Params
from letheon.work import Reply, Work, average, averages

PARAMS: Params = {"w": torch.zeros(4), "b": torch.zeros(2)}
BUFFERS: Params = {"mean": torch.zeros(3), "count": torch.tensor(0)}
ADAPTER: Params = {"adapter.up": torch.zeros(5)}
STATE = State(PARAMS)
NAN = float("nan")


class Canned:
    """A federation that answers what it was given."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.replies = replies
        self.works: tuple[Work, ...] = ()

    def run(self, *works: Work) -> Iterator[Reply]:
        self.works = works
        return iter(self.replies)


def train(part: str = "retain", extras: Params | None = None) -> Work:
    return Work("train", PARAMS, BUFFERS, part, extras=extras or {})  # type: ignore[arg-type]


def good(client: str, *, work: int = 0, value: float = 1.0) -> Reply:
    tensors = {name: torch.full_like(tensor, value) for name, tensor in PARAMS.items()}
    return Reply(work, client, tensors, BUFFERS, weight=2.0, metrics={"samples": 2.0, "flops": 10.0})


def but(client: str, *, tensors: Params | None = None, buffers: Params | None = None, weight: float = 2.0) -> Reply:
    return Reply(0, client, {**PARAMS, **(tensors or {})}, {**BUFFERS, **(buffers or {})}, weight=weight)


BAD = {
    "error": (Reply(0, "bad", {}, error="disk on fire"), "disk on fire"),
    "nan": (but("bad", tensors={"b": torch.tensor([0.0, NAN])}), "not finite"),
    "infinity": (but("bad", tensors={"w": torch.full((4,), float("inf"))}), "not finite"),
    "nan in a buffer": (but("bad", buffers={"mean": torch.full((3,), NAN)}), "not finite"),
    "shape": (but("bad", tensors={"w": torch.zeros(2, 2)}), r"w is \(2, 2\)"),
    "dtype": (but("bad", tensors={"w": torch.zeros(4, dtype=torch.float64)}), "float64"),
    "one tensor too many": (but("bad", tensors={"x": torch.zeros(1)}), r"names differ: \['x'\]"),
    "a tensor missing": (Reply(0, "bad", {"w": PARAMS["w"]}, BUFFERS, weight=1.0), r"names differ: \['b'\]"),
    "no tensor": (Reply(0, "bad", {}, BUFFERS, weight=1.0), "names differ"),
    "other names": (Reply(0, "bad", {"v": torch.zeros(4)}, BUFFERS, weight=1.0), "names differ"),
    "no buffers": (Reply(0, "bad", PARAMS, {}, weight=1.0), "buffers do not match"),
    "buffer of another shape": (but("bad", buffers={"mean": torch.zeros(1)}), r"mean is \(1,\)"),
    "weight nan": (but("bad", weight=NAN), "its weight is nan"),
    "weight infinite": (but("bad", weight=float("inf")), "its weight is inf"),
    "weight negative": (but("bad", weight=-1.0), "its weight is -1"),
    "weight beyond counting": (but("bad", tensors={"w": torch.ones(4)}, weight=1e308), r"its weight is 1e\+308"),
    "a metric beyond all": (replace(but("bad"), metrics={"loss": 1.7e308}), r"its loss is 1\.7e\+308"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_reply_that_cannot_be_used_is_quarantined_by_name_and_the_round_goes_on(
    kind: str, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    reply, reason = BAD[kind]
    replies = [good("a"), good("c", value=3.0)]
    replies.insert(place, reply)
    quorum = Quorum(Canned(replies), minimum=2)
    mean = average(quorum.run(train()))
    assert mean.tensors["w"].tolist() == [2.0] * 4
    assert (mean.clients, mean.weight) == (("a", "c"), 4.0)
    assert mean.buffers["mean"].tolist() == [0.0] * 3
    quorum.observe("restore", 4, STATE)
    (event,) = quorum.events
    assert (event["client"], event["phase"], event["round"]) == ("bad", "restore", 4)
    assert re.search(reason, event["reason"])
    assert any("client bad quarantined" in record.message for record in caplog.records)


def test_a_client_that_can_never_take_part_is_warned_of_once_and_noted_in_every_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "letheon")
    quorum = Quorum(Canned([good("a"), BAD["error"][0]]))
    for done in (1, 2, 3):
        average(quorum.run(train()))
        quorum.observe("restore", done, STATE)
    assert [event["round"] for event in quorum.events] == [1, 2, 3]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]


def test_too_few_usable_replies_are_an_error_that_names_the_clients_and_keeps_the_model() -> None:
    quorum = Quorum(Canned([good("a"), BAD["error"][0], BAD["shape"][0]]), minimum=2)
    with pytest.raises(
        RoundError, match=r"1 usable replies to 'train' on 'retain', 2 needed \(bad: disk on fire;.*kept"
    ):
        average(quorum.run(train()))


def test_no_reply_at_all_says_that_no_client_holds_the_part() -> None:
    with pytest.raises(RoundError, match="no client holds the part 'forget'"):
        average(Quorum(Canned([])).run(train("forget")))


def test_each_work_needs_its_own_quorum() -> None:
    replies = [good("a"), good("b"), good("a", work=1)]
    first, second = averages(Quorum(Canned(replies)).run(train("retain"), train("forget")), 2)
    assert (first.clients, second.clients) == (("a", "b"), ("a",))
    averages(Quorum(Canned(replies), minimum=2).run(train("retain"), train("forget")), 2)
    with pytest.raises(RoundError, match="1 usable replies to 'train' on 'retain'"):
        averages(Quorum(Canned(replies), minimum=2).run(train("forget"), train("retain")), 2)


def test_of_a_cohort_smaller_than_the_quorum_all_must_answer() -> None:
    quorum = Quorum(Canned([good("a")]), minimum=2)
    assert average(quorum.run(replace(train(), clients=("a",)))).clients == ("a",)
    with pytest.raises(RoundError, match="1 usable replies to 'train' on 'retain', 2 needed"):
        average(quorum.run(replace(train(), clients=("a", "b", "c"))))


@pytest.mark.parametrize("told", [NAN, float("inf"), -float("inf"), 1.7e308])
def test_numbers_that_no_client_can_mean_do_not_reach_the_costs(told: float) -> None:
    bad = replace(good("b"), metrics={"samples": told, "flops": told})
    meter = Metered(Canned([good("a"), bad, replace(bad, client="c")]))
    average(Quorum(meter).run(train()))
    meter.observe("restore", 1, STATE)
    (cost,) = meter.phases
    assert (cost.samples, cost.flops) == (2.0, 10.0)


NAN_REPLY, ERROR_REPLY = BAD["nan"][0], BAD["error"][0]


@pytest.mark.parametrize(
    ("replies", "minimum", "diverged"),
    [
        ([NAN_REPLY, NAN_REPLY], 1, True),
        ([NAN_REPLY, ERROR_REPLY], 1, True),  # a client that could not take part anyway does not hide it
        ([NAN_REPLY, good("a")], 2, True),
        ([ERROR_REPLY, ERROR_REPLY], 1, False),
        ([NAN_REPLY, ERROR_REPLY, good("a")], 3, False),  # the client with the error was needed too
        ([], 1, False),
    ],
)
def test_a_round_that_fails_for_replies_that_are_not_finite_has_diverged(
    replies: list[Reply], minimum: int, diverged: bool
) -> None:
    with pytest.raises(RoundError) as caught:
        average(Quorum(Canned(replies), minimum=minimum).run(train()))
    assert isinstance(caught.value, Diverged) == diverged


def test_faults_of_one_work_do_not_speak_for_another() -> None:
    adrift = Reply(1, "a", {**PARAMS, "w": torch.full((4,), NAN)}, BUFFERS, weight=1.0)
    with pytest.raises(Diverged, match=r"'forget', 1 needed \(a: its reply is not finite"):
        averages(Quorum(Canned([ERROR_REPLY, good("a"), adrift])).run(train(), train("forget")), 2)


def test_many_reasons_are_cut_short() -> None:
    replies = [Reply(0, f"c{i}", {}, error="no") for i in range(9)]
    with pytest.raises(RoundError, match=r"c4: no …\)"):
        average(Quorum(Canned(replies)).run(train()))


def test_an_adapter_must_match_the_adapter_that_was_sent_and_an_evaluation_nothing() -> None:
    amplify = Work("amplify", PARAMS, BUFFERS, "forget", extras=ADAPTER)
    right = Reply(0, "a", {"adapter.up": torch.ones(5)}, weight=1.0)
    wrong = Reply(0, "b", {"adapter.up": torch.ones(6)}, weight=1.0)
    assert average(Quorum(Canned([right, wrong])).run(amplify)).clients == ("a",)
    evaluation = Reply(0, "a", {"correct": torch.ones(3, dtype=torch.bool)}, weight=3.0)
    assert [r.client for r in Quorum(Canned([evaluation])).run(Work("evaluate", PARAMS, BUFFERS))] == ["a"]


def test_events_survive_the_journal() -> None:
    quorum = Quorum(Canned([good("a"), ERROR_REPLY]))
    average(quorum.run(train()))
    quorum.observe("train", 1, STATE)
    other = Quorum(Canned([]))
    other.load(quorum.dump())
    assert other.events == quorum.events == [{"phase": "train", "round": 1, "client": "bad", "reason": "disk on fire"}]
    other.observe("train", 2, STATE)
    assert len(other.events) == 1


def test_bytes_samples_and_flops_are_counted_per_phase_and_shared_tensors_are_sent_once() -> None:
    meter = Metered(Canned([good("a"), good("b"), good("a", work=1)]))
    averages(meter.run(train(extras=ADAPTER), train("forget", extras=ADAPTER)), 2)
    meter.observe("rectify", 1, STATE)
    model = 6 * 4 + 3 * 4 + 8
    (cost,) = meter.phases
    assert cost.bytes_down == 2 * (model + 5 * 4)  # a gets both works in one message
    assert cost.bytes_up == 3 * model
    assert (cost.rounds, cost.samples, cost.flops) == (1, 6.0, 30.0)
    assert cost.seconds > 0.0


def test_different_tensors_of_the_same_name_are_sent_twice() -> None:
    meter = Metered(Canned([good("a"), good("a", work=1)]))
    averages(meter.run(train(), Work("train", {k: v + 1 for k, v in PARAMS.items()}, BUFFERS)), 2)
    meter.observe("x", 1, STATE)
    assert meter.phases[0].bytes_down == 2 * 6 * 4 + 3 * 4 + 8


def test_quarantined_replies_have_cost_something_too() -> None:
    meter = Metered(Canned([good("a"), NAN_REPLY]))
    average(Quorum(meter).run(train()))
    meter.observe("x", 1, STATE)
    assert meter.phases[0].bytes_up == 2 * (6 * 4 + 3 * 4 + 8)


def test_a_round_without_traffic_costs_nothing_and_rounds_are_booked_under_their_phase() -> None:
    meter = Metered(Canned([good("a")]))
    meter.observe("negate", 1, STATE)
    for done in (1, 2):
        average(meter.run(train()))
        meter.observe("restore", done, STATE)
    assert [(cost.phase, cost.rounds) for cost in meter.phases] == [("negate", 0), ("restore", 2)]


def test_what_the_server_keeps_is_that_of_the_last_round_of_a_phase() -> None:
    meter, state = Metered(Canned([good("a")])), STATE
    for done in (1, 2):
        state = replace(state, memory=state.memory | {f"history/{done}": torch.zeros(5)})
        meter.observe("train", done, state)
    meter.observe("forget", 1, STATE)
    assert [(cost.phase, cost.storage) for cost in meter.phases] == [("train", 40), ("forget", 0)]


def test_costs_that_were_saved_are_not_counted_twice() -> None:
    first = Metered(Canned([good("a")]))
    average(first.run(train()))
    first.observe("restore", 1, STATE)
    saved = first.dump()
    average(first.run(train()))  # a round that is lost: its process is killed before the journal is written
    second = Metered(Canned([good("a")]))
    second.load(saved)
    average(second.run(train()))
    second.observe("restore", 2, STATE)
    (cost,) = second.phases
    assert (cost.rounds, cost.samples) == (2, 4.0)
    assert asdict(Cost(**saved[0]))["rounds"] == 1


def test_work_on_all_data_is_refused_once_a_request_was_admitted() -> None:
    inner = Canned([good("a")])
    excluding = Excluding(inner, request="r1")
    with pytest.raises(Excluded, match="'train' on all data after request r1"):
        excluding.run(train(), train("all"))
    assert inner.works == ()
    list(excluding.run(train(), train("forget")))
    assert [(work.part, work.request) for work in inner.works] == [("retain", "r1"), ("forget", "r1")]


REFRESH = Work("refresh", PARAMS, BUFFERS, "retain")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(0, "a", {}, BUFFERS, weight=1.0), ""),
        (Reply(0, "a", {}, {}, weight=1.0), "its buffers do not match what was sent"),
        (Reply(0, "a", PARAMS, BUFFERS, weight=1.0), "its reply does not match what was sent"),
    ],
    ids=["buffers", "nothing", "parameters too"],
)
def test_a_pass_for_statistics_is_answered_with_the_buffers_and_nothing_else(reply: Reply, reason: str) -> None:
    assert fault(REFRESH, reply).startswith(reason)
    assert bool(fault(REFRESH, reply)) == bool(reason)


def test_of_a_pass_for_statistics_a_dry_run_counts_the_buffers_that_come_back() -> None:
    (reply,) = DryRun({"a": {"retain": 3}}, Digits()).run(REFRESH)
    assert (reply.tensors, reply.buffers, reply.metrics["samples"]) == ({}, BUFFERS, 3.0)
