"""Each check catches the methods that were broken for it."""

from __future__ import annotations

import broken_methods as broken
import broken_several as several
import pytest

from letheon.errors import MethodError
from letheon.experiment import Experiment
from letheon.methods.base import Method
from letheon.methods.fine_tuning import FineTuning
from letheon.request import Scope
from letheon.testing import CHECKS, STATISTICAL, check_method, method_checks

CAUGHT: list[tuple[type[Method], str, str]] = [
    (broken.NoOp, "forgets", "unsuccessful forgetting"),
    (broken.Collapse, "forgets", "keeps too little"),
    (broken.Explode, "forgets", r"unsuccessful forgetting|keeps too little"),
    (broken.ByArrival, "client-order", "order in which replies arrive"),
    (broken.ByThreads, "workers", "number of workers"),
    (broken.NamesClient, "nothing-kept", "names the forgotten client 'north'"),
    (broken.KeepsUpdate, "nothing-kept", "memory 'direction' is what north sent"),
    (broken.KeepsScratch, "nothing-kept", r"leaves \['adapter.up'\] in memory"),
    (broken.DropsMemory, "nothing-kept", "memory of another method"),
    (broken.MutatesStart, "start-untouched", "the start was changed in place"),
    (broken.MutatesLater, "start-untouched", "the state after round 1 of 'step' was changed in place"),
    (broken.RectifiesBuffers, "buffers", r"norm\.running_var is not positive"),
    (broken.ForgetBuffers, "buffers", "neither what it was nor among what the retain stream replied"),
    (broken.FloatCounters, "buffers", r"num_batches_tracked is torch\.float32"),
    (broken.TrainsOnAll, "parts", "part 'all'|excludes"),
    (broken.HiddenDraw, "same-twice", "global random generator"),
    (broken.SeedsGlobally, "same-twice", "global random generator"),
    (broken.SkipsEmpty, "empty-cohort", "goes on although no client holds part 'retain'"),
    (broken.SwallowsErrors, "missing-reply", "goes on although every reply on 'forget' to request 1 is an error"),
    (broken.NeedsEveryone, "missing-reply", "raised KeyError: 'west'"),
    (broken.NeedsEveryone, "nan-reply", "raised KeyError: 'west'"),
    (broken.AttributeMomentum, "resume", "differ from an unbroken one"),
    (broken.Mutable, "config", "is not frozen"),
    (broken.LosesSettings, "config", "does not come back from its own configuration"),
    (broken.Widens, "shapes", r"expected \(32, 64\) torch\.float32"),
    (broken.TiltsTraining, "training", "changes the model's params"),
    (broken.NeedsMovement, "plan", "nobody moved"),
    (broken.CountsHeads, "single-replies", "does not say that it needs 'per-client'"),
    (broken.Greedy, "single-replies", "does as well with the mean alone"),
    (several.ResolvesItself, "second-parts", "works again on data that the first request covered"),
    (several.ByArrivalAgain, "second-order", "order in which replies arrive"),
    (several.AttributeAgain, "second-resume", "differ from an unbroken one"),
    (several.NamesRetained, "second-kept", "names the forgotten client 'south'"),
    (several.KeepsRetained, "second-kept", "memory 'longest' is what south sent"),
    (several.FirstMember, "together-members", "a class and a class request served together depend on which is named"),
    (several.FirstHolder, "together-order", "order in which replies arrive"),
    (several.ErasesOne, "together-kept", "names the forgotten client 'south'"),
]


@pytest.mark.parametrize(("method", "check", "word"), CAUGHT, ids=[f"{m.__name__}-{check}" for m, check, _ in CAUGHT])
def test_a_broken_method_is_caught_by_the_check_made_for_it(method: type[Method], check: str, word: str) -> None:
    # A client that is gone is never asked again, and a request for a client names no label.
    scope: Scope = "class" if check in ("second-parts", "together-members") else "client"
    with pytest.raises(AssertionError, match=word):
        check_method(method(), scope, check)


@pytest.mark.parametrize("scope", ["class", "samples"])
@pytest.mark.parametrize("method", [broken.NoOp, broken.Collapse])
def test_doing_nothing_and_destroying_everything_are_caught_at_every_scope(method: type[Method], scope: Scope) -> None:
    with pytest.raises(AssertionError, match=r"unsuccessful forgetting|keeps too little"):
        check_method(method(), scope, "forgets")


def test_every_check_catches_some_broken_method() -> None:
    assert {check for _, check, _ in CAUGHT} | {"scope"} == set(CHECKS)


