"""Expirer: jobs that wait past their ``not_after`` expire, wherever they wait.

The dispatcher and the claim see to it as well; this one is for pools without workers and for
schedules that come too late, where nobody looks.
"""

from __future__ import annotations

from sqlalchemy import Engine

from app.scheduler.leader import STILL_LEADER, Leader
from models.session import connection

BATCH = 500

EXPIRE = f"""
    WITH late AS (
        SELECT id FROM jobs
        WHERE status IN ('scheduled', 'queued') AND not_after < now() AND {STILL_LEADER}
        LIMIT {BATCH}
        FOR UPDATE SKIP LOCKED
    )
    UPDATE jobs AS job SET status = 'expired', finished_at = now()
    FROM late WHERE job.id = late.id
"""


class Expirer:
    """Ends what is too late to start."""

    def __init__(self, engine: Engine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader

    def run_once(self, now: float) -> int:
        """Expire one batch; how many."""
        with connection(self._engine) as taken:
            return taken.exec_driver_sql(EXPIRE, {"epoch": self._leader.epoch}).rowcount
