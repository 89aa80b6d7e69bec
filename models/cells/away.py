"""Away tenants: those for which a cell admits and dispatches nothing, as they live elsewhere.

`close_tenant` writes the row; statements that began before it do not see it. So whoever needs to
know that nothing more is admitted waits for those with `wait_for_older_statements`. Statements that
admit or dispatch have the condition ``AWAY`` of `models.jobs.held_back`.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, Engine, Row

from models.jobs.held_back import AWAY
from models.store.session import connect, execute, fetch

#: With the mark by which processes notice that a tenant has changed.
CLOSE = """
    WITH away AS (
        INSERT INTO away_tenants AS known (tenant_id, version)
        VALUES (%(tenant_id)s, %(version)s)
        ON CONFLICT (tenant_id) DO UPDATE SET version = excluded.version
        WHERE known.version < excluded.version
        RETURNING tenant_id
    )
    UPDATE tenants SET changed_at = clock_timestamp() FROM away WHERE id = away.tenant_id
"""
#: One that was sent away by a later placement stays away.
OPEN = """
    WITH back AS (
        DELETE FROM away_tenants WHERE tenant_id = %(tenant_id)s AND version <= %(version)s
        RETURNING tenant_id
    ), noticed AS (
        UPDATE tenants SET changed_at = clock_timestamp() FROM back WHERE id = back.tenant_id
    )
    SELECT tenant_id FROM back
"""
READ_AWAY = "SELECT tenant_id, since, version FROM away_tenants ORDER BY tenant_id"

#: Transactions of this database that are open, by the lock that each has on its own number: these
#: are shown to every login. Neither vacuum, which has no user, nor a backup admits jobs.
OPEN_TRANSACTIONS = """
    SELECT virtualxid AS number FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'virtualxid' AND datname = current_database() AND usesysid IS NOT NULL
      AND pid <> pg_backend_pid()
      AND coalesce(application_name, '') NOT IN ('pg_dump', 'pg_basebackup')
"""
LOOK_SECONDS = 0.02

__all__ = ["AWAY", "StillAdmitting", "close_tenant", "open_tenant", "wait_for_older_statements"]


class StillAdmitting(Exception):
    """Statements that began before a tenant was sent away have not ended yet."""


def close_tenant(engine: Engine, tenant_id: int, version: int) -> None:
    """Admit and dispatch nothing more for a tenant, in statements that begin after this."""
    execute(engine, CLOSE, {"tenant_id": tenant_id, "version": version})


def open_tenant(engine: Engine, tenant_id: int, version: int) -> bool:
    """Admit again for a tenant, unless a later placement sent it away; whether it was away."""
    return bool(fetch(engine, OPEN, {"tenant_id": tenant_id, "version": version}))


def read_away(engine: Engine) -> list[Row[Any]]:
    """The tenants that are away: their ids, since when, and by which version of the placement."""
    return list(fetch(engine, READ_AWAY))


def wait_for_older_statements(engine: Engine, seconds: float = 15.0) -> None:
    """Return when every transaction that is open now has ended: what follows sees our writes.

    Statements of Fairline end within ``db_statement_seconds``. ``StillAdmitting`` after so many
    seconds: nothing is known then, and the caller tries again later.
    """
    deadline = time.monotonic() + seconds
    older = open_transactions(engine)
    while older:
        if time.monotonic() > deadline:
            raise StillAdmitting(f"{len(older)} transactions have been open for {seconds:.0f} s")
        time.sleep(LOOK_SECONDS)
        older &= open_transactions(engine)


def open_transactions(engine: Engine) -> set[str]:
    """Numbers of the open transactions of this database; each number is used once."""
    with connect(engine) as connection:
        return read_open(connection)


def read_open(connection: Connection) -> set[str]:
    return {row.number for row in connection.exec_driver_sql(OPEN_TRANSACTIONS)}
