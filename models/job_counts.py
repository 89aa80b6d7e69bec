"""Folding: deltas of job counts that triggers wrote become part of the sums.

The view ``job_counts`` adds up the newest sum of a key and the deltas behind it, so it is exact
whether or not they were folded. Nothing is updated in place: while a snapshot is held open, say by
a backup, dead versions stay, and readers would walk all of them. Here they have smaller numbers
than what counts, and an index condition leaves them out.

A fold is right whoever makes it: it moves all deltas up to a number into sums, in one statement.
Below that number no transaction may be about to write: the number was drawn before the writers of
that time had ended. One process folds at a time, by an advisory lock.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from sqlalchemy import Engine

from models.jobs.states import JobStatus
from models.store.prepared import PreparedStatement
from models.store.session import connect, transaction
from models.store.writers import read_writers

logger = logging.getLogger(__name__)

FOLD_SECONDS = 0.25
#: Deltas folded in one statement.
BATCH = 20_000
#: Fewer than these are left to be read one by one, for so many turns at most.
WORTH_FOLDING = 200
MOST_TURNS = 20
FOLD_LOCK = 0x_FA1E_F01D
#: Counts are compared with the rows this often.
RECOUNT_SECONDS = 600.0

#: Names a server by its start, and by that of its statistics: a backend that is killed makes it
#: recover and forget these. Numbers drawn before a recovery, a failover or a restore mean nothing
#: afterwards: those whose transactions were lost are drawn again.
SERVER = """(pg_postmaster_start_time()::text
             || coalesce(pg_stat_get_bgwriter_stat_reset_time()::text, ''))"""
#: Numbers drawn so far.
DRAWN = f"""{SERVER} AS server,
           (SELECT last_value - (NOT is_called)::int FROM job_count_deltas_id_seq) AS delta,
           (SELECT last_value - (NOT is_called)::int FROM arrivals_id_seq) AS arrival"""
READ_DRAWN = f"SELECT {DRAWN}"
PREPARED = PreparedStatement("read_drawn", READ_DRAWN)
FIRST_DELTA = "SELECT id FROM job_count_deltas ORDER BY id LIMIT 1"
TAKE_LOCK = "SELECT pg_try_advisory_xact_lock(%(lock)s)"

KEY = "tenant_id, pool, dependency"
COLUMNS = ", ".join(JobStatus)
FOLD = f"""
    WITH folded AS (
        DELETE FROM job_count_deltas
        WHERE id > %(after)s AND id <= %(up_to)s
          AND {SERVER} = %(server)s
        RETURNING *
    ), added AS (
        SELECT {KEY}, max(id) AS up_to,
               {", ".join(f"sum({each}) AS {each}" for each in JobStatus)}
        FROM folded GROUP BY {KEY}
    ), base AS MATERIALIZED (
        SELECT newest.* FROM added, LATERAL (
            SELECT ctid AS place, * FROM job_count_sums AS summed
            WHERE summed.tenant_id = added.tenant_id AND summed.pool = added.pool
              AND summed.dependency = added.dependency
            ORDER BY up_to DESC LIMIT 1
        ) AS newest
    ), replaced AS (
        DELETE FROM job_count_sums WHERE ctid = ANY (ARRAY(SELECT place FROM base))
    )
    INSERT INTO job_count_sums ({KEY}, up_to, {COLUMNS})
    SELECT {KEY}, added.up_to,
           {", ".join(f"added.{each} + coalesce(base.{each}, 0)" for each in JobStatus)}
    FROM added LEFT JOIN base USING ({KEY})
