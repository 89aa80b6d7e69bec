"""Quarantine: job types that mostly fail get fewer tries, until they recover.

The policy is :func:`tasks.retry.quarantined`; workers read the verdict and decide retries by
it. Everybody is told (tenant 0): job types belong to the house, and any tenant may be about
to submit one.
"""

from __future__ import annotations

import logging

from sqlalchemy import Engine

from app.scheduler.guards.windows import read_windows
from models.jobs.held_back import QUARANTINED
from models.leadership import STILL_LEADER, Leader
from models.store.session import connect
from models.tallies import TallyKind
from tasks.retry import Window, quarantined
from tasks.retry.quarantine import WINDOW_SECONDS

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


class Quarantine:
    """Puts job types into quarantine and lets them out."""

    def __init__(self, engine: Engine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader

    def run_once(self, now: float) -> int:
        """Judge every type that ran lately or is quarantined; how many verdicts changed."""
        with connect(self._engine) as connection:
            windows = read_windows(connection, TallyKind.TYPE, WINDOW_SECONDS)
            held = set(connection.exec_driver_sql(QUARANTINED).scalars())
            changed = 0
            for name in windows.keys() | held:
                window = windows.get(name, Window(0, 0))
                if quarantined(window, name in held) == (name in held):
                    continue
                written = connection.exec_driver_sql(
                    LEAVE if name in held else ENTER,
                    {
                        "name": name,
                        "runs": window.total,
                        "failed": window.bad,
                        "epoch": self._leader.epoch,
                    },
                ).rowcount
                changed += written
                if written:
                    move = "leaves" if name in held else "enters"
                    logger.warning(
                        "%s %s quarantine: %d of %d failed", name, move, window.bad, window.total
                    )
        return changed
