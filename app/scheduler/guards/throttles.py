"""Throttles: a tenant whose jobs keep killing the workers of a pool runs one at a time there.

The policy is :func:`tasks.retry.throttled`, fed with the crashes that the reaper counted; the
dispatcher and the express lane obey the verdict. The tenant is told, nobody else.
"""

from __future__ import annotations

import logging

from sqlalchemy import Engine

from app.scheduler.guards.windows import read_windows
from models.jobs.held_back import THROTTLED
from models.leadership import STILL_LEADER, Leader
from models.store.session import connect
from models.tallies import TallyKind, parse_crash_name
from tasks.retry import throttled
from tasks.retry.throttle import CRASHES, WINDOW_SECONDS

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


class Throttles:
    """Throttles tenants in pools, and lifts it after ten quiet minutes."""

    def __init__(self, engine: Engine, leader: Leader, limit: int = CRASHES) -> None:
        self._engine = engine
        self._leader = leader
        self._limit = limit

    def run_once(self, now: float) -> int:
        """Judge whoever crashed lately or is throttled; how many verdicts changed."""
        with connect(self._engine) as connection:
            windows = read_windows(connection, TallyKind.CRASH, WINDOW_SECONDS)
            crashed = {parse_crash_name(name): seen.total for name, seen in windows.items()}
            held = {(row.tenant_id, row.pool) for row in connection.exec_driver_sql(THROTTLED)}
            changed = 0
            for tenant_id, pool in crashed.keys() | held:
                crashes, was = crashed.get((tenant_id, pool), 0), (tenant_id, pool) in held
                if throttled(crashes, was, self._limit) == was:
                    continue
                asked = {"tenant_id": tenant_id, "pool": pool, "crashes": crashes}
                written = connection.exec_driver_sql(
                    LIFT if was else THROTTLE, {**asked, "epoch": self._leader.epoch}
                ).rowcount
                changed += written
                if written:
                    news = "throttle lifted" if was else f"throttled, {crashes} crashes"
                    logger.warning("tenant %s in %s: %s", tenant_id, pool, news)
        return changed
