"""Tenants and API keys as operators list them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from app.tenants.scopes import Scope, listed, scopes_of
from app.tenants.tenant import TENANT_COLUMNS, TenantProfile, tenant_of
from models.schema import ApiKey, Tenant
from models.store.clock import DATABASE_CLOCK

READ_TENANT = f"""
    SELECT {TENANT_COLUMNS}, tenant.created_at FROM tenants AS tenant WHERE name = %(name)s
"""
#: Along the names or the ids, which rise with time; of ten thousand, a few milliseconds at most.
LIST_BY_NAME, LIST_BY_AGE, LIST_BY_BYTES = (
    f"""
    SELECT {TENANT_COLUMNS}, tenant.created_at FROM tenants AS tenant
    WHERE {column} {{after}} %(after)s AND starts_with(tenant.name, %(prefix)s)
    ORDER BY {column} {{direction}} LIMIT %(limit)s
"""
    for column in ("tenant.name", "tenant.id", 'tenant.name COLLATE "C"')
)
RISING = {"after": ">", "direction": "ASC"}
FALLING = {"after": "<", "direction": "DESC"}
LIST_TENANTS = LIST_BY_NAME.format(**RISING)
#: Whatever the collation of the database. No index has this order: all names are sorted.
LIST_BY_BYTES = LIST_BY_BYTES.format(**RISING)
#: No name or id is as high.
ABOVE_NAMES, ABOVE_IDS = "{", 2**63 - 1


@dataclass(frozen=True, slots=True)
class Listed:
    """A tenant and when it was created."""

    tenant: TenantProfile
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key without its secret, which is not stored."""

    id: str
    #: Name of the tenant; None for an operator's.
    tenant: str | None
    name: str
    scopes: Sequence[Scope]
    created_at: datetime
    expires_at: datetime | None
    #: To the minute.
    last_used_at: datetime | None
    revoked_at: datetime | None

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= DATABASE_CLOCK.now()


def read_tenant(connection: Connection, name: str) -> Listed | None:
    """The tenant of that name."""
    return next(iter(_listed(connection, READ_TENANT, name=name)), None)


def list_tenants(
    connection: Connection, limit: int, after: str = "", prefix: str = "", *, by_bytes: bool = False
) -> Sequence[Listed]:
    """Tenants whose names begin with ``prefix`` and come after ``after``, by name."""
    statement = LIST_BY_BYTES if by_bytes else LIST_TENANTS
    return _listed(connection, statement, after=after, prefix=prefix, limit=limit)


def list_from(
    connection: Connection,
    limit: int,
    after: str | int | None,
    prefix: str,
    *,
    by_age: bool,
    falling: bool,
) -> Sequence[Listed]:
    """The same in another order: ``after`` is a name, or an id if they are sorted by age."""
    statement = (LIST_BY_AGE if by_age else LIST_BY_NAME).format(**FALLING if falling else RISING)
    if after is None:
        first = (0, ABOVE_IDS) if by_age else ("", ABOVE_NAMES)
        after = first[falling]
    return _listed(connection, statement, after=after, prefix=prefix, limit=limit)


def _listed(connection: Connection, statement: str, **asked: Any) -> list[Listed]:
    rows = connection.exec_driver_sql(statement, asked)
    return [Listed(tenant_of(row._mapping), row.created_at) for row in rows]


def list_keys(
    connection: Connection, limit: int, tenant_id: int | None = None
) -> Sequence[ListedKey]:
    """Keys of a tenant or of all, operators too: those in use first, newest first."""
    key, tenant = ApiKey.__table__.c, Tenant.__table__.c
    wanted = (
        select(
            key.id,
            tenant.name.label("tenant"),
            key.name,
            key.scopes,
            key.created_at,
            key.expires_at,
            key.last_used_at,
            key.revoked_at,
        )
        .outerjoin_from(ApiKey.__table__, Tenant.__table__, tenant.id == key.tenant_id)
        .order_by(key.revoked_at.is_not(None), key.created_at.desc(), key.id)
        .limit(limit)
    )
    if tenant_id is not None:
        wanted = wanted.where(key.tenant_id == tenant_id)
    return [key_of(row) for row in connection.execute(wanted).mappings()]


def key_of(row: RowMapping) -> ListedKey:
    scopes = listed(scopes_of(row["scopes"], operator=row["tenant"] is None))
    return ListedKey(**{**row, "scopes": scopes})
