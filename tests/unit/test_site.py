"""A client on a machine of its own: its exclusion table, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from letheon import tree
from letheon.client import Client
from letheon.errors import LetheonError, RequestError
from letheon.request import Part, Request
from letheon.runtimes.exclusions import Exclusions
from letheon.runtimes.inprocess import InProcess
from letheon.runtimes.records import Admitted, Order
from letheon.runtimes.site import Site
from letheon.tasks.vision import Digits
from letheon.training import Local
from letheon.work import Reply, Work

TASK = Digits()
DATA = TASK.train().take(torch.arange(40))
CLIENT, CLASS = Request("client", client="c"), Request("class", label=3)
OTHER = Request("client", client="d")
SAMPLES = Request("samples", samples=(1, 5, 9))
OTHER_SAMPLES = Request("samples", samples=(1, 5, 8))


def site(folder: Path, name: str = "c") -> Site:
    return Site(name, DATA, TASK, folder / "table.db")


def train(part: Part, request: str = "", kind: str = "train") -> Work:
    state = TASK.init(0)
    return Work(kind, state.params, state.buffers, part, request, Local().options(0), seed=5)


def told(*requests: Request) -> tuple[Admitted, ...]:
    return tuple(Admitted.of(request) for request in requests)


def answered(site: Site, works: Sequence[Work], *requests: Request) -> list[Reply]:
    return site.answer(Order(site.name, dict(enumerate(works)), told(*requests)))


def test_a_site_answers_as_a_client_in_the_same_process_does(tmp_path: Path) -> None:
    works = [train("retain"), train("forget", CLASS.id)]
    client = Client("c", DATA, TASK)
    client.admit(CLASS)
    with InProcess([client]) as runtime:
        expected = list(runtime.run(*works))
    replies = answered(site(tmp_path), works, CLASS)
    assert [reply.work for reply in replies] == [0, 1]
    assert [tree.digest(r.tensors) for r in replies] == [tree.digest(r.tensors) for r in expected]
    assert [(r.weight, r.metrics) for r in replies] == [(r.weight, r.metrics) for r in expected]


def test_the_same_order_gets_the_same_reply(tmp_path: Path) -> None:
    first, again = (answered(site(tmp_path), [train("retain")], CLASS) for _ in range(2))
    assert tree.digest(first[0].tensors) == tree.digest(again[0].tensors)


def test_after_admission_work_on_all_data_is_refused_whatever_the_server_says_later(tmp_path: Path) -> None:
    assert answered(site(tmp_path), [train("all")])[0].error == ""
    assert "ask for part 'retain'" in answered(site(tmp_path), [train("all")], OTHER)[0].error
    # The server forgets; the table, which outlives processes, does not.
    assert "were admitted here" in answered(site(tmp_path), [train("all")])[0].error
    assert "were admitted here" in answered(site(tmp_path), [train("retain")])[0].error


def test_a_request_admitted_once_must_be_named_first_ever_after(tmp_path: Path) -> None:
    assert answered(site(tmp_path), [train("retain")], CLASS)[0].error == ""
    assert answered(site(tmp_path), [train("retain")], CLASS, OTHER)[0].error == ""
    for wrong in ((OTHER, CLASS), (OTHER,), (CLASS,), ()):
        assert "were admitted here, in this order" in answered(site(tmp_path), [train("retain")], *wrong)[0].error
    assert answered(site(tmp_path), [train("retain")], CLASS, OTHER)[0].error == ""


def test_nothing_is_admitted_by_halves(tmp_path: Path) -> None:
    forged = Admitted(CLASS.id, "class", label=4)
    with pytest.raises(RequestError, match="is not the id of"):
        Exclusions(tmp_path / "t.db").admit([*told(OTHER), forged])
    assert Exclusions(tmp_path / "t.db").admit([]) == {}


def test_what_samples_a_request_is_about_only_their_owner_knows(tmp_path: Path) -> None:
    owner, other = site(tmp_path / "owner"), site(tmp_path / "other")
    id = Exclusions(owner.table).file(SAMPLES)
    order = Order("c", {0: train("retain"), 1: train("forget", id)}, (Admitted(id, "samples"),))
    assert [r.weight for r in owner.answer(order)] == [37.0, 3.0]
    assert [r.weight for r in other.answer(order)] == [40.0]


def test_an_id_cannot_be_found_by_trying_samples_and_is_no_other_site_s(tmp_path: Path) -> None:
    mine, other = (Exclusions(tmp_path / name).file(SAMPLES) for name in ("a.db", "b.db"))
    assert len({mine, other, SAMPLES.id}) == 3


def test_filing_twice_is_filing_once(tmp_path: Path) -> None:
    table = Exclusions(tmp_path / "t.db")
    assert table.file(SAMPLES) == table.file(SAMPLES)
    id = table.file(SAMPLES)
    assert table.admit([Admitted(id, "samples")]) == {id: SAMPLES}
    assert table.file(OTHER_SAMPLES) != id


def test_a_client_that_holds_nothing_of_a_part_does_not_answer_for_it(tmp_path: Path) -> None:
    replies = answered(site(tmp_path), [train("retain"), train("forget", CLIENT.id)], CLIENT)
    assert [(reply.work, reply.error) for reply in replies] == [(1, "")]


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (train("forget", "0123"), "which was never admitted"),
        (train("retain", kind="trian"), "unknown kind of work 'trian'; did you mean 'train'?"),
        (Work("evaluate", {}, part="retain", options={"detail": True}), "the outcome of single samples"),
    ],
)
def test_what_a_site_does_not_do_comes_back_as_an_error(work: Work, reason: str, tmp_path: Path) -> None:
    good, bad = answered(site(tmp_path), [train("retain"), work], CLASS)
    assert (good.error, bad.work) == ("", 1)
    assert reason in bad.error


def test_a_site_does_not_work_under_another_name(tmp_path: Path) -> None:
    (reply,) = site(tmp_path).answer(Order("d", {0: train("retain")}))
    assert reply.error == "the server takes this client for 'd'; it is 'c'"


def test_kinds_of_work_of_all_methods_are_known_to_a_fresh_process(tmp_path: Path) -> None:
    code = (
        "from letheon.runtimes import site, records; from letheon.work import Work; "
        "print(repr(site._refusal(Work('calibrate', {}), records.Order('', {}))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "''"


def test_lives_of_an_experiment_have_nothing_to_do_with_each_other(tmp_path: Path) -> None:
    simulated = Site("c", DATA, TASK, tmp_path / "t.db", lives="many")
    orders = [
        Order("c", {0: train("retain")}, told(CLASS), "first"),
        Order("c", {0: train("all")}, (), "second"),
        Order("c", {0: train("all")}, (), "first"),
    ]
    errors = [simulated.answer(order)[0].error for order in orders]
    assert errors[:2] == ["", ""]
    assert "were admitted here" in errors[2]


def test_the_owner_s_only_life_is_not_the_server_s_to_name(tmp_path: Path) -> None:
    assert site(tmp_path).answer(Order("c", {0: train("retain")}, told(CLASS), "first"))[0].error == ""
    assert "were admitted here" in site(tmp_path).answer(Order("c", {0: train("all")}, (), "second"))[0].error


def test_a_process_killed_in_the_middle_of_admission_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    Exclusions(path).admit(told(CLASS))
    code = f"""
