"""Throttles: a tenant whose jobs keep killing the workers of a pool runs one at a time there.

The policy is :func:`tasks.retry.throttled`, fed with the crashes that the reaper counted. The
dispatcher and the express lane obey the restriction. Only the tenant gets an event.
"""

from __future__ import annotations

import logging

from sqlalchemy import Engine

from app.scheduler.protection.counts import read_verdicts, read_windows
from app.scheduler.role import LeaderQueries
from models.leadership import STILL_LEADER, Leader
from models.store.session import connect
from tasks.retry import Window, throttled
from tasks.retry.throttle import CRASHES, WINDOW_SECONDS

logger = logging.getLogger(__name__)

THROTTLE = f"""
    WITH throttled AS (
        INSERT INTO verdicts (kind, name, detail)
        SELECT 'throttle', %(name)s, json_build_object(
            'pool', split_part(%(name)s, ':', 2), 'crashes', %(crashes)s)
        WHERE {STILL_LEADER}
        ON CONFLICT DO NOTHING
        RETURNING name, detail
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT split_part(name, ':', 1)::bigint, 'tenant_throttled', detail FROM throttled
"""
LIFT = f"""
    WITH lifted AS (
        DELETE FROM verdicts WHERE kind = 'throttle' AND name = %(name)s AND {STILL_LEADER}
        RETURNING name
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT split_part(name, ':', 1)::bigint, 'tenant_throttle_lifted',
           json_build_object('pool', split_part(name, ':', 2))
    FROM lifted
"""


class Throttles(LeaderQueries):
    """Throttles tenants in pools, and lifts it after ten quiet minutes."""

    def __init__(self, engine: Engine, leader: Leader, limit: int = CRASHES) -> None:
        super().__init__(engine, leader)
        self._limit = limit

    def run_once(self, now: float) -> int:
        """Check every tenant that crashed recently or is throttled; how many changed."""
        with connect(self._engine) as connection:
            windows = read_windows(connection, "crash", WINDOW_SECONDS)
            held = read_verdicts(connection, "throttle")
            changed = 0
            for name in windows.keys() | held:
                crashes = windows.get(name, Window(0, 0)).total
                if throttled(crashes, name in held, self._limit) == (name in held):
                    continue
                written = connection.exec_driver_sql(
                    LIFT if name in held else THROTTLE,
                    {"name": name, "crashes": crashes, "epoch": self._leader.epoch},
                ).rowcount
                changed += written
                if written:
                    news = "throttle lifted" if name in held else f"throttled, {crashes} crashes"
                    logger.warning("tenant:pool %s: %s", name, news)
        return changed
