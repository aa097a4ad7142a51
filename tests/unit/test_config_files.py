from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from letheon.config import override, read
from letheon.errors import ConfigError


def test_a_file_is_read_into_a_table(tmp_path: Path) -> None:
    path = tmp_path / "demo.toml"
    path.write_text('seed = 1\n[method]\nname = "α"\n', encoding="utf-8")
    assert read(path) == {"seed": 1, "method": {"name": "α"}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed = 1\nmethod = \n", r"demo.toml: not TOML: .*at line 2, column 10"),
        (b"seed = 1\nseed = 2\n", r"demo.toml: not TOML: .*at line 2"),
        (b'text = "\xff"', r"demo.toml: not UTF-8 at byte 8"),
        (None, r"demo.toml: no such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_place(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "demo.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read(path)


def test_a_folder_is_no_experiment_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path)


TABLE: dict[str, Any] = {
    "seed": 1,
    "client": "c1",
    "method": {"name": "lethe", "gamma": {"beta": 0.1}},
    "compare": ["fine-tuning", {"name": "puf", "rate": 2.0}],
}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("seed=2", {"seed": 2}),
        ("method.gamma.beta=0.2", {"method": {"name": "lethe", "gamma": {"beta": 0.2}}}),
        ("method.gamma.kind = auto ", {"method": {"name": "lethe", "gamma": {"beta": 0.1, "kind": "auto"}}}),
        ("method=puf", {"method": "puf"}),
        ('method={name="puf", rate=3}', {"method": {"name": "puf", "rate": 3}}),
        ("task.norm=true", {"task": {"norm": True}}),
        ("client='007'", {"client": "007"}),
        ("client=007", {"client": "007"}),
        ("client=", {"client": ""}),
        ("client=a=b", {"client": "a=b"}),
        ("client=1\nseed = 3", {"client": "1\nseed = 3"}),
        ("compare=[]", {"compare": []}),
        ("compare.1.rate=4", {"compare": ["fine-tuning", {"name": "puf", "rate": 4}]}),
        ("compare.0=puf", {"compare": ["puf", {"name": "puf", "rate": 2.0}]}),
        (
            "compare.0.local.epochs=4",
            {"compare": [{"name": "fine-tuning", "local": {"epochs": 4}}, {"name": "puf", "rate": 2.0}]},
        ),
    ],
)
def test_an_override_sets_one_key_and_leaves_the_table_alone(text: str, changed: dict[str, Any]) -> None:
    before = json.dumps(TABLE)
    assert override(TABLE, text) == TABLE | changed
    assert json.dumps(TABLE) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed", "--set seed: expected a dotted key, '=' and a value"),
        ("=3", "--set =3: expected a dotted key"),
        ("method..rounds=3", "--set method..rounds=3: expected a dotted key"),
        ("compare.2.rate=4", "--set compare.2.rate=4: compare.2: no such element; compare has 2, counted from 0"),
        ("compare.-1=puf", "compare.-1: no such element"),
        ("compare.rate=4", "compare.rate: no such element"),
        ("seed.x=4", "--set seed.x=4: seed: is the integer 1, which has no keys; set seed itself"),
        ("client.x=4", "client: is the string 'c1', which has no keys"),
        ("method.gamma.beta.x=4", "method.gamma.beta: is the number 0.1, which has no keys"),
    ],
)
def test_an_override_that_leads_nowhere_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        override(TABLE, text)
