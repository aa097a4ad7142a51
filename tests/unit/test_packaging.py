"""What a user installs: the public names, the declared dependencies, and a set-up that does not half succeed."""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import letheon

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_import_letheon_does_not_import_torch() -> None:
    code = "import sys, letheon; dir(letheon); print(*sorted({'torch', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", letheon.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(letheon, name)
    assert getattr(value, "__module__", "letheon").startswith("letheon")
    assert name in dir(letheon)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sate'"):
        letheon.Sate  # noqa: B018


def test_type_checkers_and_the_interpreter_find_each_name_in_the_same_module() -> None:
    source = ast.parse(Path(letheon.__file__).read_text())
    branch = next(node for node in source.body if isinstance(node, ast.If))
    typed = {name.name: node.module for node in branch.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert typed == letheon._HOME | {"tree": "letheon"}
    assert set(letheon.__all__) == {*typed, "__version__"}


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files(letheon).joinpath("py.typed").is_file()


def test_the_command_letheon_is_callable() -> None:
    assert callable(pkgutil.resolve_name(PROJECT["scripts"]["letheon"]))


def constraints(file: str = "constraints.txt") -> dict[str, str]:
    """Canonical name to version of each line of the file."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    wrong = [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    assert not wrong, f"{file}: not of the form name==version: {wrong}"
    pins = [line.split("==") for line in lines]
    assert len({canonicalize_name(name) for name, _ in pins}) == len(pins)
    return {canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("line", PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"])
def test_every_dependency_is_pinned_at_a_version_it_allows(line: str) -> None:
    requirement = Requirement(line)
    assert requirement.specifier, f"{line} has no lower bound"
    assert requirement.specifier.contains(constraints()[canonicalize_name(requirement.name)])


def test_the_extra_flower_has_a_set_of_its_own_that_differs_where_flwr_wants_it() -> None:
    """It pins older versions of three packages than the rest is tested with, and click to what that typer knows."""
    usual, own = constraints(), constraints("constraints-flower.txt")
    assert {name for name in usual if own.get(name) != usual[name]} == {"typer", "rich", "packaging", "click"}
    for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["flower"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(own[canonicalize_name(requirement.name)])


def make(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """``make lint`` in a copy of what the Makefile needs, with ``python`` (a shell script) as the interpreter."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, folder)  # with its time: make compares it with the stamp's
    fake = folder / "fake-python"
    fake.write_text(python)
    fake.chmod(0o755)
    # A make above this test would hand down its own variables.
    env = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES")}
    command = ["make", "lint", f"PYTHON={fake}"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


# The interpreter of this test under another version number.
OLD = f"""#!/bin/sh
[ "$1" = -V ] && echo 'Python 3.10.13' && exit
exec '{sys.executable}' -c 'import sys; sys.version_info = (3, 10, 13); exec(sys.argv[1])' "$2"
"""


def test_an_old_python_is_named_and_refused(tmp_path: Path) -> None:
    done = make(tmp_path, OLD)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert "Python 3.10.13" in done.stderr
    assert not (tmp_path / ".venv").exists()


# Stands for the system's Python and, linked into .venv, for the one there. Its pip works but for `install`.
BREAKS_OFF = """#!/bin/sh
case "$*" in
  '-m venv --clear .venv') mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  '-m pip install'*) touch tried; exit 1 ;;
esac
"""


def test_a_set_up_that_broke_off_is_done_again(tmp_path: Path) -> None:
    for _ in range(2):
        done = make(tmp_path, BREAKS_OFF)
        assert done.returncode != 0
        assert (tmp_path / "tried").exists()
        assert not (tmp_path / ".venv/.ready").exists()
        (tmp_path / "tried").unlink()


def test_a_set_up_that_succeeded_is_not_done_again(tmp_path: Path) -> None:
    works = BREAKS_OFF.replace("exit 1", "exit 0")
    assert make(tmp_path, works).returncode == 0
    (tmp_path / "tried").unlink()
    assert make(tmp_path, works).returncode == 0
    assert not (tmp_path / "tried").exists()
    os.utime(tmp_path / ".venv/.ready", (0, 0))  # older than pyproject.toml and constraints.txt
    assert make(tmp_path, works).returncode == 0
    assert (tmp_path / "tried").exists()
