"""Who may sign in by OpenID Connect, and what they may do."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import Forbidden, Unauthenticated
from app.tenants.operator_rules import ExternalOperator, OperatorRules
from app.tenants.scopes import OPERATOR_SCOPES, Scope

ISSUER = "https://login.example.com"
GROUPS = OperatorRules(ISSUER, "groups", ["admins", "both"], ["viewers", "both"])
EMAILS = OperatorRules(ISSUER, "email", ["Alice@Example.com"], ["bob@example.com"])
READ = frozenset({Scope.READ})


def scopes(rules: OperatorRules, **claims: Any) -> frozenset[Scope]:
    return rules.caller(rules.operator_of({"sub": "1", **claims})).scopes


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["admins"], OPERATOR_SCOPES),
        ("admins", OPERATOR_SCOPES),
        (["others", "viewers"], READ),
        (["viewers", "admins"], OPERATOR_SCOPES),
        (["both"], OPERATOR_SCOPES),
    ],
)
def test_groups_decide(groups: object, expected: frozenset[Scope]) -> None:
    assert scopes(GROUPS, groups=groups) == expected


@pytest.mark.parametrize(
    "groups",
    [[], None, "", "Admins", ["admin"], "admins viewers", [["admins"]], {"admins": 1}, [1], True],
)
def test_nobody_else_is_let_in(groups: object) -> None:
    with pytest.raises(Forbidden, match="may not sign in here"):
        scopes(GROUPS, groups=groups)
    with pytest.raises(Forbidden):
        scopes(GROUPS, email="admins", email_verified=True)


def test_verified_addresses_decide_in_any_case() -> None:
    assert scopes(EMAILS, email="alice@EXAMPLE.com", email_verified=True) == OPERATOR_SCOPES
    assert scopes(EMAILS, email="bob@example.com", email_verified=True) == READ


@pytest.mark.parametrize("verified", [False, None, "true", "yes", 1, [True]])
def test_address_that_is_not_verified_counts_for_nothing(verified: object) -> None:
    with pytest.raises(Forbidden):
        scopes(EMAILS, email="alice@example.com", email_verified=verified)
    operator = GROUPS.operator_of({"sub": "1", "email": "x@y.z", "email_verified": verified})
    assert operator.email is None


def test_address_that_only_looks_the_same_is_another() -> None:
    rules = OperatorRules(ISSUER, "email", ["kim@example.com"], [])
    with pytest.raises(Forbidden):
        scopes(rules, email="\N{KELVIN SIGN}im@example.com", email_verified=True)


@pytest.mark.parametrize("subject", [None, "", 7, ["x"], "a\0b", "a\nb", "x" * 256])
def test_subject_that_cannot_be_stored_is_refused(subject: object) -> None:
    with pytest.raises(Unauthenticated):
        GROUPS.operator_of({"sub": subject, "groups": ["admins"]})


def test_caller_is_named_by_subject_and_address() -> None:
    claims = {"sub": "abcd1234", "email": "a@b.c", "email_verified": True, "groups": "admins"}
    operator = GROUPS.operator_of(claims)
    assert operator == ExternalOperator(ISSUER, "abcd1234", "a@b.c", "admins")
    caller = GROUPS.caller(operator)
    assert (caller.key, caller.name, caller.tenant) == ("oidc:abcd1234", "a@b.c", None)


def test_rights_follow_the_rules_of_today() -> None:
    operator = GROUPS.operator_of({"sub": "1", "groups": ["admins"]})
    later = OperatorRules(ISSUER, "groups", [], ["admins"])
    assert later.caller(operator).scopes == READ
    for gone in (
        OperatorRules(ISSUER, "groups", ["others"], []),
        OperatorRules("https://other.example", "groups", ["admins"], []),
    ):
        with pytest.raises(Forbidden):
            gone.caller(operator)
