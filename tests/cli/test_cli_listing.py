from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

import letheon
from letheon import registry

HEAVY = ("torch", "numpy", "sklearn", "matplotlib", "jinja2")


@pytest.mark.parametrize("words", [["methods"], ["tasks", "--json"], ["--version"], ["--help"], ["run", "--help"]])
def test_listing_and_help_import_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom letheon.cli import main\n"
        f"try: main({words!r})\nexcept SystemExit as ended: assert not ended.code\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "heavy: []"


def test_every_method_is_listed_with_its_scopes(command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = command("methods")
    assert code == 0
    for name, entry in registry.METHODS.items():
        (line,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
        assert ", ".join(entry.scopes) in line
        assert entry.summary in line


def test_every_task_is_listed(command: Callable[..., tuple[int, str, str]]) -> None:
    out = command("tasks")[1]
    for name, entry in registry.TASKS.items():
        assert [name, entry.summary] in [line.strip().split(maxsplit=1) for line in out.splitlines()]


@pytest.mark.parametrize(("words", "kind"), [("methods", "method"), ("tasks", "task")])
def test_listing_as_json_gives_one_object_for_each_name(
    words: str, kind: registry.Kind, command: Callable[..., tuple[int, str, str]]
) -> None:
    rows = json.loads(command(words, "--json")[1])
    assert [row["name"] for row in rows] == registry.names(kind)
    assert all(row["summary"] and row["target"] for row in rows)


def test_the_version_is_that_of_the_package(command: Callable[..., tuple[int, str, str]]) -> None:
    assert command("--version")[1] == f"letheon {letheon.__version__}\n"


def test_help_names_every_command_and_run_names_its_options(command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = command("--help")
    assert code == 0
    for name in ("run", "plan", "compare", "report", "methods", "tasks"):
        assert f" {name} " in out
    code, out, _ = command("run", "--help")
    assert code == 0
    for option in ("--set", "--out", "--resume", "--cache", "--workers", "--json", "--quiet", "--verbose", "--debug"):
        assert option in out