import os, signal
from pathlib import Path
from letheon.runtimes.exclusions import Exclusions
from letheon.runtimes.records import Admitted
with Exclusions(Path({str(path)!r}))._open() as table:
    table.execute("INSERT INTO admitted VALUES ('', 1, 'x', '{{}}')")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert list(Exclusions(path).admit(told(CLASS))) == [CLASS.id]


def test_a_damaged_table_is_named_and_nothing_is_done(tmp_path: Path) -> None:
    (tmp_path / "table.db").write_bytes(b"not a database" * 100)
    (reply,) = answered(site(tmp_path), [train("retain")], CLASS)
    assert "table.db: the exclusion table cannot be used" in reply.error
    with pytest.raises(LetheonError, match="cannot be used"):
        Exclusions(tmp_path / "table.db").file(SAMPLES)


def test_a_new_table_is_for_its_owner_s_eyes_only(tmp_path: Path) -> None:
    Exclusions(tmp_path / "t.db").file(SAMPLES)
    assert (tmp_path / "t.db").stat().st_mode & 0o777 == 0o600
    (tmp_path / "t.db").chmod(0o640)
    Exclusions(tmp_path / "t.db").file(SAMPLES)
    assert (tmp_path / "t.db").stat().st_mode & 0o777 == 0o640


def test_the_table_is_one_sqlite_file_that_other_tools_can_read(tmp_path: Path) -> None:
    id = Exclusions(tmp_path / "t.db").file(SAMPLES)
    Exclusions(tmp_path / "t.db").admit([Admitted(id, "samples")])
    table = sqlite3.connect(tmp_path / "t.db")
    assert table.execute("SELECT id, request FROM filed").fetchall() == [(id, json.dumps(asdict(SAMPLES)))]
    assert table.execute("SELECT life, position, id FROM admitted").fetchall() == [("", 0, id)]
    table.close()
    assert os.listdir(tmp_path) == ["t.db"]
