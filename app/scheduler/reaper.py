"""Reaper: jobs whose lease ran out go back to the line.

A dispatched job nobody claimed lost its message; a running job without heartbeats lost
its worker. Neither costs a try. A job that has now lost five workers is dead: it probably
kills them.
"""

from __future__ import annotations

import logging

from sqlalchemy import Engine

from app.scheduler.leader import STILL_LEADER, Leader
from models.presence import FORGET_LOST
from models.session import connection

logger = logging.getLogger(__name__)

BATCH = 1000
#: Workers a job may lose.
CRASH_CAP = 5

REAP = f"""
    WITH lost AS (
        SELECT id, status FROM jobs
        WHERE status IN ('dispatched', 'running') AND lease_expires_at < now() AND {STILL_LEADER}
        LIMIT {BATCH}
        FOR UPDATE SKIP LOCKED
    ), verdict AS (
        SELECT lost.id, lost.status = 'running' AS crashed,
               lost.status = 'running' AND job.crashes + 1 >= {CRASH_CAP} AS capped
        FROM lost JOIN jobs AS job USING (id)
    )
    UPDATE jobs AS job
    SET status = CASE WHEN capped THEN 'dead'::job_status ELSE 'queued'::job_status END,
        crashes = job.crashes + crashed::int,
        lease_expires_at = NULL,
        finished_at = CASE WHEN capped THEN now() END,
        error_class = CASE WHEN crashed THEN 'WORKER_CRASH' ELSE job.error_class END,
        error_message = CASE WHEN crashed
            THEN 'The worker ' || coalesce(job.worker, '?') || ' was lost while running it.'
            ELSE job.error_message END
    FROM verdict WHERE job.id = verdict.id
    RETURNING job.id::text, crashed, capped
"""


class Reaper:
    """Finds lost leases and lost messages."""

    def __init__(self, engine: Engine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader

    def run_once(self, now: float) -> int:
        """Reap one batch; how many."""
        with connection(self._engine) as taken:
            rows = taken.exec_driver_sql(REAP, {"epoch": self._leader.epoch}).all()
            taken.exec_driver_sql(FORGET_LOST)
        if rows:
            crashed = sum(row[1] for row in rows)
            logger.warning(
                "reaped %d jobs: %d lost their worker, %d their message, %d are dead",
                len(rows),
                crashed,
                len(rows) - crashed,
                sum(row[2] for row in rows),
            )
        return len(rows)
