"""ALKN's mathematics against slow loops from its equations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from letheon.data import Data
from letheon.phase import seed_of
from letheon.text.descent import Recipe
from letheon.text.encoding import MASKED, PAD
from letheon.text.negation import Localization, crowded, grown, localize, packed, soft_targets, threshold, unpacked

V = 5


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Bigram(nn.Module):
    """Logits of the next token from the one before, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(drawn(V, 3, seed=1), freeze=False)
        self.out = nn.Linear(3, V, bias=False, dtype=torch.float64)
        self.out.weight.data = drawn(V, 3, seed=2)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.embed(ids.clamp_min(0)))
        return found


def texts(seed: int, count: int) -> Data:
    inputs = torch.randint(V, (count, 5), generator=torch.Generator().manual_seed(seed))
    targets = inputs.clone()
    targets[:, :2] = MASKED
    inputs[1, 4:], targets[1, 4:] = PAD, MASKED  # one text is shorter
    return Data(inputs, targets, torch.arange(count))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def pairs(data: Data, rows: Sequence[int]) -> list[tuple[int, int]]:
    """(token before, answer token) of some texts."""
    places = [(i, t) for i in rows for t in range(1, 5) if int(data.targets[i, t]) != MASKED]
    return [(int(data.inputs[i, t - 1]), int(data.targets[i, t])) for i, t in places]


def by_hand(
    embed: Tensor, out: Tensor, tokens: Sequence[tuple[int, int]], weights: Sequence[float]
) -> tuple[list[Tensor], float]:
    """Gradients of Σ s ℓ / Σ 1 for the bigram, term by term, and the value."""
    slopes, value = [torch.zeros_like(embed), torch.zeros_like(out)], 0.0
    for (before, label), s in zip(tokens, weights, strict=True):
        logits = [math.fsum(float(out[v, d] * embed[before, d]) for d in range(3)) for v in range(V)]
        total = math.fsum(math.exp(x) for x in logits)
        value += -s * (logits[label] - math.log(total)) / len(tokens)
        for v in range(V):
            error = s * (math.exp(logits[v]) / total - (v == label)) / len(tokens)
            for d in range(3):
                slopes[0][before, d] += error * out[v, d]
                slopes[1][v, d] += error * embed[before, d]
    return slopes, value


def line(values: list[float], share: float, trim: float) -> float:
    ordered, count = sorted(values), max(1, int(trim * len(values)))
    return ordered[-count] - (ordered[-count] - ordered[count - 1]) * (share - trim) / (1 - 2 * trim)


def slow_loop(
    texts: Mapping[str, Data],
    rule: Localization,
    recipe: Recipe,
    *,
    used: Sequence[Tensor],
    factors: Sequence[float],
) -> tuple[list[Tensor], list[Tensor], float]:
    """The tuned tables, the entries that the last step let move, and the mean loss: AdamW written out."""
    forget, retain = texts["forget"], texts["retain"]
    tables = [drawn(V, 3, seed=1), drawn(V, 3, seed=2)]
    order, draw = (torch.Generator().manual_seed(seed_of(f"7|{what}")) for what in ("order", "retain"))
    known = []
    for before, label in pairs(forget, range(len(forget))):
        known.append(math.exp(-by_hand(*tables, [(before, label)], [1.0])[1]))  # type: ignore[misc]
    targets = iter(sigmoid((p - rule.midpoint) * rule.slope) - sigmoid(-rule.midpoint * rule.slope) for p in known)
    per_text = [[next(targets) for _ in pairs(forget, [i])] for i in range(len(forget))]
    rows = torch.randint(len(retain), (len(forget),), generator=draw).tolist()
    held = pairs(retain, rows)
    retained = by_hand(*tables, held, [1.0] * len(held))[0]  # type: ignore[misc]
    sign = -1 if rule.keeps == "harmless" else 1
    importance, first, second = ([torch.zeros_like(t) for t in tables] for _ in range(3))
    kept, values, steps = [torch.zeros_like(t) for t in tables], [], recipe.steps(len(forget))
    batches = [b for _ in range(recipe.epochs) for b in torch.randperm(len(forget), generator=order).split(2)]
    for step, batch in enumerate(batches):
        chosen = batch.tolist()
        weights = [s for i in chosen for s in per_text[i]]
        gradients, value = by_hand(*tables, pairs(forget, chosen), weights)  # type: ignore[misc]
        values.append(value)
        share = rule.keep + (rule.keep_last - rule.keep) * step / (steps - 1)
        for g, r, m, u, k in zip(gradients, retained, importance, used, kept, strict=True):
            product = [sign * float(a * b) for a, b in zip(g.view(-1), r.view(-1), strict=True)]
            mean = math.fsum(product) / len(product)
            deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in product) / len(product))
            for i, x in enumerate(product):
                m.view(-1)[i] += x - (rule.penalty * deviation if u.reshape(-1)[i] else 0.0)
            limit = line(m.view(-1).tolist(), share, rule.trim)
            for i, x in enumerate(m.view(-1).tolist()):
                k.view(-1)[i] = x >= limit
                g.view(-1)[i] *= x >= limit
        norm = math.sqrt(math.fsum(float(x) ** 2 for g in gradients for x in g.view(-1)))
        for at, unclipped in enumerate(gradients):
            g = unclipped * min(1.0, recipe.clip / norm)  # type: ignore[operator]
            rate = factors[at] * recipe.rate(step, steps)
            tables[at] *= 1 - rate * recipe.weight_decay
            first[at] += 0.1 * (g - first[at])
            second[at] += 0.001 * (g * g - second[at])
            root = torch.sqrt(second[at] / (1 - 0.999 ** (step + 1))) + 1e-8
            tables[at] -= rate * first[at] / (1 - 0.9 ** (step + 1)) / root
    return tables, [k.bool() for k in kept], math.fsum(values) / len(values)


