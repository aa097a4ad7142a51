"""``letheon new-federation`` and ``letheon forget``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from letheon.request import Request
from letheon.runtimes.exclusions import Exclusions
from letheon.runtimes.records import Admitted

Command = Callable[..., tuple[int, str, str]]


def test_a_new_federation_is_written_once(tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "my-fed"
    code, out, _ = command("new-federation", folder)
    assert code == 0
    assert (folder / "fed/client_app.py").is_file()
    assert "README.md in it says how to go on" in out
    code, _, err = command("new-federation", folder)
    assert code == 2
    assert "is there already" in err


def test_forgetting_samples_prints_the_id_and_nothing_else(tmp_path: Path, command: Command) -> None:
    request = Request("samples", samples=(5, 17))
    code, out, err = command("forget", tmp_path / "site.db", "17", "5", "17")
    id = out.removesuffix("\n")
    assert (code, err) == (0, "")
    assert Exclusions(tmp_path / "site.db").admit([Admitted(id, "samples")]) == {id: request}
