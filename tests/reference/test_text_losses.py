"""Every loss against a slow loop from its equation, its limits, and what must change no number: parts, padding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from letheon.data import Data
from letheon.errors import DataError, LetheonError, MethodError
from letheon.text.descent import Held, Recipe, descend, mean_loss
from letheon.text.encoding import MASKED, PAD
from letheon.text.goal import Goal, Reference, Slope
from letheon.text.losses import FORGET, RETAIN, Seen, named, seen
from letheon.text.losses import direction as rmu_direction

V = 5
OPTIONS = {"beta": 0.7, "margin": 0.3, "steer": 2.0, "direction_seed": 3}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LABELS = torch.tensor([[MASKED, 1, 2, 4], [MASKED, MASKED, 3, MASKED]])


def material(seed: int = 0) -> Seen:
    logits, reference = drawn(2, 4, V, seed=seed), drawn(2, 4, V, seed=seed + 1)
    hidden, theirs = drawn(2, 4, 3, seed=seed + 2), drawn(2, 4, 3, seed=seed + 3)
    sums = torch.tensor([loop_sum(reference[i], LABELS[i]) for i in range(2)], dtype=torch.float64)
    return Seen(logits, LABELS, sums, reference, hidden, theirs)


def log_probability(logits: Tensor, label: int) -> float:
    total = math.fsum(math.exp(float(x)) for x in logits)
    return float(logits[label]) - math.log(total)


def loop_sum(logits: Tensor, labels: Tensor) -> float:
    return -math.fsum(log_probability(logits[t], int(y)) for t, y in enumerate(labels) if y != MASKED)


def tokens(found: Seen) -> list[tuple[int, int, int]]:
    return [(i, t, int(y)) for i, row in enumerate(found.labels) for t, y in enumerate(row) if y != MASKED]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(name: str, found: Mapping[str, Seen]) -> float:
    beta, margin = OPTIONS["beta"], OPTIONS["margin"]
    ours = next(iter(found.values()))
    losses = {(i, t): -log_probability(ours.logits[i, t], y) for i, t, y in tokens(ours)}
    own = [loop_sum(ours.logits[i], ours.labels[i]) for i in range(2)]
    theirs = [loop_sum(ours.reference[i], ours.labels[i]) for i in range(2)]  # type: ignore[index]
    lengths = [3, 1]
    if name in ("ascent", "nll", "refusal"):
        return (-1 if name == "ascent" else 1) * math.fsum(losses.values())
    if name == "npo":
        return math.fsum(-2 / beta * math.log(sigmoid(beta * (s - r))) for s, r in zip(own, theirs, strict=True))
    if name == "simnpo":
        means = [s / n for s, n in zip(own, lengths, strict=True)]
        return math.fsum(-2 / beta * math.log(sigmoid(beta * (mean - margin))) for mean in means)
    if name == "wga":
        return -math.fsum(math.exp(-loss) ** beta * loss for loss in losses.values())
    if name == "dpo":
        refused = found["refusal"]
        gains = [
            (loop_sum(refused.reference[i], refused.labels[i]) - loop_sum(refused.logits[i], refused.labels[i]))  # type: ignore[index]
            - (loop_sum(found["forget"].reference[i], LABELS[i]) - loop_sum(found["forget"].logits[i], LABELS[i]))  # type: ignore[index]
            for i in range(2)
        ]
        return math.fsum(-2 / beta * math.log(sigmoid(beta * gain)) for gain in gains)
    return special(name, ours)


def special(name: str, ours: Seen) -> float:
    total = 0.0
    for i, t, y in tokens(ours):
        mine = [log_probability(ours.logits[i, t], v) for v in range(V)]
        theirs = [log_probability(ours.reference[i, t], v) for v in range(V)]  # type: ignore[index]
        if name == "kl":
            total += math.fsum(math.exp(q) * (q - p) for p, q in zip(mine, theirs, strict=True))
        if name == "undial":
            lowered = ours.reference[i, t].clone()  # type: ignore[index]
            lowered[y] -= OPTIONS["beta"]
            total -= math.fsum(math.exp(log_probability(lowered, v)) * mine[v] for v in range(V))
        if name in ("rmu", "stay"):
            wanted = (
                OPTIONS["steer"] * rmu_direction(3, seed=3).double() if name == "rmu" else ours.reference_hidden[i, t]  # type: ignore[index]
            )
            total += math.fsum(float(h - w) ** 2 for h, w in zip(ours.hidden[i, t], wanted, strict=True)) / 3  # type: ignore[index]
    return total


@pytest.mark.parametrize("name", [*FORGET, *RETAIN])
def test_a_loss_is_what_its_equation_says(name: str) -> None:
    loss = {**FORGET, **RETAIN}[name]
    found = {text: material(10 * i) for i, text in enumerate(loss.texts)}
    assert float(loss.total(found, OPTIONS)) == pytest.approx(by_hand(name, found), rel=1e-12)
    labels = torch.cat([torch.full((2, 1), MASKED), LABELS], 1)
    assert loss.count(labels) == (2 if loss.per == "texts" else 4)


def test_npo_becomes_ascent_as_beta_goes_to_0() -> None:
    found = material()
    logits = found.logits.clone().requires_grad_(True)
    ours = {"forget": Seen(logits, LABELS, found.sums)}
    npo = torch.autograd.grad(FORGET["npo"].total(ours, {"beta": 1e-8}), logits)[0]
    ascent = torch.autograd.grad(FORGET["ascent"].total({"forget": Seen(logits, LABELS)}, {}), logits)[0]
    assert torch.allclose(npo, ascent, rtol=1e-6)


def test_npos_gradient_is_ascents_damped_by_what_was_forgotten_already() -> None:
    found = material()
    logits = found.logits[:1].clone().requires_grad_(True)
    ours = {"forget": Seen(logits, LABELS[:1], found.sums[:1])}  # type: ignore[index]
    npo = torch.autograd.grad(FORGET["npo"].total(ours, {"beta": 0.7}), logits)[0]
    ascent = torch.autograd.grad(FORGET["ascent"].total(ours, {}), logits)[0]
    gap = loop_sum(logits[0].detach(), LABELS[0]) - float(found.sums[0])  # type: ignore[index]
    assert torch.allclose(npo, 2 * sigmoid(-0.7 * gap) * ascent)


def test_wga_leaves_weights_out_of_the_gradient() -> None:
    logits = material().logits.clone().requires_grad_(True)
    ours = {"forget": Seen(logits, LABELS)}
    found = torch.autograd.grad(FORGET["wga"].total(ours, {"beta": 1.0}), logits)[0]
    ascent = torch.autograd.grad(FORGET["ascent"].total(ours, {}), logits)[0]
    p = math.exp(log_probability(logits[1, 2].detach(), 3))
    assert torch.allclose(found[1, 2], p * ascent[1, 2])


def test_an_unknown_loss_is_named_with_the_nearest() -> None:
    with pytest.raises(LetheonError, match="did you mean 'npo'"):
        named("npoo", FORGET)


class Bigram(nn.Module):
    """Logits of the next token from the one before, and a block to steer: a language model of two tables."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(drawn(V, 3, seed=1), freeze=False)
        self.block = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.out = nn.Linear(3, V, bias=False, dtype=torch.float64)
        for layer, seed in ((self.block, 2), (self.out, 3)):
            layer.weight.data = drawn(*layer.weight.shape, seed=seed)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.block(self.embed(ids.clamp_min(0))))
        return found


