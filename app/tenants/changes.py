"""Writing tenants and keys. Every process hears of a change within about a second.

Whatever changes a tenant or its limits raises ``tenants.changed_at``: that is what the
directories read by. Changes of one tenant wait for each other, so that each is judged by the
terms that it changes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from app.errors import Conflict, NotFound
from app.tenants.keys import SHORT_CHARACTERS, new_key, presented
from app.tenants.rows import TENANT_COLUMNS, tenant_of
from app.tenants.tenant import TenantProfile
from app.tenants.terms import Change, changed
from models.pools import POOLS
from models.store.session import connect, transaction

LIMITS = """
    json_to_recordset(%(limits)s::json)
        AS wanted (pool text, in_flight integer, reserved integer, depth bigint)"""

CREATE_TENANT = f"""
    WITH created AS (
        INSERT INTO tenants (name, tier, weight, submit_per_second, submit_burst, changed_at)
        VALUES (%(name)s, %(tier)s, %(weight)s, %(submit_per_second)s, %(submit_burst)s,
                clock_timestamp())
        ON CONFLICT (name) DO NOTHING
        RETURNING id
    ), limited AS (
        INSERT INTO tenant_limits (tenant_id, pool, in_flight, reserved, depth)
        SELECT created.id, wanted.* FROM created, {LIMITS}
    )
    SELECT id FROM created
"""

LOCK_TENANT = f"""
    SELECT {TENANT_COLUMNS} FROM tenants AS tenant
    WHERE tenant.name = %(name)s FOR UPDATE OF tenant
"""

CHANGE_TENANT = f"""
    WITH changed AS (
        UPDATE tenants
        SET tier = %(tier)s, weight = %(weight)s, submit_per_second = %(submit_per_second)s,
            submit_burst = %(submit_burst)s, changed_at = clock_timestamp()
        WHERE id = %(id)s
    ), cleared AS (
        DELETE FROM tenant_limits
        WHERE tenant_id = %(id)s AND pool NOT IN (SELECT pool FROM {LIMITS})
    )
    INSERT INTO tenant_limits (tenant_id, pool, in_flight, reserved, depth)
    SELECT %(id)s, wanted.* FROM {LIMITS}
    ON CONFLICT (tenant_id, pool) DO UPDATE
    SET in_flight = excluded.in_flight, reserved = excluded.reserved, depth = excluded.depth
"""

ISSUE_KEY = """
    INSERT INTO api_keys (id, tenant_id, name, digest)
    VALUES (%(id)s, %(tenant)s, %(name)s, %(digest)s)
    ON CONFLICT (id) DO NOTHING
    RETURNING created_at
"""

#: The first revocation is the one that counts.
REVOKE_KEY = """
    UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp())
    WHERE id = %(id)s
    RETURNING revoked_at
"""


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A key that nobody will be shown again."""

    #: Its short part.
    id: str
    #: All of it.
    key: str
    created_at: datetime


def create_tenant(engine: Engine, name: str, change: Change | None = None) -> TenantProfile:
    """A new tenant."""
    wanted = changed(TenantProfile(0, name), change or Change(), POOLS)
    with connect(engine) as connection:
        row = connection.exec_driver_sql(CREATE_TENANT, _values(wanted)).first()
    if row is None:
        raise Conflict(f"There is a tenant {name!r} already.")
    return replace(wanted, id=row.id)


def ensure_tenant(engine: Engine, name: str) -> None:
    """A tenant of that name, now or already."""
    try:
        create_tenant(engine, name)
    except Conflict:
        return


def change_tenant(engine: Engine, name: str, change: Change) -> TenantProfile:
    """Change a tenant's terms; the tenant as it is then."""
    with transaction(engine) as connection:
        row = connection.exec_driver_sql(LOCK_TENANT, {"name": name}).first()
        if row is None:
            raise no_tenant(name)
        wanted = changed(tenant_of(row._mapping), change, POOLS)
        connection.exec_driver_sql(CHANGE_TENANT, _values(wanted))
    return wanted


def issue_key(engine: Engine, tenant: str | None, name: str = "") -> CreatedKey:
    """A new key of the tenant of that name, or of an operator."""
    with connect(engine) as connection:
        tenant_id = None
        if tenant is not None:
            found = connection.exec_driver_sql("SELECT id FROM tenants WHERE name = %s", (tenant,))
            if (tenant_id := found.scalar()) is None:
                raise no_tenant(tenant)
        while True:  # until the short part is one that nobody has: at once, but for luck
            key = new_key()
            sent = presented(key)
            assert sent is not None
            values = {"id": sent.id, "tenant": tenant_id, "name": name, "digest": sent.digest}
            created_at = connection.exec_driver_sql(ISSUE_KEY, values).scalar()
            if created_at is not None:
                return CreatedKey(sent.id, key, created_at)


def revoke_key(engine: Engine, key_id: str) -> datetime:
    """Revoke a key for good; when that was, if it was before."""
    with connect(engine) as connection:
        revoked_at: datetime | None = connection.exec_driver_sql(
            REVOKE_KEY, {"id": key_id}
        ).scalar()
    if revoked_at is None:
        raise NotFound(f"There is no key {key_id[:SHORT_CHARACTERS]!r}.")
    return revoked_at


def no_tenant(name: str) -> NotFound:
    """The error of a name that nobody has."""
    return NotFound(f"There is no tenant {name[:63]!r}.")


def _values(tenant: TenantProfile) -> dict[str, Any]:
    limits = [{"pool": pool, **asdict(of)} for pool, of in tenant.limits.items()]
    return {
        "id": tenant.id,
        "name": tenant.name,
        "tier": tenant.tier,
        "weight": tenant.weight,
        "submit_per_second": tenant.submit_per_second,
        "submit_burst": tenant.submit_burst,
        "limits": json.dumps(limits),
    }