RULES = [
    Localization(),
    Localization(keeps="aligned", midpoint=0.3, slope=4.0),
    Localization(trim=0.1, keep=0.6, keep_last=0.2, penalty=2.0, slowed=0.3),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("again", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("part_size", [None, 1])
def test_a_tuning_is_what_the_equations_say(rule: Localization, again: bool, part_size: int | None) -> None:
    given = {"forget": texts(3, 5), "retain": texts(4, 7)}
    recipe = Recipe(lr=0.02, epochs=2, batch_size=2, part_size=part_size, clip=0.02, weight_decay=0.1)
    used = [drawn(V, 3, seed=5) > 0.8, drawn(V, 3, seed=6) > 0.0] if again else [torch.zeros(V, 3).bool()] * 2
    assert not again or used[1].sum() > used[0].sum() > 0
    module = Bigram()
    names = [name for name, _ in module.named_parameters()]
    found = localize(module, given, rule, recipe, used=dict(zip(names, used, strict=True)), seed=7)
    factors = [1.0, rule.slowed if again else 1.0]
    tables, kept, loss = slow_loop(given, rule, recipe, used=used, factors=factors)
    assert (found.steps, found.loss) == (6, pytest.approx(loss, rel=1e-12))
    for parameter, table, name, mask in zip(module.parameters(), tables, names, kept, strict=True):
        assert torch.allclose(parameter.detach(), table, rtol=1e-9, atol=1e-12)
        assert torch.equal(found.kept[name], mask)
        assert 0 < int(mask.sum()) < mask.numel()


def test_a_token_weighs_the_more_the_better_it_was_known() -> None:
    known = torch.tensor([0.0, 0.5, 0.8, 1.0], dtype=torch.float64)
    found = soft_targets(known, Localization()).tolist()
    assert found == pytest.approx([sigmoid((p - 0.8) * 1.5) - sigmoid(-1.2) for p in known.tolist()])
    assert found[0] == 0 < found[1] < found[2] < found[3] < 0.35


def test_what_is_kept_harms_least_once_it_is_negated() -> None:
    """To first order the retained loss changes by c η Σ g ḡ over what is kept: ``aligned`` raises it."""
    g, r = drawn(40, 30, seed=8), drawn(40, 30, seed=9)
    none = torch.zeros_like(g).bool()
    harm = {}
    for keeps in ("harmless", "aligned"):
        m = grown(torch.zeros_like(g), g, r, none, Localization(keeps=keeps))
        harm[keeps] = float((g * r)[m >= threshold(m, 0.4, 0.15)].sum())
    assert harm["harmless"] < -100 < 100 < harm["aligned"]


def test_the_share_that_is_kept_is_the_nominal_one_where_importance_is_spread_evenly() -> None:
    even = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).double()
    for share in (0.8, 0.4):
        assert int((even >= threshold(even, share, 0.15)).sum()) == pytest.approx(1000 * share, abs=2)
    rows = torch.cat([torch.zeros(900), -torch.ones(50), torch.ones(50)])  # most rows of an embedding are not met
    assert int((rows >= threshold(rows, 0.4, 0.15)).sum()) == 950


def test_the_tensors_used_most_move_slowly() -> None:
    used = {name: torch.arange(10) < count for name, count in (("a", 3), ("b", 9), ("c", 0), ("d", 4), ("e", 1))}
    assert crowded(used, Localization()) == {"b", "d", "a"}
    assert crowded(used, Localization(crowded=0.2)) == {"b"}
    assert crowded(used, Localization(crowded=1.0)) == {"a", "b", "d", "e"}
    assert crowded(used, Localization(crowded=0.0)) == frozenset()


@pytest.mark.parametrize("shape", [(1,), (8,), (3, 5), (2, 3, 7)])
def test_masks_are_packed_and_come_out_as_they_were(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.4
    octets = packed(mask)
    assert (octets.dtype, len(octets)) == (torch.uint8, -(-mask.numel() // 8))
    assert torch.equal(unpacked(octets, shape), mask)
