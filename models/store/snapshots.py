"""The oldest open snapshot: while it is held, no row version that it may see can be removed.

By a transaction, prepared or not, a replication slot, or a standby that reports its queries. Dead
versions then make every walk along an index longer, until it ends.
"""

from __future__ import annotations

#: From this age on an operator is told.
LONG_SECONDS = 300.0

#: One row: how long ago the oldest transaction of this database began, and how many transactions
#: ago the oldest snapshot was taken. Of slots and standbys only the latter is known. Vacuum's own
#: workers hold nothing back. One that began a moment after this statement is no time ago.
OLDEST_SNAPSHOT = """
    SELECT greatest(0, extract(epoch FROM now() - min(since)))::float8 AS seconds,
           coalesce(max(age(xmin)), 0)::bigint AS transactions
    FROM (
        SELECT xact_start AS since, coalesce(backend_xmin, backend_xid) AS xmin
        FROM pg_stat_activity
        WHERE num_nonnulls(backend_xmin, backend_xid) > 0 AND pid <> pg_backend_pid()
          AND coalesce(datname, current_database()) = current_database()
          AND backend_type <> 'autovacuum worker'
        UNION ALL
        SELECT prepared, transaction FROM pg_prepared_xacts WHERE database = current_database()
        UNION ALL
        SELECT NULL, xmin FROM pg_replication_slots WHERE xmin IS NOT NULL
    ) AS held
"""
