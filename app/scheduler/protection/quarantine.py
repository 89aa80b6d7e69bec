"""Quarantine: job types that mostly fail get fewer attempts, until they recover.

The policy is ``tasks.retry.guards``; workers read the restriction when they decide about
retries. All tenants get the event (tenant 0): any of them may be about to submit such a job.
"""

from __future__ import annotations

import logging

from app.scheduler.protection.counts import read_windows
from app.scheduler.role import LeaderQueries
from models.jobs.held_back import QUARANTINED
from models.leadership import STILL_LEADER
from models.store.session import connect
from models.tallies import TallyKind
from tasks.retry.circuit import Window
from tasks.retry.guards import QUARANTINE_WINDOW_SECONDS, quarantined

logger = logging.getLogger(__name__)

ENTER = f"""
    WITH entered AS (
        INSERT INTO verdicts (kind, name, detail)
        SELECT 'quarantine', %(name)s, json_build_object(
            'type', %(name)s::text, 'runs', %(runs)s, 'failed', %(failed)s)
        WHERE {STILL_LEADER}
        ON CONFLICT DO NOTHING
        RETURNING detail
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT 0, 'job_type_quarantined', detail FROM entered
"""
LEAVE = f"""
    WITH left_it AS (
        DELETE FROM verdicts WHERE kind = 'quarantine' AND name = %(name)s AND {STILL_LEADER}
        RETURNING name
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT 0, 'job_type_released', json_build_object(
        'type', name, 'runs', %(runs)s, 'failed', %(failed)s)
    FROM left_it
"""


class Quarantine(LeaderQueries):
    def run_once(self, now: float) -> int:
        """Check every type that ran recently or is quarantined; how many changed."""
        with connect(self._engine) as connection:
            windows = read_windows(connection, TallyKind.TYPE, QUARANTINE_WINDOW_SECONDS)
            held = set(connection.exec_driver_sql(QUARANTINED).scalars())
        changed = 0
        for name in windows.keys() | held:
            window = windows.get(name, Window(0, 0))
            if quarantined(window, name in held) == (name in held):
                continue
            statement, move = (LEAVE, "leaves") if name in held else (ENTER, "enters")
            if self._write(statement, name=name, runs=window.total, failed=window.bad):
                changed += 1
                logger.warning(
                    "%s %s quarantine: %d of %d failed", name, move, window.bad, window.total
                )
        return changed
