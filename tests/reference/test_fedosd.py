"""FedOSD's two stages against the equations with pseudo-gradients and a dense matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from of_three import Small
from torch import Tensor

from letheon import tree
from letheon.errors import ConfigError, RoundError
from letheon.methods.fedosd import FedOSD
from letheon.phase import State, drive
from letheon.training import Local
from letheon.tree import Params
from letheon.work import BufferMean, Reply, Work, separate

ETA = 0.05
LOCAL = Local(lr=ETA, momentum=0.0, batch_size=4)


def flat(vector: Params) -> Tensor:
    return torch.cat([tensor.double().flatten() for tensor in vector.values()])


def slow_step(forget: list[Params], retain: list[Params]) -> Tensor:
    """−η d: with g_k = −Δ_k/η, d = g_u − Gᵀ(GGᵀ)⁺Gg_u, rescaled to ‖g_u‖."""
    g_u = torch.stack([-flat(update) / ETA for update in forget]).mean(0)
    matrix = torch.stack([-flat(update) / ETA for update in retain])
    d = g_u - matrix.T @ torch.linalg.pinv(matrix @ matrix.T) @ matrix @ g_u
    return -ETA * d / d.norm() * g_u.norm()


def pooled(replies: list[Reply]) -> Params:
    mean = BufferMean()
    for reply in replies:
        mean.push(reply.buffers, reply.weight)
    return mean.mean()


def test_a_round_of_unlearning_follows_the_equations(small: Small) -> None:
    method = FedOSD(rounds=1, restore_rounds=0, local=LOCAL)
    end = drive(method.phases(small.start, small.task), small.tap, small.start, seed=9)
    ((works, replies),) = small.tap.calls
    assert [(work.part, work.options.get("objective", "task")) for work in works] == [
        ("forget", "uce"),
        ("retain", "task"),
    ]
    forget, retain = ([r.tensors for r in replies if r.work == index] for index in (0, 1))
    assert (len(forget), len(retain)) == (1, 2)
    moved = flat(end.params) - flat(small.start.params)
    # In absolute terms: w + step is rounded to float32 at the size of w, about 1e-8.
    torch.testing.assert_close(moved, slow_step(forget, retain), rtol=1e-4, atol=1e-7)
    assert float(moved.norm()) == pytest.approx(float(flat(forget[0]).norm()), rel=1e-4)
    for update in retain:
        assert abs(float(torch.dot(moved, flat(update)))) < 1e-5 * float(moved.norm() * flat(update).norm())
    buffers = pooled([reply for reply in replies if reply.work == 1])
    assert tree.digest(end.buffers) == tree.digest(buffers)


def test_the_update_to_unlearn_alone_would_not_be_orthogonal(small: Small) -> None:
    """Or the test before this one would prove nothing."""
    FedOSD(rounds=1, local=LOCAL).phases(small.start, small.task)[0].step(small.tap, small.start, 0)
    replies = small.tap.calls[0][1]
    forget, retain = next(r for r in replies if r.work == 0), next(r for r in replies if r.work == 1)
    product = tree.dot(forget.tensors, retain.tensors)
    assert abs(product) > 1e-2 * tree.norm(forget.tensors) * tree.norm(retain.tensors)


@pytest.mark.parametrize("project", ["always", "if_reverting"])
def test_a_round_of_restoring_follows_the_equations(small: Small, project: str) -> None:
    """g_k − (g_k·g_a/‖g_a‖²) g_a at its old length, g_a = w − w_0, then the plain mean over clients."""
    method = FedOSD(rounds=2, restore_rounds=1, project=project, local=LOCAL)  # type: ignore[arg-type]
    seen: list[State] = []
    phases = method.phases(small.start, small.task)
    drive(phases, small.tap, small.start, seed=9, observers=[lambda phase, done, state: seen.append(state)])
    g_a = flat(seen[1].params) - flat(small.start.params)
    works, replies = small.tap.calls[-1]
    assert [work.part for work in works] == ["retain"]
    total, turned = torch.zeros_like(g_a), 0
    for reply in replies:
        g_k = -flat(reply.tensors) / ETA
        along = torch.dot(g_k, g_a)
        if project == "always" or along > 0:
            turned += 1
            across = g_k - along / g_a.norm() ** 2 * g_a
            g_k = across / across.norm() * g_k.norm()
            assert abs(float(torch.dot(g_k, g_a))) < 1e-9 * float(g_k.norm() * g_a.norm())
        total += g_k / len(replies)
    assert turned or project != "always"
    moved = flat(seen[2].params) - flat(seen[1].params)
    torch.testing.assert_close(moved, -ETA * total, rtol=1e-4, atol=1e-7)
    if project == "always":
        assert abs(float(torch.dot(moved, g_a))) < 1e-5 * float(moved.norm() * g_a.norm())
    assert tree.digest(seen[2].buffers) == tree.digest(pooled(list(replies)))


class Spanned:
    """Answers with an update to unlearn that the two retained ones span."""

    def run(self, *works: Work) -> Iterator[Reply]:
        generator = torch.Generator().manual_seed(0)
        draws = [{n: torch.randn(t.shape, generator=generator) for n, t in works[0].params.items()} for _ in "ab"]
        for index, work in enumerate(works):
            if work.part == "forget":
                yield Reply(index, "u", tree.add(draws[0], draws[1]), dict(work.buffers), weight=1.0)
            else:
                for name, draw in zip("ab", draws, strict=True):
                    yield Reply(index, name, draw, dict(work.buffers), weight=1.0)


def test_where_the_retained_updates_span_the_one_to_unlearn_the_stage_ends_without_a_step(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[tuple[str, int, str]] = []
    drive(
        FedOSD(rounds=5, restore_rounds=1, local=LOCAL).phases(small.start, small.task),
        Spanned(),
        small.start,
        seed=9,
        observers=[lambda phase, done, state: rounds.append((phase, done, tree.digest(state.params)))],
    )
    assert [(phase, done) for phase, done, _ in rounds] == [("unlearn", 1), ("restore", 1)]
    assert rounds[0][2] == tree.digest(small.start.params)
    assert "span the one to unlearn" in caplog.text


def test_replies_that_cannot_be_used_are_treated_as_by_the_averages(small: Small) -> None:
    def reply(work: int, weight: float = 1.0, error: str = "") -> Reply:
        return Reply(work, "a", {}, weight=weight, error=error)

    assert [len(kept) for kept in separate([reply(0), reply(1), reply(1, weight=0.0)], 2)] == [1, 1]
    with pytest.raises(RoundError, match="client a: out of memory"):
        separate([reply(0, error="out of memory")], 1)
    with pytest.raises(RoundError, match="no usable reply to work 1"):
        separate([reply(0), reply(1, weight=0.0)], 2)


def test_its_own_recipe_is_plain_sgd_and_others_are_refused() -> None:
    filled = FedOSD().configured(Local(optimizer="adam", lr=0.3, batch_size=7, epochs=3, decay=0.9), 5, 0)
    assert filled.local == Local(optimizer="sgd", lr=0.01, momentum=0.0, batch_size=7, epochs=3)
    assert replace(filled, local=LOCAL).configured(Local(), 5, 0).local == LOCAL
    for wrong in (Local(momentum=0.9), Local(optimizer="adam", momentum=0.0)):
        with pytest.raises(ConfigError, match="momentum = 0"):
            FedOSD(local=wrong)
    for rounds, restore_rounds in ((0, 1), (1, -1)):
        with pytest.raises(ConfigError, match="rounds must be at least 1"):
            FedOSD(rounds=rounds, restore_rounds=restore_rounds)
