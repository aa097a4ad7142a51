"""Bad clients, data and updates in a whole run: each has a policy, and the run goes on or says why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from letheon import pipeline, tree
from letheon.client import KINDS, Client, Kind
from letheon.errors import ConfigError, DataError, RequestError, RoundError
from letheon.experiment import Experiment
from letheon.methods.fine_tuning import FineTuning
from letheon.methods.lethe import Lethe
from letheon.methods.puf import PUF
from letheon.pipeline import Run
from letheon.results import Results
from letheon.tasks.partition import Partition
from letheon.tasks.target import Target
from letheon.tasks.trigger import Trigger
from letheon.tasks.vision import Digits
from letheon.training import Local
from letheon.work import Reply, Work

SMALL = Experiment(
    Digits(),
    FineTuning(rounds=1),
    clients=4,
    partition=Partition("iid"),
    request=Target(min_forget=20, trigger=Trigger(size=2, margin=0)),
    local=Local(lr=0.05),
    train_rounds=2,
    continue_rounds=1,
)
Spoil = Callable[[Client, Work, Reply], Reply]


def stages(run: Run) -> dict[str, Any]:
    unlearned = {f"{label}.unlearn": outcome for label, outcome in run.unlearned.items()}
    return {"origin": run.origin, **unlearned, **{f"{label}.continue": o for label, o in run.continued.items()}}


def events(run: Run) -> list[tuple[str, str]]:
    return [(name, event["client"]) for name, outcome in stages(run).items() for event in outcome.events]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Spoil], None]:
    """Passes every reply to training through a function of the test's."""

    def install(spoiled: Spoil) -> None:
        good = KINDS["train"]

        def train(client: Client, work: Work, *rest: Any) -> Reply:
            return spoiled(client, work, good.do(client, work, *rest))

        monkeypatch.setitem(KINDS, "train", Kind(train, good.cost, good.answers))

    return install


def nan(reply: Reply) -> Reply:
    return replace(reply, tensors={name: tensor * float("nan") for name, tensor in reply.tensors.items()})


def test_clients_without_data_are_skipped(tmp_path: Path) -> None:
    experiment = replace(
        SMALL, clients=30, partition=Partition("dirichlet", 0.05, min_size=0), request=Target(min_forget=20)
    )
    run = pipeline.run(experiment, tmp_path / "run")
    sizes = {name: len(data) for name, data in run.population.clients.items()}
    assert 0 in sizes.values()
    assert events(run) == []
    holders = sum(size > 0 for size in sizes.values())
    (cost,) = run.origin.costs
    assert cost.bytes_up == 2 * holders * tree.n_bytes(run.origin.state.params)
    assert Results(run).row("fine-tuning")["worst_client"] in [name for name, size in sizes.items() if size]


def test_a_client_with_one_sample_and_batch_norm_is_quarantined_and_named_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = [torch.arange(0, 500), torch.arange(500, 501), torch.arange(501, 900), torch.arange(900, 1437)]
    monkeypatch.setattr(Partition, "split", lambda *_, **__: shares)
    experiment = replace(SMALL, task=Digits(norm=True), request=replace(SMALL.request, client="c003"))
    run = pipeline.run(experiment, tmp_path / "run")
    assert events(run) == [
        *[("origin", "c001")] * 2,
        *[("retrain.unlearn", "c001")] * 2,
        ("fine-tuning.unlearn", "c001"),
        ("retrain.continue", "c001"),
        ("fine-tuning.continue", "c001"),
        ("detach.continue", "c001"),
    ]
    assert "1 sample(s) cannot train a model with BatchNorm" in run.origin.events[0]["reason"]
    assert run.origin.events[1]["phase"] == "train"
    assert run.origin.events[1]["round"] == 2


def test_a_client_whose_updates_are_nan_is_quarantined_and_the_result_is_that_without_it(
    tmp_path: Path, spoil: Callable[[Spoil], None]
) -> None:
    spoil(lambda client, work, reply: nan(reply) if client.name == "c002" else reply)
    run = pipeline.run(SMALL, tmp_path / "run")
    assert {client for _, client in events(run)} == {"c002"}
    assert len(events(run)) == 8
    assert all(torch.isfinite(t).all() for outcome in stages(run).values() for t in outcome.state.params.values())
    spoil(lambda client, work, reply: replace(reply, error="absent", tensors={}) if client.name == "c002" else reply)
    without = pipeline.run(SMALL, tmp_path / "without")
    assert [p.kr for p in run.continued["retrain"].points] == [p.kr for p in without.continued["retrain"].points]


