"""What docs/federation.md says of Flower's simulation engine, command by command. A minute or more for Ray to start."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")
pytest.importorskip("ray", reason="Flower's simulation engine needs Ray: install flwr[simulation]")

from letheon.federation.link import OFFLINE
from letheon.federation.processes import Processes
from letheon.files import write

PAGE = Path(__file__).parents[2] / "docs/federation.md"
pytestmark = pytest.mark.timeout(1200)


def test_the_same_app_runs_in_flowers_simulation_engine(tmp_path: Path) -> None:
    (commands,) = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "page.sh").write_text(f"set -ex\ncd {tmp_path}\n{commands}\ntouch finished\nsleep 1000\n")
    write(tmp_path / "bin/letheon", f'#!/bin/sh\nexec "{sys.executable}" -m letheon.cli "$@"\n'.encode())
    (tmp_path / "bin/letheon").chmod(0o755)
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    processes = Processes(tmp_path / "logs", {**os.environ, **OFFLINE, "PATH": path})
    try:
        processes.start("page", ["bash", str(tmp_path / "page.sh")])
        processes.wait((tmp_path / "finished").exists, "the end of the page", seconds=1100)
    finally:
        processes.stop()
    log = (tmp_path / "logs/page.log").read_text()
    assert len(re.findall(r"^model [0-9a-f]{64}$", log, re.MULTILINE)) == 1, log[-2000:]
    assert json.loads((tmp_path / "simulated-fed/state/life.json").read_text())["stage"] == "000.train"
    assert "quarantined" not in log
