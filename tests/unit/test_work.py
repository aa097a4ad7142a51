"""Averages over streamed replies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from letheon.errors import RoundError
from letheon.tree import Params
from letheon.work import Reply, Work, average, averages


def reply(client: str, value: float, weight: float, *, work: int = 0, buffers: Params | None = None) -> Reply:
    return Reply(work, client, {"w": torch.tensor([value])}, buffers or {}, weight=weight, metrics={"loss": value})


def test_the_mean_is_weighted_by_samples() -> None:
    mean = average([reply("a", 1.0, 1.0), reply("b", 4.0, 3.0)])
    assert mean.tensors["w"].tolist() == [(1.0 + 12.0) / 4.0]
    assert mean.tensors["w"].dtype == torch.float32
    assert (mean.weight, mean.clients, mean.metrics) == (4.0, ("a", "b"), {"loss": 3.25})


def test_works_asked_for_together_are_averaged_apart() -> None:
    stream = [reply("a", 1.0, 1.0), reply("a", 10.0, 5.0, work=1), reply("b", 3.0, 1.0)]
    first, second = averages(iter(stream), 2)
    assert (first.tensors["w"].item(), first.clients) == (2.0, ("a", "b"))
    assert (second.tensors["w"].item(), second.weight) == (10.0, 5.0)


def test_a_client_without_samples_takes_no_part() -> None:
    mean = average([reply("a", float("nan"), 0.0), reply("b", 2.0, 2.0)])
    assert (mean.tensors["w"].item(), mean.clients) == (2.0, ("b",))


@pytest.mark.parametrize("replies", [[], [reply("a", 1.0, 0.0), reply("b", 1.0, 0.0)]])
def test_a_mean_over_nothing_is_refused_and_never_a_zero_update(replies: list[Reply]) -> None:
    with pytest.raises(RoundError, match="no usable reply to work 0; the round is refused"):
        average(replies)
    with pytest.raises(RoundError, match="no usable reply to work 1"):
        averages([reply("a", 1.0, 1.0)], 2)


def test_an_error_that_no_quorum_has_dealt_with_ends_the_round() -> None:
    with pytest.raises(RoundError, match="client a: out of battery"):
        average([Reply(0, "a", {}, error="out of battery")])


def test_replies_that_name_different_tensors_are_refused() -> None:
    other = Reply(0, "b", {"v": torch.ones(1)}, weight=1.0)
    with pytest.raises(RoundError, match=r"name different tensors: \['v', 'w'\]"):
        average([reply("a", 1.0, 1.0), other])


def test_replies_of_different_shapes_are_refused() -> None:
    longer = Reply(0, "b", {"w": torch.ones(2)}, weight=1.0)
    with pytest.raises(RoundError, match=r"disagree on the shape of w: \(1,\), \(2,\)"):
        average([reply("a", 1.0, 1.0), longer])


def test_the_sum_is_exact_where_float32_would_lose_it() -> None:
    mean = average([reply("a", 2.0**24, 1.0), reply("b", 1.0, 1.0), reply("c", -(2.0**24), 1.0)])
    assert mean.tensors["w"].item() == torch.tensor(1.0 / 3.0).item()


def norm_buffers(mean: float, variance: float, count: int) -> Params:
    tensors = {"n.running_mean": torch.tensor([mean]), "n.running_var": torch.tensor([variance])}
    return tensors | {"n.num_batches_tracked": torch.tensor(count)}


def test_counters_take_the_maximum_and_keep_their_type() -> None:
    stream = [reply(name, 0.0, 1.0, buffers=norm_buffers(0.0, 1.0, n)) for name, n in (("a", 3), ("b", 7), ("c", 5))]
    counter = average(stream).buffers["n.num_batches_tracked"]
    assert (counter.item(), counter.dtype) == (7, torch.int64)


def test_the_pooled_variance_knows_how_far_the_means_lie_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = [torch.randn(4000, generator=generator) * 1.0 - 5.0, torch.randn(1000, generator=generator) + 5.0]
    stream = [
        reply(str(i), 0.0, float(len(x)), buffers=norm_buffers(x.mean().item(), x.var(correction=0).item(), 1))
        for i, x in enumerate(samples)
    ]
    pooled, both = average(stream).buffers, torch.cat(samples)
    assert pooled["n.running_mean"].item() == pytest.approx(both.mean().item(), abs=1e-4)
    assert pooled["n.running_var"].item() == pytest.approx(both.var(correction=0).item(), rel=1e-4)
    assert pooled["n.running_var"].item() > 15.0  # the mean of the variances is 1


def test_the_pooled_variance_of_equal_clients_is_theirs() -> None:
    stream = [reply(name, 0.0, 3.0, buffers=norm_buffers(1e3, 1e-3, 1)) for name in "abc"]
    variance = average(stream).buffers["n.running_var"].item()
    assert variance == pytest.approx(1e-3, rel=1e-3)


def test_work_for_a_cohort_reaches_its_members_only() -> None:
    everybody = Work("train", {})
    some = replace(everybody, clients=("a", "c"))
    assert [everybody.asks(name) for name in "abc"] == [True, True, True]
    assert [some.asks(name) for name in "abc"] == [True, False, True]
