"""Ownership: the one check that a row found by its id belongs to the caller."""

from __future__ import annotations

from typing import Protocol, TypeVar

from app.errors import NotFound


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
