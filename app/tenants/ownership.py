"""Ownership: the one check that a row found by its id belongs to the caller."""

from __future__ import annotations

from typing import Protocol, TypeVar

from app.errors import NotFound
from models.store.roles import is_of_another


class Owned(Protocol):
    """Anything that belongs to a tenant."""

    @property
    def tenant_id(self) -> int: ...


Row = TypeVar("Row", bound=Owned)


def own(row: Row | None, tenant_id: int) -> Row:
    """The row, if there is one and it is the tenant's; the two refusals look alike."""
    if row is None or row.tenant_id != tenant_id:
        raise NotFound
    return row


def within_scope(tenant_id: int) -> int:
    """The tenant, for what a group reads; NotFound if statements are limited to another one."""
    if is_of_another(tenant_id):
        raise NotFound
    return tenant_id


def own_in_scope(row: Row | None, tenant_id: int) -> Row:
    """The same as ``own``, of a row that a group has read."""
    found = own(row, tenant_id)
    within_scope(found.tenant_id)
    return found
