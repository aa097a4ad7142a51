"""Aggregation against slow loops, and pooled BatchNorm statistics against the data themselves."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from letheon.errors import RoundError
from letheon.tree import Params
from letheon.work import BufferMean, Reply, average, averages


def replies(work: int = 0, seed: int = 0) -> list[Reply]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Reply(
            work,
            client,
            {"w": torch.randn(3, 2, generator=generator), "b": torch.randn(2, generator=generator)},
            weight=weight,
            metrics={"loss": float(i + 1)},
        )
        for i, (client, weight) in enumerate({"a": 10.0, "b": 3.0, "c": 27.0}.items())
    ]


def slow_mean(given: list[Reply]) -> dict[str, list[float]]:
    """Σ n_k Δ_k / Σ n_k, scalar by scalar in Python's floats."""
    total = sum(reply.weight for reply in given)
    flat = {name: [reply.tensors[name].flatten().tolist() for reply in given] for name in given[0].tensors}
    return {
        name: [sum(r.weight * row[i] for r, row in zip(given, rows, strict=True)) / total for i in range(len(rows[0]))]
        for name, rows in flat.items()
    }


def test_the_average_is_the_weighted_mean() -> None:
    given = replies()
    mean = average(given)
    for name, want in slow_mean(given).items():
        assert mean.tensors[name].flatten().tolist() == pytest.approx(want, rel=1e-6, abs=1e-9)
        assert mean.tensors[name].dtype == torch.float32
    assert (mean.weight, mean.clients) == (40.0, ("a", "b", "c"))
    assert mean.metrics == {"loss": pytest.approx((10 * 1 + 3 * 2 + 27 * 3) / 40)}


def test_weights_sum_to_one_so_that_equal_updates_come_back_as_they_were() -> None:
    update = {"w": torch.tensor([0.1, -7.3, 1e-20])}
    given = [Reply(0, str(k), update, weight=w) for k, w in enumerate((1.0, 3.0, 7.0, 0.1))]
    assert torch.equal(average(given).tensors["w"], update["w"])


def test_the_order_of_replies_changes_no_more_than_the_last_bits() -> None:
    means = [average(list(given)).tensors["w"] for given in permutations(replies())]
    for mean in means[1:]:
        torch.testing.assert_close(mean, means[0], rtol=1e-6, atol=1e-9)


def test_two_streams_are_averaged_apart_however_their_replies_are_mixed() -> None:
    forget, retain = replies(0, seed=1), replies(1, seed=2)[1:]
    mixed = [forget[0], retain[0], forget[1], retain[1], forget[2]]
    both = averages(mixed, 2)
    for found, given in zip(both, (forget, retain), strict=True):
        for name, want in slow_mean(given).items():
            assert found.tensors[name].flatten().tolist() == pytest.approx(want, rel=1e-6, abs=1e-9)
    assert both[1].clients == ("b", "c")


def test_a_client_without_weight_takes_no_part() -> None:
    given = replies()
    silent = Reply(0, "z", {"w": torch.full((3, 2), 1e9), "b": torch.zeros(2)}, weight=0.0)
    mean = average([*given, silent])
    assert torch.equal(mean.tensors["w"], average(given).tensors["w"])
    assert "z" not in mean.clients


def test_a_mean_over_nothing_is_refused() -> None:
    with pytest.raises(RoundError, match="no usable reply to work 0"):
        average([])
    with pytest.raises(RoundError, match="no usable reply to work 1"):
        averages(replies(0), 2)
    with pytest.raises(RoundError, match="client a: out of order"):
        average([Reply(0, "a", {}, error="out of order")])


def test_replies_that_name_different_tensors_are_refused() -> None:
    with pytest.raises(RoundError, match="name different tensors"):
        average([Reply(0, "a", {"w": torch.zeros(1)}, weight=1.0), Reply(0, "b", {"v": torch.zeros(1)}, weight=1.0)])


def statistics(samples: torch.Tensor, batches: int) -> Params:
    """What a BatchNorm layer with perfect memory would hold after seeing ``samples``."""
    return {
        "norm.running_mean": samples.mean(0).float(),
        "norm.running_var": samples.var(0, unbiased=False).float(),
        "norm.num_batches_tracked": torch.tensor(batches),
    }


def test_pooled_statistics_are_those_of_the_concatenated_data() -> None:
    generator = torch.Generator().manual_seed(0)
    shares = [
        mean + scale * torch.randn(n, 4, generator=generator, dtype=torch.float64)
        for n, mean, scale in ((50, -5.0, 1.0), (80, 5.0, 1.0), (20, 0.0, 3.0))
    ]
    pooled = BufferMean()
    for i, share in enumerate(shares):
        pooled.push(statistics(share, batches=i + 4), float(len(share)))
    found, whole = pooled.mean(), statistics(torch.cat(shares), batches=6)
    torch.testing.assert_close(found["norm.running_mean"], whole["norm.running_mean"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["norm.running_var"], whole["norm.running_var"], rtol=1e-5, atol=1e-6)
    assert found["norm.num_batches_tracked"].dtype == torch.int64
    assert int(found["norm.num_batches_tracked"]) == 6  # the maximum
    assert bool((found["norm.running_var"] > 10).all())  # a plain mean of the variances would be 2 at most


def test_equal_means_leave_the_plain_mean_of_the_variances_and_never_less() -> None:
    pooled = BufferMean()
    for weight, variance in ((1.0, 0.5), (3.0, 1e-6)):
        means = torch.tensor([1e3])  # their squares cancel
        pooled.push({"n.running_mean": means, "n.running_var": torch.tensor([variance])}, weight)
    found = float(pooled.mean()["n.running_var"])
    assert found == pytest.approx((0.5 + 3e-6) / 4, rel=1e-6)


def test_float_buffers_of_other_kinds_are_averaged_plainly() -> None:
    pooled = BufferMean()
    pooled.push({"scale": torch.tensor([1.0])}, 1.0)
    pooled.push({"scale": torch.tensor([5.0])}, 3.0)
    assert pooled.mean()["scale"].tolist() == [4.0]


def test_a_model_without_buffers_has_none_afterwards() -> None:
    assert average(replies()).buffers == {}
