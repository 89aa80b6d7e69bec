"""Promoter: scheduled jobs that are due join the line."""

from __future__ import annotations

from sqlalchemy import Engine

from app.scheduler.leader import STILL_LEADER, Leader
from models.session import connection

#: Jobs promoted in one turn; a backlog after an outage joins the line in steps.
BATCH = 500

PROMOTE = f"""
    WITH due AS (
        SELECT id FROM jobs
        WHERE status = 'scheduled' AND execute_at <= now() AND {STILL_LEADER}
        ORDER BY execute_at
        LIMIT {BATCH}
        FOR UPDATE SKIP LOCKED
    )
    UPDATE jobs AS job SET status = 'queued'
    FROM due WHERE job.id = due.id
"""


class Promoter:
    """Moves due jobs into the line, oldest first."""

    def __init__(self, engine: Engine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader

    def run_once(self, now: float) -> int:
        """Promote one batch; how many."""
        with connection(self._engine) as taken:
            return taken.exec_driver_sql(PROMOTE, {"epoch": self._leader.epoch}).rowcount
