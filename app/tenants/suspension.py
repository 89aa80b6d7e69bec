"""Suspending, resuming and deleting a tenant. Every process notices within about a second.

A suspended tenant submits nothing (403), its schedules and replays wait, and its queued jobs are
not dispatched: its cap in every pool is 0. What is at the broker or runs goes on to its end.

A tenant that is deleted is suspended, and its keys are revoked, in one statement; the scheduler
then removes its rows. There is no way back.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine

from app.errors import Conflict
from app.tenants.changes import no_tenant
from models.audit import Act, record, recording

#: As it was, locked.
BEFORE = """before AS (
        SELECT id, suspended_at, deleted_at FROM tenants WHERE name = %(name)s FOR UPDATE)"""
#: The first time is the one that counts.
SUSPEND = f"""
    WITH {BEFORE}
    UPDATE tenants AS tenant
    SET suspended_at = coalesce(tenant.suspended_at, clock_timestamp()),
        changed_at = clock_timestamp()
    FROM before WHERE tenant.id = before.id RETURNING before.suspended_at IS NULL AS is_new
"""
RESUME = f"""
    WITH {BEFORE}
    UPDATE tenants AS tenant SET suspended_at = NULL, changed_at = clock_timestamp()
    FROM before WHERE tenant.id = before.id AND tenant.deleted_at IS NULL
    RETURNING before.suspended_at IS NOT NULL AS is_new
"""
DELETE = f"""
    WITH {BEFORE}, deleted AS (
        UPDATE tenants AS tenant
        SET suspended_at = coalesce(tenant.suspended_at, clock_timestamp()),
            deleted_at = coalesce(tenant.deleted_at, clock_timestamp()),
            changed_at = clock_timestamp()
        FROM before WHERE tenant.id = before.id
        RETURNING tenant.id, before.deleted_at IS NULL AS is_new
    ), revoked AS (
        UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp())
        FROM deleted WHERE tenant_id = deleted.id
    )
    SELECT is_new FROM deleted
"""
EXISTS = "SELECT id FROM tenants WHERE name = %(name)s"


def suspend_tenant(engine: Engine, name: str) -> None:
    """Accept nothing from the tenant and dispatch none of its jobs until it is resumed."""
    with recording(engine) as connection:
        if not _changed(connection, SUSPEND, Act.TENANT_SUSPEND, name):
            raise no_tenant(name)


def resume_tenant(engine: Engine, name: str) -> None:
    """Take a suspension back; queued jobs are dispatched again."""
    with recording(engine) as connection:
        if _changed(connection, RESUME, Act.TENANT_RESUME, name):
            return
        if connection.exec_driver_sql(EXISTS, {"name": name}).first() is not None:
            raise Conflict(f"The tenant {name!r} is being deleted.")
    raise no_tenant(name)


def delete_tenant(engine: Engine, name: str) -> None:
    """Have the scheduler remove the tenant with everything it has, for good."""
    with recording(engine) as connection:
        if not _changed(connection, DELETE, Act.TENANT_DELETE, name):
            raise no_tenant(name)


def _changed(connection: Connection, statement: str, act: Act, name: str) -> bool:
    """Whether the statement found the tenant; recorded if that changed something."""
    row = connection.exec_driver_sql(statement, {"name": name}).first()
    if row is not None and row.is_new:
        record(connection, act, name, tenant=name)
    return row is not None
