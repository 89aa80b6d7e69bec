"""The pools as the scheduler sees them: line, flight, workers and the rate of endings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Engine

from app.dispatch.window import smoothed_rate
from app.scheduler.holds import HoldReader, Holds
from models.pools import POOLS
from models.presence import PRESENCE_LOST_SECONDS
from models.session import connection

#: The rate of endings is taken over this long: ten that end in step are no rate of hundreds.
RATE_SECONDS = 1.0

READ_POOLS = f"""
    SELECT pool.name, coalesce(counts.queued, 0), coalesce(counts.dispatched, 0),
           coalesce(counts.running, 0), coalesce(counts.ended, 0),
           coalesce(alive.slots, 0), coalesce(alive.workers, 0), coalesce(lane.credit, -1)
    FROM unnest(%(pools)s::text[]) AS pool (name)
    LEFT JOIN (
        SELECT pool, sum(queued)::bigint AS queued, sum(dispatched)::bigint AS dispatched,
               sum(running)::bigint AS running, sum(succeeded + dead)::bigint AS ended
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
#: Jobs in lanes that are not held, counted no further than somebody needs to know. The order
#: keeps the planner to the index of the line.
COUNT_READY = """
    WITH RECURSIVE lane AS (
        SELECT pool.name AS pool, pool.most, (
            SELECT dependency FROM jobs WHERE status = 'queued' AND jobs.pool = pool.name
            ORDER BY dependency LIMIT 1) AS dependency
        FROM unnest(%(pools)s::text[], %(most)s::int[]) AS pool (name, most)
        UNION ALL
        SELECT lane.pool, lane.most, (
            SELECT dependency FROM jobs
            WHERE status = 'queued' AND jobs.pool = lane.pool AND dependency > lane.dependency
            ORDER BY dependency LIMIT 1)
        FROM lane WHERE lane.dependency IS NOT NULL
    )
    SELECT lane.pool, sum(line.jobs)::bigint FROM lane, LATERAL (
        SELECT count(*) AS jobs FROM (
            SELECT FROM jobs WHERE status = 'queued' AND jobs.pool = lane.pool
              AND jobs.dependency = lane.dependency
            ORDER BY priority DESC, id LIMIT lane.most) AS counted
    ) AS line
    WHERE lane.dependency <> ALL (%(held)s::text[])
    GROUP BY lane.pool
"""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as the scheduler sees it now."""

    name: str
    queued: int
    dispatched: int
    running: int
    #: Jobs that were run to an end since the beginning; what expired took no slot.
    ended: int
    #: Slots of living workers.
    slots: int
    #: Living worker processes.
    workers: int
    #: Credit of the express lane; -1 if it was never granted.
    credit: int
    #: How many come to an end in a second.
    ended_per_second: float = 0.0
    #: Of the queued, those that nothing holds back. Never too few; exact if nothing is held.
    ready: int = 0

    @property
    def in_flight(self) -> int:
        """Jobs at the broker or running."""
        return self.dispatched + self.running

    @property
    def waiting(self) -> int:
        """Jobs that wait for a slot, in the line, at the broker, or claimed ahead by a worker."""
        return self.ready + max(0, self.in_flight - self.slots)


class Pools:
    """Reads the pools and keeps their rates."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rates: dict[str, tuple[float, int, float]] = {}
        self._holds = HoldReader(engine)

    def read(self, now: float) -> list[PoolState]:
        """All pools of this deployment."""
        with connection(self._engine) as taken:
            rows = taken.exec_driver_sql(READ_POOLS, {"pools": list(POOLS)}).all()
        pools = [
            replace(PoolState(*row), ready=row[1], ended_per_second=self._rate(row[0], row[4], now))
            for row in rows
        ]
        holds = self.holds(now)
        if not (holds.lanes or holds.tenants):
            return pools
        with connection(self._engine) as taken:
            counted = count_ready(taken, pools, holds)
        return [
            replace(pool, ready=max(0, min(others_queued(pool, holds), counted.get(pool.name, 0))))
            for pool in pools
        ]

    def holds(self, now: float) -> Holds:
        """What is held back."""
        return self._holds.read(now)

    def _rate(self, pool: str, ended: int, now: float) -> float:
        rate, before, at = self._rates.get(pool, (0.0, ended, now))
        if now - at >= RATE_SECONDS or pool not in self._rates:
            rate = smoothed_rate(rate, ended - before, now - at)
            self._rates[pool] = (rate, ended, now)
        return rate


def others_queued(pool: PoolState, holds: Holds) -> int:
    """Jobs in the line of tenants that are not throttled."""
    return pool.queued - sum(each.queued for each in holds.tenants.get(pool.name, {}).values())


def count_ready(taken: Connection, pools: list[PoolState], holds: Holds) -> dict[str, int]:
    """Jobs in open lanes, at least as far as the longest line that a pool may need."""
    if not holds.lanes:
        return {pool.name: pool.queued for pool in pools}
    waiting = [pool for pool in pools if pool.queued > 0]
    rows = taken.exec_driver_sql(
        COUNT_READY,
        {
            "pools": [pool.name for pool in waiting],
            "most": [1 + math.ceil(max(pool.slots, 2 * pool.ended_per_second)) for pool in waiting],
            "held": list(holds.lanes),
        },
    ).all()
    return {row[0]: row[1] for row in rows}
