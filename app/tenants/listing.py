"""Reading tenants and keys from the tables, for operators and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from app.tenants.rows import TENANT_COLUMNS, tenant_of
from app.tenants.tenant import TenantProfile

READ_TENANT = f"""
    SELECT {TENANT_COLUMNS}, tenant.created_at FROM tenants AS tenant
    WHERE tenant.name = %(name)s
"""

LIST_TENANTS = f"""
    SELECT {TENANT_COLUMNS}, tenant.created_at FROM tenants AS tenant
    WHERE tenant.name > %(after)s ORDER BY tenant.name LIMIT %(limit)s
"""

LIST_KEYS = """
    SELECT key.id, tenant.name AS tenant, key.name, key.created_at, key.revoked_at
    FROM api_keys AS key LEFT JOIN tenants AS tenant ON tenant.id = key.tenant_id
    WHERE %(tenant)s::bigint IS NULL OR key.tenant_id = %(tenant)s
    ORDER BY key.revoked_at IS NOT NULL, key.created_at DESC, key.id LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """A tenant and since when it is one."""

    tenant: TenantProfile
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key without its secret, which nobody has kept."""

    id: str
    #: Name of the tenant; None for an operator's.
    tenant: str | None
    name: str
    created_at: datetime
    revoked_at: datetime | None


def listed(row: Row[Any]) -> Listed:
    """A row of TENANT_COLUMNS and ``created_at``."""
    return Listed(tenant_of(row._mapping), row.created_at)


def read_tenant(connection: Connection, name: str) -> Listed | None:
    """The tenant of that name."""
    row = connection.exec_driver_sql(READ_TENANT, {"name": name}).first()
    return None if row is None else listed(row)


def list_tenants(connection: Connection, limit: int, after: str = "") -> Sequence[Listed]:
    """Tenants in the order of their names, from behind ``after``."""
    rows = connection.exec_driver_sql(LIST_TENANTS, {"after": after, "limit": limit})
    return [listed(row) for row in rows]


def list_keys(
    connection: Connection, limit: int, tenant_id: int | None = None
) -> Sequence[ListedKey]:
    """Keys of a tenant or of all, operators too: those in use first, newest first."""
    rows = connection.exec_driver_sql(LIST_KEYS, {"tenant": tenant_id, "limit": limit})
    return [ListedKey(**row._mapping) for row in rows]
