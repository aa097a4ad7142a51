"""Whether two columns rank methods alike, and whether a sentence holds."""

from __future__ import annotations

import random

import pytest

from letheon.metrics.measurement import Undefined
from letheon.reproduce.ordering import agreement, check
from letheon.reproduce.published import Claim
from letheon.reproduce.quantities import QUANTITIES

RR, BYTES, ROLLBACK = QUANTITIES["rr"], QUANTITIES["bytes"], QUANTITIES["rollback"]
PUBLISHED = {"lethe": 0.0, "fedosd": 3.68, "fedau": 49.59}


def test_the_same_order_agrees_whatever_the_values() -> None:
    found = agreement(PUBLISHED, {"lethe": 2.0, "fedosd": 40.0, "fedau": 41.5}, RR)
    assert (found.status, found.pairs, found.same, found.unresolved, found.reversed) == ("agrees", 3, 3, 0, ())


def test_one_pair_the_other_way_round_disagrees_and_is_named() -> None:
    found = agreement(PUBLISHED, {"lethe": 2.0, "fedosd": 50.0, "fedau": 41.5}, RR)
    assert (found.status, found.same) == ("disagrees", 2)
    assert found.reversed == ("fedosd lies below fedau in the paper and above it here",)


def test_the_order_of_listing_does_not_matter() -> None:
    values = {name: float(i * i) for i, name in enumerate("abcdef")}
    shuffled = list(values)
    random.Random(0).shuffle(shuffled)
    other = {name: values[name] for name in shuffled}
    found = agreement(other, values, RR)
    assert (found.status, found.pairs, found.same) == ("agrees", 14, 14)  # 0 and 1 are too close to be an order
    turned = agreement(other, {name: -value for name, value in values.items()}, RR)
    assert (turned.status, turned.same, len(turned.reversed)) == ("disagrees", 0, 14)


def test_published_values_that_are_close_claim_no_order() -> None:
    found = agreement({"lethe": 0.0, "not": 0.2}, {"lethe": 30.0, "not": 0.0}, RR)
    assert (found.status, found.pairs, found.reason) == ("undefined", 0, "the paper's numbers order no pair")


def test_measured_values_that_are_close_neither_agree_nor_disagree() -> None:
    found = agreement(PUBLISHED, {"lethe": 0.0, "fedosd": 0.4, "fedau": 20.0}, RR)
    assert (found.status, found.pairs, found.same, found.unresolved) == ("agrees", 3, 2, 1)
    alone = agreement({"lethe": 0.0, "fedosd": 3.68}, {"lethe": 0.0, "fedosd": 0.4}, RR)
    assert (alone.status, alone.reason) == ("undefined", "what the paper orders lies too close together here")


def test_a_method_without_a_number_on_either_side_is_left_out_with_the_reason() -> None:
    published = PUBLISHED | {"not": "UF", "federaser": 0.0, "noise": 60.0}
    measured = {"lethe": 0.0, "fedosd": 4.0, "fedau": Undefined("the model collapsed", "collapsed"), "not": 3.0}
    found = agreement(published, measured | {"noise": 70.0}, RR)
    assert found.left_out == {"not": "published as UF", "fedau": "the model collapsed", "federaser": "not run"}
    assert (found.status, found.pairs) == ("agrees", 3)


def test_one_method_is_no_order() -> None:
    found = agreement(PUBLISHED, {"lethe": 0.0}, RR)
    assert (found.status, found.reason) == ("undefined", "fewer than two methods have a number on both sides")


def test_costs_are_close_in_proportion() -> None:
    assert agreement({"a": 1e9, "b": 1.2e9}, {"a": 100.0, "b": 104.0}, BYTES).unresolved == 1
    assert agreement({"a": 1e9, "b": 1.04e9}, {"a": 100.0, "b": 500.0}, BYTES).pairs == 0
    assert agreement({"a": 1e9, "b": 1.2e9}, {"a": 100.0, "b": 120.0}, BYTES).status == "agrees"


LOWER = Claim("Lethe resurfaces less", "rr", low=("lethe", "retrain"), high=("fedau", "fedosd"))


def test_an_order_holds_if_every_pair_does() -> None:
    found = check(LOWER, {"lethe": 0.0, "retrain": 0.5, "fedau": 20.0, "fedosd": 3.0}, RR)
    assert found.status == "holds"
    assert "lethe 0 against fedau 20" in found.reason


def test_an_order_fails_if_one_pair_is_the_other_way_round() -> None:
    found = check(LOWER, {"lethe": 5.0, "retrain": 0.5, "fedau": 20.0, "fedosd": 3.0}, RR)
    assert (found.status, found.reason) == ("fails", "lethe 5 against fedosd 3")


def test_an_order_is_open_if_a_pair_is_too_close_or_nobody_is_left() -> None:
    close = check(LOWER, {"lethe": 0.0, "retrain": 0.5, "fedau": 20.0, "fedosd": 0.9}, RR)
    assert close.status == "open"
    assert "too close to tell: lethe 0 against fedosd 0.9" in close.reason
    void = Undefined("the run is void", "void")
    nobody = check(LOWER, dict.fromkeys(("lethe", "retrain", "fedau", "fedosd"), void), RR)
    assert (nobody.status, nobody.reason) == ("open", "lethe, retrain, fedau, fedosd: the run is void")


def test_what_is_missing_is_named_and_the_rest_decides() -> None:
    found = check(LOWER, {"lethe": 0.0, "fedau": 20.0}, RR)
    assert found.status == "holds"
    assert found.reason == "lethe 0 against fedau 20; retrain, fedosd: not run"


def test_numbers_stand_for_themselves() -> None:
    positive = Claim("RT is positive", "rollback", low=(0.0,), high=("fedau",))
    assert check(positive, {"fedau": 0.3}, ROLLBACK).status == "holds"
    assert check(positive, {"fedau": 0.01}, ROLLBACK).status == "open"
    assert check(positive, {"fedau": -0.3}, ROLLBACK).status == "fails"


@pytest.mark.parametrize(("lethe", "status"), [(2.5, "holds"), (2.6, "fails"), (0.4, "fails")])
def test_a_nearness_counts_on_both_sides(lethe: float, status: str) -> None:
    near = Claim("Lethe stays close to Retrain", "ct_kr_max", near=("lethe",), to="retrain", within=1.0)
    assert check(near, {"lethe": lethe, "retrain": 1.5}, RR).status == status


def test_a_nearness_to_what_is_not_known_is_open() -> None:
    near = Claim("Lethe stays close to Retrain", "ct_kr_max", near=("lethe",), to="retrain", within=1.0)
    assert check(near, {"lethe": 1.0}, RR) == check(near, {"lethe": 99.0}, RR)
    assert check(near, {"lethe": 1.0}, RR).reason == "retrain: not run"