def test_a_quorum_that_is_missed_ends_the_run_with_the_names_and_it_can_be_resumed(
    tmp_path: Path, spoil: Callable[[Spoil], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = replace(SMALL, minimum=3)
    calls = 0

    def offline(client: Client, work: Work, reply: Reply) -> Reply:
        nonlocal calls
        calls += 1
        return replace(reply, error="offline", tensors={}) if calls > 4 and client.name < "c002" else reply

    spoil(offline)
    with pytest.raises(RoundError, match=r"2 usable replies.*3 needed \(c000: offline; c001: offline\)"):
        pipeline.run(experiment, tmp_path / "run", workers=1)
    monkeypatch.undo()
    resumed = pipeline.run(experiment, tmp_path / "run", resume=True)
    unbroken = pipeline.run(experiment, tmp_path / "unbroken")
    assert resumed.continued["retrain"].points == unbroken.continued["retrain"].points
    assert events(resumed) == []


DIVERGING = FineTuning(rounds=3, local=Local(lr=1e30))


def test_a_method_that_diverges_is_recorded_as_collapsed_and_the_others_go_on(tmp_path: Path) -> None:
    experiment = replace(
        SMALL, method=Lethe(rounds=1, restore_rounds=1), compare=(DIVERGING, PUF(rounds=1)), train_rounds=12
    )
    run = pipeline.run(experiment, tmp_path / "run")
    unlearned, continued = run.unlearned["fine-tuning"], run.continued["fine-tuning"]
    assert "not finite" in unlearned.diverged
    assert [p.phase for p in continued.points] == ["start"]
    assert all(torch.isfinite(t).all() for t in continued.state.params.values())
    for label in ("retrain", "lethe", "puf"):
        assert run.unlearned[label].diverged == run.continued[label].diverged == ""
        assert len(run.continued[label].points) == 2
    results = Results(run)
    row = results.row("fine-tuning")
    assert row["rr"] is None
    assert row["rr_status"] in ("collapsed", "void")
    assert results.verdict("fine-tuning").status != "pass"
    assert pipeline.load(tmp_path / "run").unlearned["fine-tuning"].diverged == unlearned.diverged


def test_a_method_that_diverges_in_continued_training_keeps_its_last_good_model(
    tmp_path: Path, spoil: Callable[[Spoil], None]
) -> None:
    experiment = replace(SMALL, continue_rounds=3)
    calls = 0

    def late(client: Client, work: Work, reply: Reply) -> Reply:
        nonlocal calls
        calls += 1
        return nan(reply) if calls > good else reply

    # 2 rounds of 4 clients, then of the other 3: Retrain's 2 and 3, fine-tuning's 1, and the first of its last 3.
    good = 2 * 4 + (2 + 3 + 1 + 1) * 3
    spoil(late)
    run = pipeline.run(experiment, tmp_path / "run", workers=1)
    outcome = run.continued["fine-tuning"]
    assert "not finite" in outcome.diverged
    assert [(p.phase, p.round) for p in outcome.points] == [("start", 0), ("continue", 1)]
    assert {event["client"] for event in outcome.events} == {"c000", "c001", "c002", "c003"} - {forgotten(run)}
    assert Results(run).row("fine-tuning")["rr_status"] in ("collapsed", "void")


def forgotten(run: Run) -> str:
    client = run.population.request.client
    assert client is not None
    return client


WRONG: dict[str, Callable[[Reply], Reply]] = {
    "shape": lambda reply: replace(reply, tensors={n: t.flatten()[:1] for n, t in reply.tensors.items()}),
    "nothing": lambda reply: replace(reply, tensors={}),
    "dtype": lambda reply: replace(reply, tensors={n: t.double() for n, t in reply.tensors.items()}),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_client_that_replies_something_else_is_quarantined(
    kind: str, tmp_path: Path, spoil: Callable[[Spoil], None]
) -> None:
    spoil(lambda client, work, reply: WRONG[kind](reply) if client.name == "c000" else reply)
    run = pipeline.run(SMALL, tmp_path / "run")
    assert {client for _, client in events(run)} == {"c000"}
    assert "does not match what was sent" in run.origin.events[0]["reason"]


def test_a_client_that_raises_what_it_should_not_ends_the_run_with_that_error(
    tmp_path: Path, spoil: Callable[[Spoil], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(client: Client, work: Work, reply: Reply) -> Reply:
        raise ZeroDivisionError(client.name)

    spoil(broken)
    with pytest.raises(ZeroDivisionError, match="c00"):
        pipeline.run(SMALL, tmp_path / "run")
    monkeypatch.undo()
    assert events(pipeline.run(SMALL, tmp_path / "run", resume=True)) == []


@pytest.mark.parametrize(
    ("target", "error", "said"),
    [
        (Target(client="c999"), RequestError, "unknown client 'c999'; the federation has c000, c001, c002, c003"),
        (Target("class", label=77), RequestError, "no client holds label 77; labels present"),
        (Target(min_forget=10_000), DataError, "no client holds .*10000 samples"),
        (Target("samples", fraction=0.9), DataError, "no client holds"),
    ],
    ids=["unknown client", "unknown class", "too few to forget", "too many samples"],
)
def test_a_request_that_cannot_be_met_is_refused_before_any_training(
    target: Target, error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        pipeline.run(replace(SMALL, request=target), tmp_path / "run")
    assert not (tmp_path / "run" / "stages").exists()


def test_the_only_client_cannot_be_forgotten(tmp_path: Path) -> None:
    experiment = replace(SMALL, clients=1, request=replace(SMALL.request, client="c000"))
    with pytest.raises(RequestError, match="nothing would be left to retain"):
        pipeline.run(experiment, tmp_path / "run")


def test_a_model_that_only_one_client_can_train_still_has_a_quorum_of_one(tmp_path: Path) -> None:
    run = pipeline.run(replace(SMALL, clients=2), tmp_path / "run")
    assert [cost.rounds for cost in run.unlearned["fine-tuning"].costs] == [1]
    with pytest.raises(ConfigError, match="1 of 2 clients have any to train on"):
        pipeline.run(replace(SMALL, clients=2, minimum=2), tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_no_worker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers: must be at least 1"):
        pipeline.run(SMALL, tmp_path / "run", workers=0)
