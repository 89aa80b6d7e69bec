"""Recorder: samples the state of the pools for the charts of the console.

One row per pool every five seconds, kept for some 15 minutes, and one every five minutes, kept for
more than a day. The step is taken from the database's clock, so a second sample of a step, by
another leader or the same, writes nothing; while no scheduler leads there is a gap. The oldest age
is that of a bounded number of lane heads; beyond, at least what the Autoscaler has seen.
"""

from __future__ import annotations

from sqlalchemy import Engine

from app.reads.demand import QUEUE_HEADS
from app.scheduler.role import RoleQueries
from models.leadership import STILL_LEADER, Leader
from models.pools import POOLS
from models.presence import SERVING
from models.store.prepared import BY_INDEX, PreparedStatement

#: A step's sample is taken at most so late.
RECORD_SECONDS = 0.25
#: Seconds between two samples, and how long they are kept.
FINE_STEP, COARSE_STEP = 5, 300
FINE_KEPT_SECONDS = 20 * 60
COARSE_KEPT_SECONDS = 25 * 3600
#: Old samples are deleted this often, at most so many at once.
REMOVE_SECONDS = 60.0
REMOVED_AT_ONCE = 1_000
#: Lane heads that are read at most; the dispatcher waits meanwhile.
MOST_HEADS = 300

#: A sample of both steps, of which most exist already. Queued jobs are read by the heads of their
#: lanes, scheduled ones by the end of an index.
RECORD = f"""{QUEUE_HEADS}, oldest AS (
        SELECT seen.pool, extract(epoch FROM now() - min(seen.since))::float8 AS seconds,
               sum(count(*)) OVER () >= {MOST_HEADS} AS cut
        FROM (SELECT * FROM head LIMIT {MOST_HEADS}) AS seen GROUP BY seen.pool
    ), counted AS (
        SELECT pool, sum(scheduled) AS scheduled, sum(queued) AS queued,
               sum(dispatched) AS dispatched, sum(running) AS running,
               sum(succeeded) AS succeeded, sum(dead) AS dead, sum(cancelled) AS cancelled,
               sum(expired) AS expired
        FROM job_counts WHERE tenant_id = 0 GROUP BY pool
    ), alive AS (
        SELECT unnest(pools) AS pool, sum(busy) AS busy, sum(slots) AS slots, count(*) AS workers
        FROM processes
        WHERE {SERVING}
        GROUP BY 1
    ), taken AS (
        SELECT pool.name AS pool,
               coalesce(scheduled + queued + dispatched + running
                        + succeeded + dead + cancelled + expired, 0) AS submitted,
               coalesce(succeeded, 0) AS succeeded, coalesce(dead, 0) AS dead,
               coalesce(cancelled, 0) AS cancelled, coalesce(expired, 0) AS expired,
               coalesce(scheduled, 0) AS scheduled, coalesce(queued, 0) AS queued,
               coalesce(dispatched, 0) AS dispatched, coalesce(running, 0) AS running,
               greatest(oldest.seconds, 0,
                        (SELECT extract(epoch FROM now() - execute_at)::float8 FROM jobs
                         WHERE status = 'scheduled' AND jobs.pool = pool.name
                         ORDER BY execute_at LIMIT 1),
                        CASE WHEN oldest.cut THEN
                            (SELECT oldest_seconds FROM desired_workers AS desired
                             WHERE desired.pool = pool.name
                               AND updated_at > now() - interval '10 seconds') END
               ) AS oldest_seconds,
               coalesce(alive.busy, 0) AS busy, coalesce(alive.slots, 0) AS slots,
               coalesce(alive.workers, 0) AS workers
        FROM unnest(%(pools)s::text[]) AS pool (name)
        LEFT JOIN counted ON counted.pool = pool.name
        LEFT JOIN alive ON alive.pool = pool.name
        LEFT JOIN oldest ON oldest.pool = pool.name
    ), written AS (
        INSERT INTO pool_samples (
            step, at, pool, submitted, succeeded, dead, cancelled, expired, scheduled, queued,
            dispatched, running, oldest_seconds, busy, slots, workers)
        SELECT step, date_bin(make_interval(secs => step), now(), 'epoch'), taken.*
        FROM unnest(ARRAY[{FINE_STEP}, {COARSE_STEP}]) AS step, taken
        WHERE {STILL_LEADER}
        ON CONFLICT (step, pool, at) DO NOTHING RETURNING 1
    )
    SELECT (SELECT count(*) FROM written) AS written, extract(epoch FROM now())::float8 AS clock
"""
PREPARED = PreparedStatement("record", RECORD, settings=BY_INDEX)
REMOVE = f"""
    DELETE FROM pool_samples WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM pool_samples
        WHERE at < now() - CASE step
            WHEN {FINE_STEP} THEN interval '{FINE_KEPT_SECONDS} seconds'
            ELSE interval '{COARSE_KEPT_SECONDS} seconds' END
           -- by a clock that ran ahead
           OR at > now() + interval '1 minute'
        LIMIT {REMOVED_AT_ONCE}))
      AND {STILL_LEADER}
"""


class Recorder(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader) -> None:
        super().__init__(engine, leader)
        self._due = 0.0
        self._remove_due = 0.0

    def run_once(self, now: float) -> int:
        """Take a sample if a step has begun since the last; how many rows were written."""
        if now < self._due:
            return 0
        (row,) = self._read(PREPARED, pools=list(POOLS), after=[0] * len(POOLS))
        # When the next step begins, not so long after the last sample: rates divide by whole steps.
        self._due = now + FINE_STEP - row.clock % FINE_STEP
        if now >= self._remove_due:
            self._write(REMOVE)
            self._remove_due = now + REMOVE_SECONDS
        return int(row.written)
