"""A federation in service, made from the template: what `flwr run` does with it, on the Grid in memory."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Message
from flwr.cli.build import build_fab_from_disk

from letheon import config, registry, tree
from letheon.errors import ConfigError, MethodError, RoundError
from letheon.federation.new import FILES, write_app
from letheon.federation.service import Asked, Life, Service
from letheon.files import alone_in
from letheon.methods.base import fedavg
from letheon.phase import Phase, drive
from letheon.request import Request
from letheon.runtimes.exclusions import Exclusions
from letheon.runtimes.flower import Flower
from letheon.runtimes.inprocess import InProcess
from letheon.runtimes.mail import WORK, content, parcel_in
from letheon.runtimes.records import pack_replies, unpack_order, unpack_replies
from letheon.runtimes.site import Site
from letheon.testing.grid import Fault, MemoryGrid, apps_of

CLIENT = Asked("client", client="site-b")
SAMPLES = Request("samples", samples=(0, 3, 6))


@pytest.fixture
def app(tmp_path: Path) -> Iterator[ModuleType]:
    """The template's client app, written and imported as Flower does it."""
    write_app(tmp_path / "fed-app")
    sys.path.insert(0, str(tmp_path / "fed-app"))
    try:
        yield importlib.import_module("fed.client_app")
    finally:
        sys.path.pop(0)
        for name in [name for name in sys.modules if name.split(".")[0] == "fed"]:
            del sys.modules[name]


def life(app: ModuleType, folder: Path, *requests: Asked, faults: dict[int, Fault] | None = None) -> tuple[Life, Any]:
    service = replace(app.SERVICE, requests=requests)
    sites = [Site(name, app.samples(name), service.task, folder / f"{name}.db") for name in service.clients]
    grid = MemoryGrid(apps_of(sites), faults=faults)
    # Only a test in which a site stays silent waits so long: the Grid answers at once, if the machine does.
    terms = replace(service.terms, deadline_s=5.0 if faults else 60.0, gather_s=60.0, poll_s=0.01)
    return Life(service, folder / "state", Flower(grid, service.clients, terms=terms)), grid


def stretching(message: Any, answer: Any) -> Any:
    """A node whose updates are a thousand times as long as they were."""
    reply = answer(message)
    if message.metadata.message_type != WORK:
        return reply
    replies = unpack_replies(parcel_in(reply.content), "")
    long = [replace(each, tensors=tree.scale(each.tensors, 1000.0)) for each in replies]
    return Message(content(pack_replies(long)), reply_to=message)


def accuracies(folder: Path) -> dict[str, dict[str, float]]:
    found = sorted(folder.glob("state/stages/*/accuracy.json"))
    return {path.parent.name.rpartition("-")[0]: json.loads(path.read_text()) for path in found}


def test_the_template_trains_unlearns_and_trains_on_and_does_nothing_twice(app: ModuleType, tmp_path: Path) -> None:
    trained = life(app, tmp_path)[0].whole()
    unlearned = life(app, tmp_path, CLIENT)[0].whole()
    assert tree.digest(unlearned.params) != tree.digest(trained.params)
    again, grid = life(app, tmp_path, CLIENT)
    assert tree.digest(again.whole().params) == tree.digest(unlearned.params)
    assert grid.passages == []
    named = {"000.train": {"all"}, "001.continue": {"forget", "retain"}, "001.unlearn": {"forget", "retain"}}
    assert {stage: set(parts) for stage, parts in accuracies(tmp_path).items()} == named


def test_training_in_service_is_federated_averaging(app: ModuleType, tmp_path: Path) -> None:
    from letheon.client import Client
    from letheon.life import stage_seed

    service: Service = app.SERVICE
    served, _ = life(app, tmp_path)
    state = served.whole()
    clients = [Client(name, app.samples(name), service.task) for name in service.clients]
    seed = stage_seed(service.seed, served._owner("train", 0))
    with InProcess(clients) as runtime:
        phase = Phase("train", fedavg(service.local, "all"), service.train_rounds)
        expected = drive([phase], runtime, service.task.init(service.seed), seed=seed)
    assert tree.digest(state.params) == tree.digest(expected.params)


