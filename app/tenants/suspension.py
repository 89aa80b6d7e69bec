"""Suspending, resuming and deleting a tenant. Every process notices within about a second.

A suspended tenant submits nothing (403), its schedules and replays wait, and its queued jobs are
not dispatched: its cap in every pool is 0. What is at the broker or runs goes on to its end.

A tenant that is deleted is suspended, and its keys are revoked, in one statement; the scheduler
then removes its rows. There is no way back.
"""

from __future__ import annotations

from sqlalchemy import Engine

from app.errors import Conflict
from app.tenants.changes import no_tenant
from models.store.session import connect, fetch

#: The first time is the one that counts.
SUSPEND = """
    UPDATE tenants
    SET suspended_at = coalesce(suspended_at, clock_timestamp()), changed_at = clock_timestamp()
    WHERE name = %(name)s RETURNING id
"""
RESUME = """
    UPDATE tenants SET suspended_at = NULL, changed_at = clock_timestamp()
    WHERE name = %(name)s AND deleted_at IS NULL RETURNING id
"""
DELETE = """
    WITH deleted AS (
        UPDATE tenants
        SET suspended_at = coalesce(suspended_at, clock_timestamp()),
            deleted_at = coalesce(deleted_at, clock_timestamp()), changed_at = clock_timestamp()
        WHERE name = %(name)s RETURNING id
    ), revoked AS (
        UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp())
        FROM deleted WHERE tenant_id = deleted.id
    )
    SELECT id FROM deleted
"""
EXISTS = "SELECT id FROM tenants WHERE name = %(name)s"


def suspend_tenant(engine: Engine, name: str) -> None:
    """Accept nothing from the tenant and dispatch none of its jobs until it is resumed."""
    if not fetch(engine, SUSPEND, {"name": name}):
        raise no_tenant(name)


def resume_tenant(engine: Engine, name: str) -> None:
    """Take a suspension back; queued jobs are dispatched again."""
    with connect(engine) as connection:
        if connection.exec_driver_sql(RESUME, {"name": name}).first() is not None:
            return
        if connection.exec_driver_sql(EXISTS, {"name": name}).first() is not None:
            raise Conflict(f"The tenant {name!r} is being deleted.")
    raise no_tenant(name)


def delete_tenant(engine: Engine, name: str) -> None:
    """Have the scheduler remove the tenant with everything it has, for good."""
    if not fetch(engine, DELETE, {"name": name}):
        raise no_tenant(name)
