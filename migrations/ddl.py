"""What migrations share: locks that are not waited for, and indexes built beside the writers.

A statement that waits for a lock on a table makes everybody wait behind it. So every migration has
a ``lock_timeout`` and is repeated when it runs into it or into a deadlock, and an index of a table
with many rows is built concurrently.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from alembic import op
from sqlalchemy.exc import OperationalError

logger = logging.getLogger("alembic.runtime.migration")

#: How long a statement waits for a lock: less than PostgreSQL's ``deadlock_timeout`` of a second,
#: so that of a deadlock the migration is given up and never somebody else's statement.
LOCK_TIMEOUT = "500ms"
#: Pauses between attempts.
PAUSES = (0.5, 1.0, *[2.0] * 15)
#: PostgreSQL's codes for a lock that was not granted in time, and for a deadlock.
NO_LOCK = ("55P03", "40P01")
#: Tables that grow with the jobs: a plain CREATE INDEX would stop the writers for minutes.
BIG_TABLES = frozenset(
    {
        *("jobs", "applications", "attempts", "checkpoints", "events", "idempotency_keys"),
        *("run_logs", "usage"),
    }
)

SET_LOCK_TIMEOUT = f"SET lock_timeout = '{LOCK_TIMEOUT}'"
#: Building concurrently waits for old transactions, and nobody waits behind that.
WAIT_FOR_LOCKS = "SET lock_timeout = 0"
FIND_INVALID = """
    SELECT 1 FROM pg_index WHERE indexrelid = to_regclass('{name}') AND NOT indisvalid
"""


def with_retries(migrate: Callable[[], None]) -> None:
    """Call ``migrate``, again if it did not get a lock; it must go on where it was."""
    for pause in (*PAUSES, None):
        try:
            migrate()
            return
        except OperationalError as error:
            if getattr(error.orig, "pgcode", None) not in NO_LOCK:
                raise
            if pause is None:
                raise SystemExit(
                    "The migration was given up: another transaction holds a lock on a table that"
                    " it changes (see pg_stat_activity for the oldest xact_start). Completed"
                    " migrations are kept, this one changed nothing: end that transaction and"
                    " start the command again."
                ) from None
            logger.warning("a table is in use, trying again in %g s", pause)
            time.sleep(pause)


def build_index(name: str, on: str) -> None:
    """Create an index concurrently; ``on`` is what follows ON: table, columns, WHERE.

    In its own migration: what came before it in the same one is committed first. An attempt that
    was interrupted leaves an invalid index, which is dropped.
    """
    context = op.get_context()
    with context.autocommit_block():
        op.execute(WAIT_FOR_LOCKS)
        if (
            not context.as_sql
            and op.get_bind().exec_driver_sql(FIND_INVALID.format(name=name)).all()
        ):
            op.execute(f"DROP INDEX CONCURRENTLY {name}")
        op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {on}")
        op.execute(SET_LOCK_TIMEOUT)


def drop_index(name: str) -> None:
    """Drop an index concurrently; in its own migration, as above."""
    with op.get_context().autocommit_block():
        op.execute(WAIT_FOR_LOCKS)
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute(SET_LOCK_TIMEOUT)
