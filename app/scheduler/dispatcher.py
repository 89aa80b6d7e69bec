"""Dispatcher: the line of each pool flows to the broker, bounded by the window.

It also keeps the express lane: while a pool has no line, the API may dispatch in the
request, up to a credit of free slots.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from app.dispatch.mark import mark, release
from app.dispatch.publish import Publisher
from app.dispatch.window import smoothed_rate, window
from app.errors import BrokerUnavailable
from app.scheduler.leader import STILL_LEADER, Leader
from models.pools import POOLS
from models.presence import PRESENCE_LOST_SECONDS
from models.session import connection

logger = logging.getLogger(__name__)

#: Jobs marked and published in one go.
BATCH = 500
#: Pause between two looks for a broker that is away.
BROKER_RETRY_SECONDS = 0.5
#: The rate of endings is taken over this long: ten that end in step are no rate of hundreds.
RATE_SECONDS = 1.0
#: A permission is renewed this often even if nothing changed.
GRANT_SECONDS = 1.0

READ_POOLS = f"""
    SELECT pool.name,
           coalesce(counts.queued, 0), coalesce(counts.in_flight, 0), coalesce(counts.ended, 0),
           coalesce(alive.slots, 0), coalesce(alive.workers, 0), coalesce(lane.credit, -1)
    FROM unnest(%(pools)s::text[]) AS pool (name)
    LEFT JOIN (
        SELECT pool, sum(queued)::bigint AS queued,
               sum(dispatched + running)::bigint AS in_flight,
               sum(succeeded + dead)::bigint AS ended
        FROM job_counts WHERE tenant_id = 0 GROUP BY pool
    ) AS counts ON counts.pool = pool.name
    LEFT JOIN (
        SELECT unnest(pools) AS pool, sum(slots)::int AS slots, count(*)::int AS workers
        FROM processes
        WHERE kind = 'worker' AND NOT draining
          AND heartbeat_at > now() - interval '{PRESENCE_LOST_SECONDS:g} seconds'
        GROUP BY 1
    ) AS alive ON alive.pool = pool.name
    LEFT JOIN express_lanes AS lane ON lane.pool = pool.name
"""
GRANT = f"""
    INSERT INTO express_lanes AS lane (pool, credit)
    SELECT %(pool)s, %(credit)s WHERE {STILL_LEADER}
    ON CONFLICT (pool) DO UPDATE SET credit = excluded.credit, granted_at = now()
"""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as the scheduler sees it now."""

    name: str
    queued: int
    in_flight: int
    #: Jobs that were run to an end since the beginning; what expired took no slot.
    ended: int
    #: Slots of living workers.
    slots: int
    #: Living worker processes.
    workers: int
    #: Credit of the express lane; -1 if it was never granted.
    credit: int


class Dispatcher:
    """Keeps every pool supplied from its line."""

    def __init__(self, engine: Engine, leader: Leader, publisher: Publisher) -> None:
        self._engine = engine
        self._leader = leader
        self._publisher = publisher
        self._rates: dict[str, tuple[float, int, float]] = {}
        self._granted: dict[str, float] = {}
        self._broker_due = 0.0
        self._broker_away = False

    def run_once(self, now: float) -> int:
        """Dispatch what the windows have room for; how many."""
        if not self._reach_broker(now):
            return 0
        dispatched = 0
        for pool in self._read_pools():
            room = window(pool.slots, self._rate(pool, now)) - pool.in_flight
            if pool.queued > 0 and room > 0:
                dispatched += self._dispatch(pool, min(room, BATCH), now)
            self._grant(pool, now)
        return dispatched

    def _read_pools(self) -> list[PoolState]:
        with connection(self._engine) as taken:
            rows = taken.exec_driver_sql(READ_POOLS, {"pools": list(POOLS)}).all()
        return [PoolState(*row) for row in rows]

    def _rate(self, pool: PoolState, now: float) -> float:
        rate, ended, at = self._rates.get(pool.name, (0.0, pool.ended, now))
        if now - at >= RATE_SECONDS or pool.name not in self._rates:
            rate = smoothed_rate(rate, pool.ended - ended, now - at)
            self._rates[pool.name] = (rate, pool.ended, now)
        return rate

    def _dispatch(self, pool: PoolState, room: int, now: float) -> int:
        """Mark, then publish. Dying in between loses a message, which the reaper finds."""
        dispatches = mark(self._engine, pool.name, room, self._leader.epoch or 0)
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

    def _grant(self, pool: PoolState, now: float) -> None:
        """Open the express lane for the free slots, or close it while there is a line."""
        free = pool.slots - pool.in_flight
        credit = max(0, free) if pool.queued <= 0 and not self._broker_away else 0
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
