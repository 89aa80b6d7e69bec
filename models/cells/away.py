"""Closes a cell to a tenant that lives in another one, and opens it when the tenant comes.

`set_away` with ``away``: nothing more is admitted or dispatched. Without: it is again, but
submissions with an idempotency key only from API processes that know this version of the placement.
Those that know an earlier one might send a repetition of the same request to another cell; they are
refused, read the placement again and send it to where it belongs. So when a tenant is spread over
more cells, the one that it was in is opened too, with the new version, and the keys that it has by
then are copied to the others before these are opened.

A row stays for good, also when the tenant has left: an API process that has not reached the
registry for long may still send something, with a key that it has cached.

Statements that began before a change do not see it: `wait_for_older_statements` waits for them.
Statements that admit or dispatch have the condition ``AWAY`` of `models.jobs.held_back`.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, Engine, Row

from models.store.session import connect, fetch

#: With the mark by which processes notice that a tenant has changed. An earlier placement than the
#: one that is known changes nothing.
SET_AWAY = """
    WITH changed AS (
        INSERT INTO away_tenants AS known (tenant_id, away, version)
        VALUES (%(tenant_id)s, %(away)s, %(version)s)
        ON CONFLICT (tenant_id) DO UPDATE
        SET away = excluded.away, version = excluded.version, changed_at = now()
        WHERE known.version <= excluded.version
        RETURNING tenant_id
    ), noticed AS (
        UPDATE tenants SET changed_at = clock_timestamp() FROM changed WHERE id = changed.tenant_id
    )
    SELECT tenant_id FROM changed
"""
IS_AWAY = "SELECT FROM away_tenants WHERE tenant_id = %(tenant_id)s AND away"
READ_AWAY = "SELECT tenant_id, changed_at, version FROM away_tenants WHERE away ORDER BY tenant_id"

#: Transactions of this database that are open, by the lock that each has on its own number: these
#: are shown to every login. Neither vacuum, which has no user, nor a backup admits jobs.
OPEN_TRANSACTIONS = """
    SELECT virtualxid AS number FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'virtualxid' AND datname = current_database() AND usesysid IS NOT NULL
      AND pid <> pg_backend_pid()
      AND coalesce(application_name, '') NOT IN ('pg_dump', 'pg_basebackup')
"""
LOOK_SECONDS = 0.02


class StillAdmitting(Exception):
    """Statements that began before a tenant was sent away have not ended yet."""


def set_away(connection: Connection, tenant_id: int, version: int, *, away: bool) -> bool:
    """Close a cell to a tenant, or open it, for statements that begin after the commit.

    Whether that holds then: not if a later placement was written before.
    """
    asked = {"tenant_id": tenant_id, "version": version, "away": away}
    return connection.exec_driver_sql(SET_AWAY, asked).first() is not None


def keep_away(connection: Connection, tenant_id: int, version: int) -> bool:
    """Send a tenant away that should be: a failover of the cell may have forgotten it.

    False if a later placement was written before.
    """
    known = connection.exec_driver_sql(IS_AWAY, {"tenant_id": tenant_id}).first()
    return known is not None or set_away(connection, tenant_id, version, away=True)


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
