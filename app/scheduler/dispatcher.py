"""Dispatcher: the line of each pool flows to the broker, bounded by the window.

It also keeps the express lane: while a pool has no line, the API may dispatch in the
request, up to a credit of free slots. What is held back (see :mod:`app.scheduler.holds`)
makes no line: it stands aside and closes no lane.
"""

from __future__ import annotations

import logging

from sqlalchemy import Connection, Engine

from app.dispatch.mark import Dispatch, mark, release
from app.dispatch.publish import Publisher
from app.dispatch.window import window
from app.errors import BrokerUnavailable
from app.scheduler.leader import STILL_LEADER, Leader
from app.scheduler.pools import Pools, PoolState, others_queued
from models.pools import POOLS
from models.session import connection

logger = logging.getLogger(__name__)

#: Jobs marked and published in one go.
BATCH = 500
#: Pause between two looks for a broker that is away.
BROKER_RETRY_SECONDS = 0.5
#: A permission is renewed this often even if nothing changed.
GRANT_SECONDS = 1.0

GRANT = f"""
    INSERT INTO express_lanes AS lane (pool, credit)
    SELECT %(pool)s, %(credit)s WHERE {STILL_LEADER}
    ON CONFLICT (pool) DO UPDATE SET credit = excluded.credit, granted_at = now()
"""


class Dispatcher:
    """Keeps every pool supplied from its line."""

    def __init__(self, engine: Engine, leader: Leader, publisher: Publisher, pools: Pools) -> None:
        self._engine = engine
        self._leader = leader
        self._publisher = publisher
        self._pools = pools
        self._granted: dict[str, float] = {}
        self._broker_due = 0.0
        self._broker_away = False

    def run_once(self, now: float) -> int:
        """Dispatch what the windows have room for; how many."""
        if not self._reach_broker(now):
            return 0
        dispatched = 0
        for pool in self._pools.read(now):
            room = window(pool.slots, pool.ended_per_second) - pool.in_flight
            if pool.queued > 0 and room > 0:
                dispatched += self._dispatch(pool, min(room, BATCH), now)
            self._grant(pool, now)
        return dispatched

    def _dispatch(self, pool: PoolState, room: int, now: float) -> int:
        """Mark, then publish. Dying in between loses a message, which the reaper finds."""
        dispatches = self._mark(pool, room, now)
        if not dispatches:
            return 0
        try:
            self._publisher.publish(dispatches, pool.workers)
        except BrokerUnavailable as error:
            release(self._engine, dispatches)
            self._lose_broker(now, error)
            return 0
        self._leader.broker_seen = True
        return len(dispatches)

    def _mark(self, pool: PoolState, room: int, now: float) -> list[Dispatch]:
        """Mark what is not held. Holds are read for each pool: probes count over all of them.

        A throttled tenant comes first with its one job: finding it may mean a walk along the
        whole line, which is made once a job and not once a turn.
        """
        epoch = self._leader.epoch or 0
        holds = self._pools.holds(now)
        throttled = holds.tenants.get(pool.name, {})
        marked: list[Dispatch] = []
        for tenant_id, tenant in throttled.items():
            left = min(tenant.room, room - len(marked))
            if left > 0 and tenant.queued > 0:
                marked += mark(self._engine, pool.name, left, epoch, holds.lanes, only=tenant_id)
        left = room - len(marked)
        if left > 0 and others_queued(pool, holds) > 0:
            marked += mark(self._engine, pool.name, left, epoch, holds.lanes, without=throttled)
        return marked

    def _grant(self, pool: PoolState, now: float) -> None:
        """Open the express lane for the free slots, or close it while there is a line."""
        free = pool.slots - pool.in_flight
        credit = max(0, free) if pool.ready <= 0 and not self._broker_away else 0
        fresh = now - self._granted.get(pool.name, -GRANT_SECONDS) < GRANT_SECONDS
        if credit == pool.credit and fresh:
            return
        with connection(self._engine) as taken:
            self._write_grant(taken, pool.name, credit)
        self._granted[pool.name] = now

    def _write_grant(self, taken: Connection, pool: str, credit: int) -> None:
        taken.exec_driver_sql(
            GRANT, {"pool": pool, "credit": credit, "epoch": self._leader.epoch or 0}
        )

    def _reach_broker(self, now: float) -> bool:
        """Look for the broker once in a while, so that nothing is marked in vain."""
        if now < self._broker_due:
            return not self._broker_away
        try:
            self._publisher.ping()
        except BrokerUnavailable as error:
            self._lose_broker(now, error)
            return False
        if self._broker_away:
            logger.info("the broker is back")
        self._broker_away = False
        self._broker_due = now + 2.0
        self._leader.broker_seen = True
        return True

    def _lose_broker(self, now: float, error: BrokerUnavailable) -> None:
        if not self._broker_away:
            logger.warning("the broker is away, jobs wait in the line: %s", error)
            with connection(self._engine) as taken:
                for pool in POOLS:
                    self._write_grant(taken, pool, 0)
        self._broker_away = True
        self._broker_due = now + BROKER_RETRY_SECONDS