def texts(pad: int = 0) -> dict[str, Data]:
    def rows(seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randint(V, (6, 5), generator=generator)
        targets = inputs.clone()
        targets[:, :2] = MASKED
        inputs[1, 4:], targets[1, 4:] = PAD, MASKED  # one text is shorter
        more = torch.full((6, pad), PAD)
        return Data(torch.cat([inputs, more], 1), torch.cat([targets, more + PAD + MASKED + 2], 1), torch.arange(6))

    return {name: rows(seed) for seed, name in enumerate(("forget", "refusal", "retain"))}


GOALS = [Goal(name, retain, 0.6, 0.4, OPTIONS, "block") for name in FORGET for retain in ("nll", "kl", "stay")]


def slope(goal: Goal, part: int | None, pad: int = 0) -> list[Tensor]:
    module = Bigram()
    for p in module.parameters():  # the reference is another model than the one to move
        p.data += 0.1
    reference = Reference.of(Bigram(), goal, texts(pad))
    rows = torch.arange(6)
    parts = Slope(module, goal, texts(pad), part, reference)
    found, _ = parts.at({"forget": rows, "refusal": rows, "retain": rows.flip(0)}, list(module.parameters()))
    return found


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.forget} {goal.retain}")
def test_a_batch_in_parts_and_with_padding_gives_the_same_gradient(goal: Goal) -> None:
    whole = slope(goal, None)
    assert any(float(g.abs().max()) > 1e-6 for g in whole)
    for other in (slope(goal, 1), slope(goal, 4), slope(goal, None, pad=3)):
        assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-14) for a, b in zip(whole, other, strict=True))


