"""Who and what takes part in FATS: random cohorts, random batches, and the client's side of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from letheon import tree
from letheon.client import Client, client_work, finite, load
from letheon.data import Data
from letheon.errors import DataError
from letheon.phase import seed_of
from letheon.tasks.base import Task, buffers_of, params_of
from letheon.training import Local, clipped, has_batch_norm, stepper
from letheon.work import Reply, Work, average


def client_probability(rounds: int, cohort: int, clients: int) -> float:
    """ρ_C = min(1, RK/M): at most so likely is it that a client to forget was drawn, and rounds are run again."""
    return min(1.0, rounds * cohort / clients)


def sample_probability(local: Local, samples: int, *, rounds: int, cohort: int, clients: int) -> float:
    """ρ_S = min(1, RKEb/(MN)), for one sample of a client that holds N = ``samples``; E and b as in ``local``."""
    drawn = (local.steps or 1) * local.batch_size
    return min(1.0, rounds * cohort * drawn / (clients * samples))


def recomputation(sizes: Mapping[str, Mapping[str, int]], local: Local, *, rounds: int, cohort: int) -> float:
    """At most so likely is it that a request makes rounds run again: the sum over the holders of data to forget.

    Args:
        sizes: by client, how many samples it has (``all``) and how many of them go (``forget``).
        local: E and b.
        rounds: R.
        cohort: K.
    """
    clients = sum(own["all"] > 0 for own in sizes.values())
    drawn = client_probability(rounds, cohort, clients)
    total = 0.0
    for own in sizes.values():
        if own["forget"]:
            one = sample_probability(local, own["all"], rounds=rounds, cohort=cohort, clients=clients)
            total += min(drawn, own["forget"] * one)
    return min(1.0, total)


def cohort_of(names: Sequence[str], count: int, seed: int) -> tuple[str, ...]:
    """``count`` of the names, drawn uniformly and with replacement."""
    index = torch.randint(len(names), (count,), generator=torch.Generator().manual_seed(seed))
    return tuple(names[i] for i in index.tolist())


def batches_of(n: int, local: Local, draws: int, client: str, slot: int) -> list[Tensor]:
    """The batches of one participation: for each of E local steps b of n positions, fresh and uniform.

    A function of the round's seed, the client and which of its draws this is: nobody has to keep them.
    """
    generator = torch.Generator().manual_seed(seed_of(f"{draws}|{client}|{slot}"))
    return [torch.randperm(n, generator=generator)[: local.batch_size] for _ in range(local.steps or 1)]


def first_hit(data: Data, targets: Data, local: Local, *, client: str, seeds: Tensor, times: Tensor) -> int:
    """The first round in which one of ``targets`` was in a batch of ``client``, or the number of rounds.

    Args:
        data: what the client drew from.
        targets: some of these samples.
        local: E and b.
        client: its name.
        seeds: of each round.
        times: how often the client was drawn in each round.
    """
    covered = torch.isin(data.ids, targets.ids)
    for t, (seed, drawn) in enumerate(zip(seeds.tolist(), times.tolist(), strict=True)):
        for slot in range(drawn):
            if any(bool(covered[index].any()) for index in batches_of(len(data), local, seed, client, slot)):
                return t
    return len(seeds)


def _census_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    return {"samples": 0.0, "flops": 0.0}


@client_work("census", _census_cost, answers="free")
def _census(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Nothing to do: that there is a reply says that the client holds some of the part, and its weight how much."""
    return Reply(0, client.name, {})


@client_work("fats-first", _census_cost, answers="free")
def _first(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Replies only the round in which the client first drew one of the samples to forget, derived from the seeds."""
    local, seeds = Local.from_options(work.options), work.extras["seeds"]
    times = work.extras.get(f"times/{client.name}", torch.zeros_like(seeds))
    first = first_hit(client.data, data, local, client=client.name, seeds=seeds, times=times)
    return Reply(0, client.name, {}, metrics={"first": float(first)})


def _descend_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """Of a client drawn as often as the cohort's are on average, so that the sum over the cohort is exact."""
    clients = work.clients or ("",)
    return _spent(task, Local.from_options(work.options), n, len(clients) / len(set(clients)))


def _spent(task: Task, local: Local, n: int, times: float) -> dict[str, float]:
    samples = times * (local.steps or 1) * min(local.batch_size, n)
    return {"samples": samples, "flops": 3.0 * task.flops * samples}


@client_work("fats", _descend_cost)
def _fats(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """One participation for each time that the client is named; each starts from w. Replies the mean of w_k − w."""
    local, times = Local.from_options(work.options), (work.clients or ()).count(client.name)
    _refuse_small(module, data, local)
    updates: list[Reply] = []
    for slot in range(times):
        load(module, work.params, work.buffers)
        batches = batches_of(len(data), local, int(work.options["draws"]), client.name, slot)
        loss = descend(module, client.task, data, local, batches)
        update = tree.sub(params_of(module), work.params)
        updates.append(Reply(0, client.name, update, buffers_of(module), 1.0, {"loss": finite(loss)}))
    mean = average(updates)
    metrics = dict(mean.metrics) | _spent(client.task, local, len(data), times)
    return Reply(0, client.name, mean.tensors, mean.buffers, metrics=metrics)


def _refuse_small(module: nn.Module, data: Data, local: Local) -> None:
    if has_batch_norm(module) and min(len(data), local.batch_size) < 2:
        raise DataError(
            "a batch of 1 cannot train a model with BatchNorm; raise fats.batch_size or leave the client out"
        )


def descend(module: nn.Module, task: Task, data: Data, local: Local, batches: Iterable[Tensor]) -> float:
    """Train ``module`` in place, one step a batch; returns the mean loss of the batches."""
    module.train()
    params = [p for p in module.parameters() if p.requires_grad]
    step, losses = stepper(params, local), list[float]()
    for index in batches:
        value = task.loss(module(data.inputs[index]), data.targets[index])
        step(clipped(torch.autograd.grad(value, params, materialize_grads=True), local.clip))
        losses.append(value.item())
    return sum(losses) / len(losses)
