from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from letheon import registry
from letheon.errors import ConfigError, MethodError
from letheon.registry import Entry

CODE = "class Foreign: pass\nnumber = 3\n"


def install(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, points: str) -> None:
    """Lay out an installed distribution with entry points and a module ``<package>_code``."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    (folder / f"{package}_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(folder)


def test_listing_imports_no_torch() -> None:
    code = (
        "import sys; from letheon import config, registry; "
        "print(*registry.names('method'), *registry.names('task')); "
        "print(registry.entry('method', 'lethe').summary); print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0].split() == [*registry.METHODS, *registry.TASKS]
    assert said[-1] == "False"


def test_the_built_in_names_are_those_of_the_design() -> None:
    assert registry.names("method")[:6] == ["retrain", "fine-tuning", "lethe", "not", "puf", "noise"]
    assert registry.names("task")[:3] == ["digits", "mnist5k", "mnist"]


@pytest.mark.parametrize("found", [*registry.METHODS.values(), *registry.TASKS.values()], ids=lambda e: e.target)
def test_every_built_in_entry_has_a_target_and_one_line_of_summary(found: Entry) -> None:
    module, _, name = found.target.partition(":")
    assert module.startswith("letheon.")
    assert name.isidentifier()
    assert found.summary.endswith(".")
    assert "\n" not in found.summary


@pytest.mark.parametrize("name", registry.METHODS)
def test_the_scopes_listed_are_those_that_the_class_claims(name: str) -> None:
    listed = registry.METHODS[name].scopes
    assert set(listed) == registry.get("method", name).scopes  # type: ignore[attr-defined]
    assert list(listed) == [scope for scope in ("client", "class", "samples") if scope in listed]


def test_a_class_is_imported_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.METHODS, "fake", Entry("wave:Wave_read", "Fake."))
    monkeypatch.setitem(registry.TASKS, "nested", Entry("email.message:Message.__class__", "Fake."))
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    assert registry.entry("method", "fake") == Entry("wave:Wave_read", "Fake.")
    assert "wave" not in sys.modules
    assert registry.get("method", "fake").__name__ == "Wave_read"
    assert registry.get("task", "nested") is type


def test_an_unknown_name_is_refused_with_a_suggestion_and_the_known_names() -> None:
    with pytest.raises(MethodError, match=r"unknown method 'leteh'; did you mean 'lethe'\? Known methods: retrain, "):
        registry.get("method", "leteh")
    with pytest.raises(ConfigError, match=r"unknown task 'MNIST'; did you mean 'mnist'\? Known tasks: digits, "):
        registry.entry("task", "MNIST")
    with pytest.raises(MethodError, match=r"unknown method 'zzz'\. Known methods: retrain, "):
        registry.get("method", "zzz")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module_here:Thing", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("wave:NoSuchClass", "AttributeError: .*NoSuchClass"),
        ("wave", "'wave' is not of the form 'module:Class'"),
        ("wave:open", "not a class"),
    ],
)
def test_a_target_that_cannot_be_imported_is_refused_with_entry_and_cause(
    target: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.METHODS, "broken", Entry(target, "Fake."))
    monkeypatch.setitem(registry.TASKS, "broken", Entry(target, "Fake."))
    with pytest.raises(MethodError, match=f"method 'broken': .*{message}"):
        registry.get("method", "broken")
    with pytest.raises(ConfigError, match=f"task 'broken': .*{message}"):
        registry.get("task", "broken")


def test_a_module_that_fails_while_it_is_imported_is_refused_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_code.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.METHODS, "broken", Entry("failing_code:Thing", "Fake."))
    with pytest.raises(MethodError, match="failing_code:Thing cannot be imported: ZeroDivisionError") as caught:
        registry.get("method", "broken")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_entry_point_of_another_package_is_listed_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = (
        "[letheon.methods]\nforeign = plugged_code:Foreign [extra]\n[letheon.tasks]\nother = plugged_code:Foreign\n"
    )
    install("plugged", tmp_path, monkeypatch, points=points)
    assert "foreign" in registry.names("method")
    assert "foreign" not in registry.names("task")
    assert registry.names("method")[: len(registry.METHODS)] == list(registry.METHODS)
    assert registry.entry("method", "foreign") == Entry("plugged_code:Foreign", "From the package plugged.")
    assert "plugged_code" not in sys.modules
    assert registry.get("method", "foreign").__name__ == registry.get("task", "other").__name__ == "Foreign"
    monkeypatch.delitem(sys.modules, "plugged_code")


def test_a_name_that_is_claimed_twice_is_refused_with_both_claimants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "[letheon.methods]\nlethe = rival_code:Foreign\n[letheon.tasks]\nmnist = rival_code:Foreign\n"
    install("rival", tmp_path, monkeypatch, points=points)
    both = "claimed twice: by letheon.methods.lethe:Lethe and by rival_code:Foreign of the package rival"
    for ask in (lambda: registry.names("method"), lambda: registry.get("method", "puf")):
        with pytest.raises(MethodError, match=both):
            ask()
    with pytest.raises(ConfigError, match="task 'mnist' is claimed twice"):
        registry.names("task")


def test_two_packages_may_not_claim_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("first", "second"):
        install(package, tmp_path, monkeypatch, points=f"[letheon.methods]\nforeign = {package}_code:Foreign\n")
    with pytest.raises(MethodError, match=r"by first_code:Foreign and by second_code:Foreign of the package second"):
        registry.names("method")
