"""The conformance suite: what every unlearning method owes, as a function that other packages can call too.

::

    @pytest.mark.parametrize(("name", "scope", "check"), method_checks(["mine"]))
    def test_mine_conforms(name: str, scope: Scope, check: str) -> None:
        reason = check_method(registry.get("method", name)(), scope, check)
        if reason:
            pytest.xfail(reason)

A method that is not listed anywhere is checked just the same: ``check_method(Mine(), scope, check)`` for the scopes
that it claims and the names in ``CHECKS``. Everything runs on scikit-learn's digits, mostly in a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from letheon import registry
from letheon.errors import MethodError
from letheon.methods.base import Method
from letheon.request import Scope
from letheon.testing import faults, outcome, rules, several, summed

__all__ = ["CHECKS", "STATISTICAL", "Check", "check_method", "method_checks"]

Check = Callable[[Method, Scope], None]
"""Raises ``AssertionError``, with what is wrong, if the method does not conform."""

CHECKS: Mapping[str, Check] = {
    "config": rules.config_round_trips,
    "scope": rules.unclaimed_scopes_are_refused,
    "same-twice": rules.same_twice,
    "client-order": rules.client_order_does_not_matter,
    "workers": rules.worker_count_does_not_matter,
    "start-untouched": rules.states_are_untouched,
    "shapes": rules.names_and_shapes_are_kept,
    "training": rules.training_hook_changes_no_model,
    "parts": rules.only_plain_work_on_admitted_parts,
    "plan": rules.can_be_planned,
    "buffers": rules.buffers_follow_the_retain_stream,
    "nothing-kept": rules.nothing_is_kept,
    "single-replies": summed.single_replies_are_declared,
    "resume": faults.resumes_bit_for_bit,
    "empty-cohort": faults.empty_cohorts_are_refused,
    "missing-reply": faults.missing_replies_are_survived_or_refused,
    "nan-reply": faults.nan_replies_do_no_harm,
    "second-parts": several.first_request_takes_no_part,
    "second-order": several.second_order_does_not_matter,
    "second-resume": several.second_resumes_bit_for_bit,
    "second-kept": several.second_keeps_nothing,
    "together-members": several.members_are_alike,
    "together-order": several.together_order_does_not_matter,
    "together-kept": several.together_keeps_nothing,
    "forgets": outcome.forgets_and_keeps,
}
"""By name; each takes a method and a scope that it claims. Those of a second request are for methods that repeat."""

SECOND = "second-"
STATISTICAL: frozenset[str] = frozenset({"forgets"})
"""Checks whose outcome a known failure may go either way; the others must fail wherever a failure is declared."""


def check_method(method: Method, scope: Scope, check: str) -> str:
    """Run one check.

    Args:
        method: with whatever settings; what it leaves open is filled in as an experiment would.
        scope: one that the method claims.
        check: a name in ``CHECKS``.

    Returns:
        Empty if the method passes; why it fails, if it declares that in ``known_failures``.

    Raises:
        AssertionError: the method does not conform, or passes a deterministic check that it declares to fail.
        MethodError: there is no such check, the method does not claim the scope, or it serves one request only and the
            check is of a second one.
    """
    _refuse_unknown(method, scope, check)
    place = f"{method.name}, {scope} level, check {check!r}"
    try:
        CHECKS[check](method, scope)
    except AssertionError as error:
        if check in method.known_failures:
            return method.known_failures[check]
        raise AssertionError(f"{place}: {error}") from error
    except Exception as error:  # a crash is never a known failure
        raise AssertionError(f"{place}: raised {type(error).__name__}: {error}") from error
    if check in method.known_failures and check not in STATISTICAL:
        raise AssertionError(f"{place}: passes, although known_failures declares that it fails; drop the declaration")
    return ""


def _refuse_unknown(method: Method, scope: Scope, check: str) -> None:
    for name in (check, *method.known_failures):
        if name not in CHECKS:
            near = registry.did_you_mean(name, CHECKS)
            raise MethodError(f"{method.name}: unknown check {name!r}{near} Known checks: {', '.join(CHECKS)}")
    if scope not in method.scopes:
        claimed = ", ".join(sorted(method.scopes))
        raise MethodError(f"{method.name} does not claim scope {scope!r}; check it for {claimed}")
    if not _owed(method, check):
        raise MethodError(f"{method.name} serves one request only; the check {check!r} is of a second one")


def _owed(method: Method | type[Method], check: str) -> bool:
    return method.repeats or not check.startswith(SECOND)


def method_checks(names: Sequence[str] | None = None) -> Iterator[tuple[str, Scope, str]]:
    """(method, scope, check) for every check that methods of the registry owe: arguments for ``pytest.parametrize``.

    Args:
        names: of methods; all that are listed by default, but those for language models, which need another scene.
    """
    for name in registry.names("method", language=False) if names is None else names:
        method: type[Method] = registry.get("method", name)
        for scope in sorted(method.scopes):
            for check in (check for check in CHECKS if _owed(method, check)):
                yield name, scope, check