def test_single_samples_are_forgotten_by_id_alone(app: ModuleType, tmp_path: Path) -> None:
    id = Exclusions(tmp_path / "site-a.db").file(SAMPLES)
    served, grid = life(app, tmp_path, Asked("samples", id=id))
    served.whole()
    assert set(accuracies(tmp_path)["001.unlearn"]) == {"forget", "retain"}
    forgot = {p.node for p in grid.passages}
    assert forgot == {10, 11, 12}


def test_requests_are_served_one_after_another(app: ModuleType, tmp_path: Path) -> None:
    one = life(app, tmp_path, CLIENT)[0].whole()
    two = life(app, tmp_path, CLIENT, Asked("class", label=3))[0].whole()
    assert tree.digest(one.params) != tree.digest(two.params)
    assert list(accuracies(tmp_path)) == ["000.train", "001.continue", "001.unlearn", "002.continue", "002.unlearn"]
    whole = life(app, tmp_path / "at once", CLIENT, Asked("class", label=3))[0].whole()
    assert tree.digest(whole.params) == tree.digest(two.params)


def test_a_server_that_forgets_a_request_is_refused_by_the_sites(app: ModuleType, tmp_path: Path) -> None:
    life(app, tmp_path, CLIENT)[0].whole()
    for path in (tmp_path / "state").rglob("*.json"):
        path.unlink()  # all that the server knew
    with pytest.raises(RoundError, match="were admitted here, in this order, and the server names none"):
        life(app, tmp_path)[0].whole()


def test_a_service_that_was_stopped_continues_where_it_was(app: ModuleType, tmp_path: Path) -> None:
    expected = life(app, tmp_path / "unbroken", CLIENT)[0].whole()
    asked = 0

    def fault(message: Any, answer: Any) -> Any:
        nonlocal asked
        asked += message.metadata.message_type.startswith("train")
        return None if asked == app.SERVICE.train_rounds + 3 else answer(message)  # evaluated, amplified, then gone

    with pytest.raises(RoundError, match="site-b: no reply within 5 s"):
        life(app, tmp_path, CLIENT, faults={11: fault})[0].whole()
    assert tree.digest(life(app, tmp_path, CLIENT)[0].whole().params) == tree.digest(expected.params)


def test_two_servers_are_never_at_work_in_one_folder(app: ModuleType, tmp_path: Path) -> None:
    one, _ = life(app, tmp_path)
    other, _ = life(app, tmp_path)
    with alone_in(tmp_path / "state"), pytest.raises(ConfigError, match="another run is at work there"):
        other.whole()
    assert not list((tmp_path / "state").glob("stages/*"))
    one.whole()
    other.whole()


def test_a_site_whose_updates_are_far_too_long_is_left_out_by_name(app: ModuleType, tmp_path: Path) -> None:
    assert app.SERVICE.outlier_factor == 20.0  # the preset: with three sites it is on
    life(app, tmp_path, faults={12: stretching})[0].whole()
    (result,) = tmp_path.glob("state/stages/000.train-*/result.json")
    events = json.loads(result.read_text())["events"]
    assert [(event["client"], event["round"]) for event in events] == [("site-c", 1), ("site-c", 2), ("site-c", 3)]
    assert "times the median of the 3 replies" in events[0]["reason"]