"""

LIVE = [status for status in JobStatus if not status.terminal]
#: By status, for each has an index of its own: ended jobs are not read.
LIVE_JOBS = " UNION ALL ".join(
    f"SELECT {KEY}, status FROM jobs WHERE {condition}"
    for condition in (
        "status = 'scheduled'",
        "status = 'queued'",
        "status IN ('dispatched', 'running')",
    )
)
MISSING = [f"coalesce(truth.{each}, 0) - coalesce(counted.{each}, 0)" for each in LIVE]
#: A snapshot has a change of a job and its delta, or neither. What happens meanwhile is added.
RECOUNT = f"""
    WITH truth AS (
        SELECT coalesce(tenant_id, 0) AS tenant_id, pool, coalesce(dependency, '') AS dependency,
               {", ".join(f"count(*) FILTER (WHERE status = '{each}') AS {each}" for each in LIVE)}
        FROM ({LIVE_JOBS}) AS live GROUP BY GROUPING SETS ((tenant_id, pool), (pool, dependency))
    )
    INSERT INTO job_count_deltas ({KEY}, {COLUMNS})
    SELECT {KEY}, {", ".join(MISSING)}{", 0" * (len(JobStatus) - len(LIVE))}
    FROM truth FULL JOIN job_counts AS counted USING ({KEY})
    WHERE {" OR ".join(f"{each} <> 0" for each in MISSING)}
"""


class Drawn(NamedTuple):
    """Numbers of deltas and arrivals up to which something holds, on one server."""

    server: str = ""
    delta: int = 0
    arrival: int = 0


class CountFolder:
    """Folds the deltas of all keys, as far as their transactions have ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Up to these, every transaction that drew a number has ended.
        self.finished = Drawn()
        #: The next candidate, and the writers that have to end first.
        self._next = Drawn()
        self._writers: frozenset[str] = frozenset()
        #: All deltas up to this one are folded; None: not known yet.
        self._folded: int | None = None
        self._turns_left = 0

    def run_once(self, now: float) -> int:
        """Fold what is worth it; 0, for no job is touched."""
        self._look()
        if self._folded is None:
            self._folded = self._find_first()
        waiting = self.finished.delta - self._folded
        self._turns_left = self._turns_left - 1 if waiting > 0 else MOST_TURNS
        if waiting >= WORTH_FOLDING or self._turns_left <= 0 < waiting:
            self._fold(self._folded, min(self.finished.delta, self._folded + BATCH))
            self._turns_left = MOST_TURNS
        return 0

    def _look(self) -> None:
        """See how far transactions have ended."""
        with connect(self._engine) as connection:
            drawn = Drawn(*PREPARED.execute(connection, {}).one())
            # Afterwards: who drew a number before is among them, or has ended. They write their
            # deltas first and then their arrivals, and draw the numbers with the lock held.
            writers = read_writers(connection, "job_count_deltas")
        fell_back = drawn.delta < self._next.delta or drawn.arrival < self._next.arrival
        if drawn.server != self.finished.server or fell_back:
            self.finished, self._folded = Drawn(drawn.server), None
            self._next, self._writers = drawn, writers
        if not self._writers & writers:
            self.finished, self._next, self._writers = self._next, drawn, writers
        if not writers:
            self.finished = drawn

    def _find_first(self) -> int:
        """What is before the first delta was folded by another process."""
        with connect(self._engine) as connection:
            row = connection.exec_driver_sql(FIRST_DELTA).one_or_none()
        return min(row.id - 1, self.finished.delta) if row else self.finished.delta

    def _fold(self, after: int, up_to: int) -> None:
        with transaction(self._engine) as connection:
            # A statement of its own: the next one must see what the last holder committed.
            locked = connection.exec_driver_sql(TAKE_LOCK, {"lock": FOLD_LOCK}).scalar_one()
            if not locked:
                return
            asked = {"after": after, "up_to": up_to, "server": self.finished.server}
            connection.exec_driver_sql(FOLD, asked)
        self._folded = up_to


class Recounter:
    """Corrects counts of live jobs that are wrong, whatever made them so: a pool whose jobs in
    flight are counted too high would get no more. Costs a statement's time at most."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run_once(self, now: float) -> int:
        """Compare and correct; 0, for no job is touched."""
        with transaction(self._engine) as connection:
            if connection.exec_driver_sql(TAKE_LOCK, {"lock": FOLD_LOCK}).scalar_one():
                corrected = connection.exec_driver_sql(RECOUNT).rowcount
                if corrected:
                    logger.error("%d counts of jobs were wrong; corrected", corrected)
        return 0
