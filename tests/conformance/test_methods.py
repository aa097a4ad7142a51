"""Every listed method conforms at every scope that it claims, and so do the variants that its settings offer."""

from __future__ import annotations

from typing import Any

import pytest

from letheon import config, registry
from letheon.methods.base import Method
from letheon.request import Scope
from letheon.testing import STATISTICAL, check_method, method_checks

VARIANTS: list[dict[str, Any]] = [
    {"name": "lethe", "preset": "strict_paper"},
    {"name": "lethe", "adapter": False, "layer": "module", "gamma": {"kind": "clipped", "value": 0.5}},
    {"name": "lethe", "restore_rounds": 0, "literal": True},
    {"name": "lethe", "search": {}},
    {"name": "lethe", "rounds": "probe", "adapter": False, "norm": "retain"},
    {"name": "lethe", "adapter": {"places": ["fc1", "head"]}, "layer": "block", "forget_steps": "median"},
    {"name": "lethe", "gamma": {"beta": 0.5, "cap": 1.0}, "layer": "global", "norm": "retain", "buffers": "origin"},
    {"name": "lethe", "adapter": {"kind": "lora"}, "restore_rounds": "until", "buffers": "fresh", "weights": "literal"},
    {"name": "lethe", "adapter": {"kind": "head"}, "restore_rounds": 0, "buffers": "fresh", "weights": "uniform"},
    {"name": "puf", "form": "regular", "rate": 5.0},
    {"name": "not", "tensors": ["fc1.weight", "fc1.bias"], "rounds": 2},
    {"name": "retrain", "rounds": 1, "init_seed": 7, "local": {"optimizer": "adamw", "lr": 0.01, "steps": 3}},
    {"name": "fedosd", "rounds": 3, "restore_rounds": 2, "project": "if_reverting"},
    {"name": "fedau", "rounds": 3, "factor": 1.0, "restore_rounds": 1, "label_seed": 5},
    {"name": "pga", "ascent": {"floor": 0.0, "epochs": 2}, "strangers": 1, "restore_rounds": 1},
    {"name": "weight-distance", "weight": 20.0, "rounds": 2},
    {"name": "suppressed-recovery", "ascent_rounds": 2, "rounds": 2},
    {"name": "fedu", "damping": 10.0, "balance_rounds": 1, "rounds": 0},
    {"name": "fats", "cohort": 2, "steps": 3, "batch_size": 4, "rounds": 3, "seed": 5},
    {"name": "fused", "layers": 1, "rank": 2, "rounds": 3, "local": {"optimizer": "adam", "lr": 0.01, "clip": 1.0}},
    {"name": "ridge", "solver": "woodbury", "penalty": 0.5},
    {"name": "rapid-retraining", "rounds": 1, "lr": 0.01, "init_seed": 7, "local": {"weight_decay": 0.01, "steps": 3}},
]
WORTHWHILE = (
    "config",
    "same-twice",
    "client-order",
    "start-untouched",
    "plan",
    "buffers",
    "nothing-kept",
    "single-replies",
    "resume",
)


@pytest.mark.parametrize(("name", "scope", "check"), list(method_checks()))
def test_a_listed_method_conforms(name: str, scope: Scope, check: str) -> None:
    method: type[Method] = registry.get("method", name)
    reason = check_method(method(), scope, check)
    if reason:
        pytest.xfail(reason)


@pytest.mark.parametrize("check", WORTHWHILE)
@pytest.mark.parametrize("table", VARIANTS, ids=repr)
def test_a_variant_of_a_method_conforms(table: dict[str, Any], check: str) -> None:
    assert check not in STATISTICAL
    method: Method = config.build(Method, table, "variant")  # type: ignore[type-abstract]
    assert check_method(method, "class", check) == method.known_failures.get(check, "")