@pytest.mark.parametrize(
    "change",
    [
        {"weight": math.nan},
        {"metrics": {}},
        {"metrics": {"accuracy": math.nan}},
        {"metrics": {"accuracy": 7.0}},
        {"tensors": {"correct": torch.full((1,), math.nan)}},
    ],
)
def test_a_site_that_says_nothing_sensible_of_a_model_is_not_heard(
    change: dict[str, Any], app: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(message: Any, answer: Any) -> Any:
        reply, (work,) = answer(message), unpack_order(parcel_in(message.content)).works.values()
        if work.kind != "evaluate":
            return reply
        replies = [replace(each, **change) for each in unpack_replies(parcel_in(reply.content), "")]
        return Message(content(pack_replies(replies)), reply_to=message)

    def only_of_work(message: Any, answer: Any) -> Any:
        return fault(message, answer) if message.metadata.message_type == WORK else answer(message)

    app.SERVICE = replace(app.SERVICE, train_rounds=1)
    life(app, tmp_path, faults={12: only_of_work})[0].whole()
    assert "client site-c has no say on the model" in caplog.text
    assert 0.0 <= accuracies(tmp_path)["000.train"]["all"] <= 1.0


def test_a_federation_that_aggregates_securely_refuses_by_name_who_reads_single_updates(app: ModuleType) -> None:
    promised = replace(app.SERVICE, secure_aggregation=True)
    for name in registry.names("method", language=False):
        method = registry.get("method", name)()
        reads = "per-client" in method.needed
        with pytest.raises(MethodError, match=f"^{name}: it reads single") if reads else nullcontext():
            replace(promised, method=method)
        replace(promised, method=method, secure_aggregation=False)


def test_a_method_for_language_models_is_refused_by_name(app: ModuleType) -> None:
    with pytest.raises(MethodError, match=r"^npo: needs text, which this runtime does not give"):
        replace(app.SERVICE, method=registry.get("method", "npo")())


def test_policies_may_change_while_the_federation_lives(app: ModuleType, tmp_path: Path) -> None:
    life(app, tmp_path)[0].whole()
    app.SERVICE = replace(app.SERVICE, minimum=1, outlier_factor=None, secure_aggregation=True)
    again, grid = life(app, tmp_path)
    again.whole()
    assert grid.passages == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("outlier_factor = 0.5", "outlier_factor: must be greater than 1"),
        ("cleints = []", "did you mean 'clients'"),
        ("[[requests]]\nscope = 'client'\nclient = 'site-x'", "no client 'site-x'"),
        ("[[requests]]\nscope = 'samples'", "needs the id that its owner was told"),
        ("[[requests]]\nscope = 'class'\nlabel = 3\nid = 'x'", "other scopes take none"),
        ("[[requests]]\nscope = 'client'", "needs the field 'client'"),
        ("[[requests]]\nscope = 'class'\nlabel = 0\n" * 2, "requests: scope 'class', 0 is listed twice"),
    ],
)
def test_the_configuration_is_strict(change: str, reason: str, tmp_path: Path) -> None:
    write_app(tmp_path / "app")
    path = tmp_path / "app/fed/federation.toml"
    text = path.read_text()
    text = text.replace("outlier_factor = 20.0\n", "")
    path.write_text(text + change if change.startswith("[[") else change + "\n" + text)
    with pytest.raises(ConfigError, match=reason):
        Service.load(path)


def test_what_the_template_says_in_comments_is_true(tmp_path: Path) -> None:
    write_app(tmp_path / "app")
    text = (tmp_path / "app/fed/federation.toml").read_text()
    start = text.index("#\n# [[requests]]")
    requests = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text[start:].splitlines())
    (tmp_path / "t.toml").write_text(text[:start] + requests)
    assert [asked.scope for asked in Service.load(tmp_path / "t.toml").requests] == ["client", "class", "samples"]


def test_an_app_is_never_written_over_something(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        write_app(tmp_path / "app")


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # flwr's own
def test_what_the_server_keeps_is_not_sent_to_the_sites(app: ModuleType, tmp_path: Path) -> None:
    life(app, tmp_path)[0].whole()
    (tmp_path / "state").rename(tmp_path / "fed-app/state")  # where pyproject.toml has it
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(tmp_path / "fed-app"))) as sent:
        names = {name for name in sent.namelist() if not name.startswith(".info/")}
    assert names == {"pyproject.toml", *(name for name in FILES if name.startswith("fed/"))}


def test_every_file_of_the_template_is_written(tmp_path: Path) -> None:
    write_app(tmp_path / "app")
    written = {str(path.relative_to(tmp_path / "app")) for path in (tmp_path / "app").rglob("*") if path.is_file()}
    assert written == {*FILES, "pyproject.toml"}
    project = config.read(tmp_path / "app/pyproject.toml")
    assert project["tool"]["flwr"]["app"]["config"]["folder"] == str(tmp_path.resolve() / "app/state")
