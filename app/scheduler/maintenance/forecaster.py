"""Forecaster: predicts when a few queued jobs will start, and counts how far off it was.

Predictions are those of ``GET /jobs/{id}/wait``. Once the job has started, the error goes into the
tallies, of which ``/metrics`` shows the mean of the last hour. A sample: jobs that were cancelled,
deferred or not started within an hour are dropped, so waits of over half an hour are not sampled.
"""

from __future__ import annotations

from random import Random

from sqlalchemy import Connection, Engine

from app.policy.forecast import error_ratio
from app.policy.wait_reasons import explain
from app.reads.waits import read_facts
from app.scheduler.role import RoleQueries
from models.leadership import STILL_LEADER, Leader
from models.pools import POOLS
from models.store.prepared import BY_INDEX, PreparedStatement
from models.store.session import connect
from models.tallies import TallyKind, add_tallies

FORECAST_SECONDS = 10.0
#: Open predictions of a pool at a time.
MOST_OPEN = 16
#: Jobs that are sampled at a time, one of them with so many ahead.
SAMPLED = 3
BEHIND = 400
#: Longer waits are not sampled.
MOST_SECONDS = 1800.0

#: Counting deletes it, so each is counted once.
JUDGE = f"""
    DELETE FROM predictions AS made
    USING (
        SELECT prediction.job_id, job.status::text AS status, job.started_at
        FROM predictions AS prediction LEFT JOIN jobs AS job ON job.id = prediction.job_id
    ) AS found
    WHERE made.job_id = found.job_id AND {STILL_LEADER}
      AND (found.started_at >= made.made_at
           OR coalesce(found.status, '') NOT IN ('queued', 'dispatched')
           OR made.made_at < now() - interval '1 hour')
    RETURNING made.pool, made.wait_seconds,
              extract(epoch FROM found.started_at - made.made_at)::float8 AS waited_seconds
"""
COUNT_OPEN = "SELECT pool, count(*)::int AS predictions FROM predictions GROUP BY pool"
#: First and last of a random tenant's queue, each one step along the index, and one not far behind
#: the first: in a flood that starts before its prediction is written, and the last in an hour.
FIND_SAMPLE = f"""
    WITH edge AS (
        SELECT (SELECT tenant_id FROM jobs WHERE status = 'queued' AND pool = %(pool)s
                ORDER BY tenant_id LIMIT 1) AS low,
               (SELECT tenant_id FROM jobs WHERE status = 'queued' AND pool = %(pool)s
                ORDER BY tenant_id DESC LIMIT 1) AS high
    ), tenant AS MATERIALIZED (
        SELECT (SELECT tenant_id FROM jobs WHERE status = 'queued' AND pool = %(pool)s
                  AND tenant_id >= edge.low
                      + floor(%(chance)s::float8 * (edge.high - edge.low + 1))::bigint
                ORDER BY tenant_id LIMIT 1) AS id
        FROM edge
    )
    (SELECT id::text FROM jobs
     WHERE status = 'queued' AND pool = %(pool)s AND tenant_id = (SELECT id FROM tenant)
     ORDER BY dependency, priority DESC, id LIMIT 1)
    UNION
    (SELECT id::text FROM jobs
     WHERE status = 'queued' AND pool = %(pool)s AND tenant_id = (SELECT id FROM tenant)
     ORDER BY dependency, priority DESC, id LIMIT 1 OFFSET {BEHIND})
    UNION
    (SELECT id::text FROM jobs
     WHERE status = 'queued' AND pool = %(pool)s AND tenant_id = (SELECT id FROM tenant)
     ORDER BY dependency DESC, priority, id DESC LIMIT 1)
"""
PREPARED = PreparedStatement("find_sample", FIND_SAMPLE, settings=BY_INDEX)
REMEMBER = f"""
    INSERT INTO predictions (job_id, pool, wait_seconds)
    SELECT %(id)s, %(pool)s, %(seconds)s WHERE {STILL_LEADER}
    ON CONFLICT (job_id) DO NOTHING
"""


class Forecaster(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader, chance: Random | None = None) -> None:
        super().__init__(engine, leader)
        self._chance = chance or Random()

    def run_once(self, now: float) -> int:
        """Count the errors of jobs that have started, sample queued ones; 0: no job is changed."""
        decided = self._read(JUDGE)
        opened = {row.pool: row.predictions for row in self._read(COUNT_OPEN)}
        with connect(self._engine) as connection:
            for pool in POOLS:
                if opened.get(pool, 0) + SAMPLED <= MOST_OPEN:
                    self._sample(connection, pool)
        counts: dict[tuple[TallyKind, str], tuple[int, int]] = {}
        for row in decided:
            if row.waited_seconds is None or row.waited_seconds < 0:
                continue  # never started, or did before: nothing to compare
            total, errors = counts.get((TallyKind.FORECAST, row.pool), (0, 0))
            error = error_ratio(row.wait_seconds, row.waited_seconds)
            errors += round(TallyKind.FORECAST.per_unit * error)
            counts[TallyKind.FORECAST, row.pool] = (total + 1, errors)
        add_tallies(self._engine, counts.items())
        return 0

    def _sample(self, connection: Connection, pool: str) -> None:
        rows = PREPARED.execute(connection, {"pool": pool, "chance": self._chance.random()})
        for job_id in rows.scalars().all():
            found = read_facts(connection, job_id)
            if found is None or found.facts.status != "queued":
                continue  # gone meanwhile
            seconds = explain(found.facts).seconds
            if seconds is not None and seconds <= MOST_SECONDS:
                remembered = {"id": job_id, "pool": pool, "seconds": seconds}
                connection.exec_driver_sql(REMEMBER, {**remembered, "epoch": self._leader.epoch})
