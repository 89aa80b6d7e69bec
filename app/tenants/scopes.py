"""Scopes: what an API key may do, as far as its kind may do it at all.

A key is a tenant's or an operator's; its scopes limit it further. A key without a list of scopes
may do everything that its kind may, as keys from before there were scopes.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from app.errors import invalid_field


class Scope(StrEnum):
    """One thing that a key may do; what else it may not is refused with 403."""

    #: A tenant's: submit, cancel, replay and erase, and change schedules.
    SUBMIT = "submit"
    #: Read what the kind of key may read; alone it changes nothing.
    READ = "read"
    #: An operator's: change tenants, keys, quotas, workers and any tenant's jobs.
    OPERATE = "operate"
    #: An operator's: read how many workers there should be, and nothing else.
    SCALE = "scale"


ALL_SCOPES = frozenset(Scope)
TENANT_SCOPES = frozenset({Scope.SUBMIT, Scope.READ})
OPERATOR_SCOPES = ALL_SCOPES - {Scope.SUBMIT}


def scopes_of(stored: Collection[str] | None, *, operator: bool) -> frozenset[Scope]:
    """The scopes of a key, by the list that is stored with it."""
    possible = OPERATOR_SCOPES if operator else TENANT_SCOPES
    return possible if stored is None else frozenset(s for s in possible if s in stored)


def listed(scopes: Collection[Scope]) -> list[Scope]:
    """Scopes in the order in which they are shown."""
    return [scope for scope in Scope if scope in scopes]


def check_scopes(given: Collection[str] | None, *, operator: bool) -> list[str] | None:
    """The scopes of a new key as they are stored; raises for those its kind cannot have."""
    if given is None:
        return None
    possible = OPERATOR_SCOPES if operator else TENANT_SCOPES
    if not given or not possible.issuperset(given):
        kind = "an operator's" if operator else "a tenant's"
        names = ", ".join(listed(possible))
        raise invalid_field("scopes", f"of {kind} key must be one or more of: {names}")
    return [scope for scope in Scope if scope in given]