def test_the_scope_check_catches_an_experiment_that_takes_any_method(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_method(broken.ClientOnly(), "client", "scope") == ""
    monkeypatch.setattr(Experiment, "__post_init__", lambda self: None)
    with pytest.raises(AssertionError, match="does not claim scope 'class', yet an experiment takes it"):
        check_method(broken.ClientOnly(), "client", "scope")


ALONE = {
    several.ByArrivalAgain: ("client-order", "same-twice"),
    several.AttributeAgain: ("resume", "client-order"),
    several.NamesRetained: ("nothing-kept",),
    several.KeepsRetained: ("nothing-kept",),
    several.ResolvesItself: ("parts", "client-order", "resume", "nothing-kept"),
    several.FirstMember: ("parts", "client-order", "second-parts"),
    several.FirstHolder: ("client-order", "second-order", "together-members"),
    several.ErasesOne: ("nothing-kept", "second-kept"),
}


@pytest.mark.parametrize(("method", "check"), [(m, check) for m, checks in ALONE.items() for check in checks])
def test_what_is_broken_with_several_requests_passes_the_checks_of_one(method: type[Method], check: str) -> None:
    assert check_method(method(), "client", check) == ""


def test_a_method_that_serves_one_request_owes_no_check_of_a_second() -> None:
    assert not any(check.startswith("second-") for _, _, check in method_checks(["fedau-in-training"]))
    assert check_method(several.Once(), "client", "scope") == ""
    with pytest.raises(MethodError, match="serves one request only"):
        check_method(several.Once(), "client", "second-order")


def test_the_scope_check_catches_an_experiment_that_asks_twice_who_serves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_only(experiment: Experiment) -> None:
        for target in (experiment.request, *experiment.then):
            if target.scope not in experiment.method.scopes:
                raise MethodError("scope")

    monkeypatch.setattr(Experiment, "__post_init__", first_only)
    with pytest.raises(AssertionError, match="serves one request only, yet an experiment takes a second one"):
        check_method(several.Once(), "client", "scope")
    with pytest.raises(AssertionError, match="mixes no scopes, yet an experiment takes client with class"):
        check_method(several.MixesNone(), "client", "scope")


@pytest.mark.parametrize("check", sorted(set(CHECKS) - STATISTICAL))
def test_the_frame_of_the_broken_methods_is_sound(check: str) -> None:
    assert check_method(broken.ClientOnly(), "client", check) == ""


def test_a_message_names_method_scope_and_check() -> None:
    with pytest.raises(AssertionError, match=r"^widens, client level, check 'shapes': the model's params"):
        check_method(broken.Widens(), "client", "shapes")


def test_a_declared_failure_is_returned_with_its_reason() -> None:
    assert check_method(broken.Candid(), "client", "forgets") == "it does nothing"
    assert check_method(broken.Candid(), "client", "same-twice") == ""


def test_a_declared_failure_of_a_deterministic_check_that_passes_is_reported() -> None:
    with pytest.raises(AssertionError, match="passes, although known_failures declares"):
        check_method(broken.FalselyModest(), "client", "same-twice")


def test_a_declared_failure_excuses_no_crash() -> None:
    with pytest.raises(AssertionError, match="raised ZeroDivisionError"):
        check_method(broken.Crashes(), "client", "same-twice")


def test_a_control_may_forget_by_chance_where_its_failure_is_declared() -> None:
    assert "forgets" in FineTuning.known_failures
    assert check_method(FineTuning(rounds=14), "client", "forgets") == ""


def test_unknown_checks_and_unclaimed_scopes_are_refused() -> None:
    with pytest.raises(MethodError, match="unknown check 'bufers'; did you mean 'buffers'"):
        check_method(broken.ClientOnly(), "client", "bufers")
    with pytest.raises(MethodError, match="unknown check 'forget'; did you mean 'forgets'"):
        check_method(broken.Misspelt(), "client", "config")
    with pytest.raises(MethodError, match="does not claim scope 'class'; check it for client"):
        check_method(broken.ClientOnly(), "class", "config")


def test_the_suite_covers_every_listed_method_at_every_claimed_scope() -> None:
    cases = list(method_checks())
    assert len(cases) == len(set(cases))
    assert {name for name, _, _ in cases} >= {"lethe", "retrain", "fine-tuning", "not", "puf", "noise"}
    assert {scope for name, scope, _ in cases if name == "lethe"} == {"client", "class", "samples"}
    assert {check for _, _, check in method_checks(["puf"])} == set(CHECKS)
