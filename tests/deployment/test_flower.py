"""Real processes: a SuperLink, SuperNodes, a process for every message. Minutes, hence few tests, each of a whole life.

The same and more in seconds, on the Grid in memory, is in tests/unit/test_flower.py and tests/crash/test_flower.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from letheon import pipeline, tree
from letheon.errors import LetheonError
from letheon.experiment import Experiment
from letheon.federation import link as links
from letheon.federation import local
from letheon.federation.processes import Processes
from letheon.pipeline import Run
from letheon.runtimes.terms import Deployment, Terms

pytestmark = pytest.mark.timeout(1200)

FILE = Path(__file__).parents[2] / "experiments/flower_local.toml"
EXPERIMENT = Experiment.load(FILE)


def small(*settings: str) -> Experiment:
    """On digits, one round of each."""
    request = ("request.min_forget=20", "request.trigger.size=2", "request.trigger.margin=0")
    return Experiment.load(FILE, ["task=digits", *request, "train_rounds=1", "compare=[]", "local.epochs=1", *settings])


SMALL = small()


def findings(run: Run) -> dict[str, Any]:
    """Models, curves and costs; no wall times."""
    labels = run.experiment.methods
    outcomes = {"origin": run.origin} | {f"{label} u": run.unlearned[label] for label in labels}
    outcomes |= {f"{label} c": run.continued[label] for label in labels}
    return {
        name: (
            tree.digest(outcome.state.params | outcome.state.buffers | outcome.state.memory),
            [asdict(point) for point in outcome.points],
            [asdict(cost) | {"seconds": 0} for cost in outcome.costs],
            outcome.events,
        )
        for name, outcome in outcomes.items()
    }


def flowers() -> set[str]:
    """Command lines of flwr's processes on this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().replace(b"\0", b" ").decode()
            if "flower-super" in words or "flwr-" in words:
                found.add(f"{path.parent.name}: {words}")
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = flowers()
    yield
    assert flowers() <= before


def test_lethe_and_fedosd_give_the_same_bits_on_authenticated_machines_and_a_stranger_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger: dict[str, Any] = {}
    start_nodes = links.start_nodes

    def with_a_stranger(link: links.Link, names: Any, *, security: Any) -> dict[str, int]:
        from letheon.federation.keys import key_pair

        pids = start_nodes(link, names, security=security)
        key_pair(link._key("stranger"))  # a good key that nobody has registered, for a name that is taken
        (port,) = links.free_ports(1)
        link.add("stranger", f'client="{names[0]}"', port=port)
        stranger["process"], stranger["log"] = link.processes._started.pop("stranger"), link.processes.log("stranger")
        return pids

    monkeypatch.setattr(local, "start_nodes", with_a_stranger)
    deployment = Deployment(Terms(deadline_s=300, gather_s=300), security="authenticated")
    run = local.run(replace(EXPERIMENT, flower=deployment), tmp_path / "flower")
    expected = pipeline.run(replace(EXPERIMENT, flower=None), tmp_path / "one")
    assert findings(run) == findings(expected)
    assert stranger["process"].wait(60) != 0
    assert "train.letheon" not in stranger["log"].read_text()


class Killing(pipeline.Silent):
    """Kills when a round is done, in the middle of what comes next."""

    def __init__(self, at: tuple[str, str], kill: Callable[[], None], *, after: int = 0) -> None:
        self._at, self._kill, self._after = at, kill, after
        self.done = False

    def point_reached(self, stage: str, point: Any) -> None:
        if (stage, point.phase) == self._at and point.round >= self._after and not self.done:
            self.done = True
            self._kill()


def killed(processes: Processes, command: str) -> None:
    """SIGKILL for those of the family whose command line has the word."""
    found = 0
    for pid in processes.family():
        if command in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
            found += 1
    assert found


DYING = """\
import os
import signal
from pathlib import Path

from letheon.federation import experiment


class Dying(experiment.Telling):
    def point_reached(self, stage, point):
        super().point_reached(stage, point)
        if stage == "origin" and point.round and not Path(DIED).exists():
            Path(DIED).touch()
            os.kill(os.getpid(), signal.SIGKILL)  # a round is done, and the next one has not begun


experiment.Telling = Dying
server = experiment.server
client = experiment.client
"""


def test_a_serverapp_and_then_a_forget_node_that_are_killed_cost_a_round_and_no_bit(tmp_path: Path) -> None:
    chosen = small("train_rounds=2")
    experiment = replace(chosen, flower=Deployment(Terms(deadline_s=240, gather_s=240)))
    folder, place = tmp_path / "run", tmp_path / "run/flower"
    expected = findings(pipeline.run(replace(chosen, flower=None), tmp_path / "one"))
    forgetting = str(experiment.populate().request.client)
    app, names, follow = local.prepared(experiment, folder)
    with links.linked(place) as link:
        nodes = links.start_nodes(link, names, security="open")
        # The ServerApp is killed between two rounds, and once more when Retrain's first round is on its way.
        (app / "experiment/apps.py").write_text(DYING.replace("DIED", repr(f"{tmp_path}/died")))
        with link.run(app) as lines, pytest.raises(LetheonError, match="the ServerApp ended early"):
            follow(pipeline.Silent(), lines)
        assert (tmp_path / "died").exists()
        server = Killing(("retrain.unlearn", "start"), lambda: killed(link.processes, "flwr-serverapp"))
        with link.run(app) as lines, pytest.raises(LetheonError, match="the ServerApp ended early"):
            follow(server, lines)
        assert server.done
        # The holder of what is to go is killed after the first phase of unlearning: the round is refused, not halved.
        node = Killing(("lethe.unlearn", "amplify"), lambda: os.kill(nodes[forgetting], signal.SIGKILL))
        refused = rf"0 usable replies to 'train' on 'forget', 1 needed \({forgetting}: "
        with link.run(app) as lines, pytest.raises(LetheonError, match=refused):
            follow(node, lines)
        (port,) = links.free_ports(1)
        link.add(f"{forgetting}-again", f'client="{forgetting}"', port=port)
        with link.run(app) as lines:
            follow(pipeline.Silent(), lines)
    assert findings(pipeline.load(folder)) == expected


