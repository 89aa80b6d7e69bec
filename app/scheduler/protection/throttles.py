"""Throttles: a tenant whose jobs keep killing the workers of a pool runs one at a time there.

The policy is ``tasks.retry.guards``, fed with the crashes that the reaper counted. The
dispatcher and the express lane obey the restriction. Only the tenant gets an event.
"""

from __future__ import annotations

import logging

from sqlalchemy import Engine

from app.scheduler.protection.counts import read_windows
from app.scheduler.role import LeaderQueries
from models.jobs.held_back import THROTTLED
from models.leadership import STILL_LEADER, Leader
from models.store.session import connect
from models.tallies import TallyKind, parse_crash_name
from tasks.retry.guards import THROTTLE_CRASHES, THROTTLE_WINDOW_SECONDS, throttled

logger = logging.getLogger(__name__)

THROTTLE = f"""
    WITH throttled AS (
        INSERT INTO verdicts (kind, tenant_id, pool, detail)
        SELECT 'throttle', %(tenant_id)s, %(pool)s, json_build_object(
            'pool', %(pool)s::text, 'crashes', %(crashes)s)
        WHERE {STILL_LEADER}
        ON CONFLICT DO NOTHING
        RETURNING tenant_id, detail
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT tenant_id, 'tenant_throttled', detail FROM throttled
"""
LIFT = f"""
    WITH lifted AS (
        DELETE FROM verdicts
        WHERE kind = 'throttle' AND tenant_id = %(tenant_id)s AND pool = %(pool)s
          AND {STILL_LEADER}
        RETURNING tenant_id, pool
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT tenant_id, 'tenant_throttle_lifted', json_build_object('pool', pool) FROM lifted
"""


class Throttles(LeaderQueries):
    """Throttles tenants in pools, and lifts it after ten quiet minutes."""

    def __init__(self, engine: Engine, leader: Leader, limit: int = THROTTLE_CRASHES) -> None:
        super().__init__(engine, leader)
        self._limit = limit

    def run_once(self, now: float) -> int:
        """Check every tenant that crashed recently or is throttled; how many changed."""
        with connect(self._engine) as connection:
            windows = read_windows(connection, TallyKind.CRASH, THROTTLE_WINDOW_SECONDS)
            held = {(row.tenant_id, row.pool) for row in connection.exec_driver_sql(THROTTLED)}
        crashed = {parse_crash_name(name): seen.total for name, seen in windows.items()}
        changed = 0
        for tenant_id, pool in crashed.keys() | held:
            crashes, was = crashed.get((tenant_id, pool), 0), (tenant_id, pool) in held
            if throttled(crashes, was, self._limit) == was:
                continue
            statement = LIFT if was else THROTTLE
            if self._write(statement, tenant_id=tenant_id, pool=pool, crashes=crashes):
                changed += 1
                news = "throttle lifted" if was else f"throttled, {crashes} crashes"
                logger.warning("tenant %s in %s: %s", tenant_id, pool, news)
        return changed