def test_a_descent_descends_and_its_reference_is_the_model_as_given() -> None:
    module = Bigram()
    before = mean_loss(module, texts()["forget"])
    kept = mean_loss(module, texts()["retain"])
    done = descend(module, Goal("npo", "nll", options={"beta": 0.5}), texts(), Recipe(lr=0.02, epochs=20), seed=0)
    assert done.steps == 20
    assert mean_loss(module, texts()["forget"]) > before + 0.1
    assert mean_loss(module, texts()["retain"]) < kept + 0.5
    again = Bigram()
    descend(again, Goal("npo", "nll", options={"beta": 0.5}), texts(), Recipe(lr=0.02, epochs=20), seed=0)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


def test_a_ceiling_ends_the_descent_early() -> None:
    module = Bigram()
    ceiling = mean_loss(module, texts()["forget"]) + 0.2
    done = descend(module, Goal("ascent"), texts(), Recipe(lr=0.05, epochs=50, ceiling=ceiling), seed=0)
    assert 0 < done.steps < 50
    assert mean_loss(module, texts()["forget"]) > ceiling


def test_what_holds_a_step_changes_its_gradients_and_is_called_after_it() -> None:
    module, steps = Bigram(), list[int]()

    def project(gradients: Sequence[Tensor | None]) -> None:
        for gradient in gradients:
            assert gradient is not None
            gradient.zero_()

    held = Held(project, lambda: steps.append(1))
    start = [p.detach().clone() for p in module.parameters()]
    descend(module, Goal("ascent"), texts(), Recipe(lr=0.1, epochs=2), held=held, seed=0)
    assert len(steps) == 2
    assert all(torch.equal(a, b) for a, b in zip(start, module.parameters(), strict=True))


def test_the_learning_rate_rises_and_falls_in_straight_lines() -> None:
    recipe = Recipe(lr=1.0, warmup=0.2)
    rates = [recipe.rate(step, 10) for step in range(10)]
    assert rates[:2] == [0.5, 1.0]
    assert rates[2:] == pytest.approx([i / 8 for i in range(8, 0, -1)])
    assert [Recipe(lr=1.0, warmup=0.0).rate(step, 4) for step in range(4)] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_what_is_missing_or_too_coarse_is_refused() -> None:
    with pytest.raises(DataError, match="npo: needs retain texts and there are none"):
        descend(Bigram(), Goal("npo", "nll", options=OPTIONS), {"forget": texts()["forget"]}, Recipe(), seed=0)
    with pytest.raises(MethodError, match=r"embed.weight, block.weight, out.weight: stored below float32"):
        descend(Bigram().to(torch.bfloat16), Goal("ascent"), texts(), Recipe(), seed=0)
    with pytest.raises(MethodError, match="0 modules called 'nowhere'"):
        descend(Bigram(), Goal("rmu", options=OPTIONS, block="nowhere"), texts(), Recipe(), seed=0)


def test_logits_meet_the_tokens_that_follow() -> None:
    logits, targets = drawn(1, 4, V, seed=0), torch.tensor([[MASKED, 1, 2, 3]])
    found = seen(logits, targets)
    assert found.labels.tolist() == [[1, 2, 3]]
    assert float(found.losses[0, 0]) == pytest.approx(-log_probability(logits[0, 0], 1))