def test_a_run_that_finds_no_node_ends_and_says_so(tmp_path: Path) -> None:
    app, _, follow = local.prepared(replace(SMALL, flower=Deployment(Terms(gather_s=2))), tmp_path / "run")
    refused = pytest.raises(LetheonError, match="none of c000, c001, c002 is connected after 2 s")
    with links.linked(tmp_path / "run/flower") as link, link.run(app) as lines, refused:
        follow(pipeline.Silent(), lines)


def test_a_superlink_that_is_restarted_ends_the_run_and_the_command_given_again_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    experiment = replace(SMALL, flower=Deployment(Terms(deadline_s=120, gather_s=240)))
    expected = findings(pipeline.run(replace(SMALL, flower=None), tmp_path / "one"))
    app, names, follow = local.prepared(experiment, tmp_path / "run")
    with links.linked(tmp_path / "run/flower") as link:
        links.start_nodes(link, names, security="open")
        superlink = link.processes._started["superlink"].pid
        crash = Killing(("retrain.unlearn", "start"), lambda: os.kill(superlink, signal.SIGKILL))
        with link.run(app) as lines, pytest.raises(LetheonError, match="the ServerApp ended early"):
            follow(crash, lines)
        assert crash.done
        link.processes.stop()  # the nodes too: without a database the new SuperLink knows none of them
        link.start()
        links.start_nodes(link, names, security="open")
        with link.run(app) as lines:
            follow(pipeline.Silent(), lines)
    assert findings(pipeline.load(tmp_path / "run")) == expected


FAULTY = """\
import time
from dataclasses import replace
from pathlib import Path

import torch

from letheon.federation.experiment import _site, server
from letheon.runtimes.flower import client_app

DONE = Path(FOLDER)


def raising(tensors):
    raise OSError("the disk is full")


def late(tensors):
    time.sleep(LATE_S)
    return tensors


FAULTS = [
    lambda tensors: {name: torch.zeros(3) for name in tensors},
    lambda tensors: tensors | {"huge": torch.ones(2**24)},
    lambda tensors: {name: tensor * float("nan") for name, tensor in tensors.items()},
    raising,
    late,
]


class Faulty:
    def __init__(self, site):
        self.name, self.task, self.inner = site.name, site.task, site

    def answer(self, order):
        replies = self.inner.answer(order)
        works = {(work.kind, work.part) for work in order.works.values()}
        if self.name != FAULTY_NODE or order.life != "lethe" or works != {("train", "retain")}:
            return replies
        at = len(list(DONE.iterdir()))  # every message starts a process anew
        (DONE / str(at)).touch()
        return [replace(r, tensors=FAULTS[at](r.tensors)) for r in replies] if at < len(FAULTS) else replies


client = client_app(lambda context: Faulty(_site(context)))

__all__ = ["client", "server"]
"""


def test_whatever_befalls_a_retain_node_while_the_model_is_restored_costs_its_own_reply_and_no_more(
    tmp_path: Path,
) -> None:
    """Wrong shapes, a huge reply, NaN, an exception, a reply after the deadline; then its SuperNode is killed."""
    deadline_s = 90.0
    deployment = Deployment(Terms(deadline_s=deadline_s, gather_s=240))
    experiment = replace(small("method.restore_rounds=7", "method.search=false"), flower=deployment)
    forgetting = str(experiment.populate().request.client)
    app, names, follow = local.prepared(experiment, tmp_path / "run")
    faulty = next(name for name in names if name != forgetting)
    (tmp_path / "done").mkdir()
    text = FAULTY
    for word, value in {"FOLDER": f"{tmp_path}/done", "FAULTY_NODE": faulty, "LATE_S": deadline_s + 30}.items():
        text = text.replace(word, repr(value))
    (app / "experiment/apps.py").write_text(text)
    with links.linked(tmp_path / "run/flower") as link:
        nodes = links.start_nodes(link, names, security="open")
        crash = Killing(("lethe.unlearn", "restore"), lambda: os.kill(nodes[faulty], signal.SIGKILL), after=6)
        with link.run(app) as lines:
            follow(crash, lines)
    run = pipeline.load(tmp_path / "run")
    events = run.unlearned["lethe"].events
    assert {(event["client"], event["phase"]) for event in events} == {(faulty, "restore")}
    reasons = {event["round"]: event["reason"] for event in events}
    assert sorted(reasons) == [1, 2, 3, 4, 5, 7]
    assert "its reply does not match what was sent" in reasons[1]
    assert "are expected at most; it was not read" in reasons[2]
    assert "not finite" in reasons[3]
    assert "the disk is full" in reasons[4]
    assert "no reply within" in reasons[5]
    assert run.unlearned["lethe"].points[-1].round == 7
    assert run.origin.events == []
