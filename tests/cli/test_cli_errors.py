from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from letheon.cli import main
from letheon.errors import ConfigError

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("word", ["run", "plan"])
def test_an_unknown_key_is_refused_with_a_suggestion_and_without_traceback(
    word: str, place: Path, command: Command
) -> None:
    code, out, err = command(word, place / "tiny.toml", "--set", "train_round=2")
    assert (code, out) == (2, "")
    assert err.startswith("error: tiny.toml: train_round: unknown key; did you mean 'train_rounds'?")
    assert "Traceback" not in err


def test_an_unknown_method_is_refused_with_a_suggestion(place: Path, command: Command) -> None:
    code, _, err = command("plan", place / "tiny.toml", "--set", "method=leteh")
    assert code == 2
    assert "did you mean 'lethe'?" in err


@pytest.mark.parametrize("word", ["run", "plan"])
def test_a_method_that_reads_single_replies_is_refused_where_replies_are_aggregated_securely(
    word: str, place: Path, command: Command
) -> None:
    settings = [word, place / "tiny.toml", "--set", "flower.secure_aggregation=true"]
    code, out, err = command(*settings, "--set", "compare.0=fedosd")
    assert (code, out) == (2, "")
    assert "fedosd: it reads single clients' replies" in err
    assert "set secure_aggregation = false" in err


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("local.lr=-1", "error: tiny.toml: local.lr: must be positive, got -1.0"),
        ("method.gamma={beta=-3}", "error: tiny.toml: method.gamma.beta: must lie in [0, 1], got -3"),
        ("request.min_forget=0", "error: tiny.toml: request: min_forget must be at least 1, got 0"),
    ],
)
def test_a_wrong_value_is_placed_once(setting: str, told: str, place: Path, command: Command) -> None:
    code, out, err = command("plan", place / "tiny.toml", "--set", setting)
    assert (code, out) == (2, "")
    assert err.startswith(told)


def test_a_cache_that_is_a_file_is_refused_and_nothing_is_begun(place: Path, command: Command) -> None:
    (place / "file").write_text("")
    code, _, err = command("run", place / "tiny.toml", "--cache", place / "file", "--out", place / "out")
    assert code == 2
    assert "file: is a file, not a folder; choose another --cache" in err
    assert not (place / "out").exists()


def test_a_closed_stream_is_no_error(place: Path) -> None:
    for closed in (">&-", "2>&-"):
        line = f'"{sys.executable}" -m letheon.cli methods {closed}'
        done = subprocess.run(["sh", "-c", line], check=False, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")


def test_debug_shows_where_an_error_comes_from(place: Path) -> None:
    with pytest.raises(ConfigError, match="expected a dotted key"):
        main(["plan", str(place / "tiny.toml"), "--set", "nonsense", "--debug"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "nowhere.toml"], "error: nowhere.toml: no such file"),
        (["compare", "nowhere"], "error: nowhere: no run here"),
        (["report", "nowhere"], "error: nowhere: no run here"),
        (["compare", "nowhere", "--json", "--csv"], "choose one of --json, --csv and --markdown"),
        (["run", "tiny.toml", "--workers", "0"], "--workers"),
        (["rnu"], "run"),
    ],
)
def test_what_cannot_be_used_is_named_on_stderr_and_ends_with_code_2(
    words: list[str], told: str, command: Command
) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


def test_a_full_disk_under_stdout_is_an_error_without_traceback() -> None:
    line = [sys.executable, "-m", "letheon.cli", "methods", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(line, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "error: No space left on device; free some, and repeat the command, a run with --resume\n"


def test_a_finished_run_is_not_run_again_unasked(place: Path, run_folder: Path, command: Command) -> None:
    code, out, err = command("run", place / "tiny.toml", "--set", "seed=3", "--out", run_folder, "--quiet")
    assert (code, out) == (2, "")
    assert "--resume" in err


def test_a_folder_of_another_experiment_is_refused(place: Path, run_folder: Path, command: Command) -> None:
    code, _, err = command("run", place / "tiny.toml", "--set", "seed=4", "--out", run_folder, "--resume")
    assert code == 2
    assert "choose another --out" in err
