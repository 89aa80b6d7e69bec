"""Transactions that write a table, named so that a later look recognises those still open."""

from __future__ import annotations

from sqlalchemy import Connection

from models.store.prepared import PreparedStatement

#: By their locks: a writer has its lock before it writes, and keeps it to the end. PREPARE
#: TRANSACTION keeps the name, too.
READ_WRITERS = """
    SELECT virtualtransaction FROM pg_locks
    WHERE relation = ANY (%(tables)s::regclass[]) AND mode = 'RowExclusiveLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
PREPARED = PreparedStatement("read_writers", READ_WRITERS)


def read_writers(connection: Connection, *tables: str) -> frozenset[str]:
    """The names of those that are open now; one that a later look does not find has ended."""
    rows = PREPARED.execute(connection, {"tables": list(tables)})
    return frozenset(row.virtualtransaction for row in rows)
