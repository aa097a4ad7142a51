"""docs/federation.md, command by command, on this machine; with one round of training, since a round takes long."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from letheon.federation.processes import Processes
from letheon.files import write

PAGE = Path(__file__).parents[2] / "docs/federation.md"
pytestmark = pytest.mark.timeout(1200)


SHORTER = "sed -i 's/^train_rounds = .*/train_rounds = 1/' my-fed/fed/federation.toml\n"


def commands() -> str:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    made = next(at for at, block in enumerate(blocks) if "letheon new-federation" in block)
    return "\n".join([*blocks[: made + 1], SHORTER, *blocks[made + 1 :]])


def test_from_nothing_to_an_unlearned_model(tmp_path: Path) -> None:
    script = tmp_path / "page.sh"
    # The processes in the background belong to the shell, which therefore stays until it is ended.
    script.write_text(f"set -ex\ncd {tmp_path}\n{commands()}\ntouch finished\nsleep 1000\n")
    # The command as it is here, whether this tree is installed or only found.
    write(tmp_path / "bin/letheon", f'#!/bin/sh\nexec "{sys.executable}" -m letheon.cli "$@"\n'.encode())
    (tmp_path / "bin/letheon").chmod(0o755)
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    processes = Processes(tmp_path / "logs", {**os.environ, "PATH": path, "NO_COLOR": "1"})
    try:
        processes.start("page", ["bash", str(script)])
        processes.wait((tmp_path / "finished").exists, "the end of the page", seconds=1100)
    finally:
        processes.stop()
    log = (tmp_path / "logs/page.log").read_text()
    assert len(re.findall(r"^model [0-9a-f]{64}$", log, re.MULTILINE)) == 2, log[-2000:]
    assert json.loads((tmp_path / "my-fed/state/life.json").read_text())["stage"] == "001.continue"
    found = tmp_path.glob("my-fed/state/stages/*/accuracy.json")
    known = {path.parent.name[:11]: json.loads(path.read_text()) for path in found}
    assert set(known["001.unlearn"]) == {"forget", "retain"}
