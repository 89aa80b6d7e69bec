"""Credit of the express lanes: how many jobs of each pool the API may send to workers itself."""

from __future__ import annotations

import math

from sqlalchemy import Engine

from app.policy.window import credit_is_due, lane_credit
from app.scheduler.dispatching.pools import PoolState
from app.scheduler.role import RoleQueries
from models.leadership import STILL_LEADER, Leader
from models.pools import POOLS
from models.store.prepared import PreparedStatement

GRANT = f"""
    INSERT INTO express_lanes AS lane (pool, credit, slots)
    SELECT %(pool)s::text, %(credit)s::int, %(slots)s::int WHERE {STILL_LEADER}
    ON CONFLICT (pool) DO UPDATE
    SET credit = excluded.credit, slots = excluded.slots, granted_at = now()
"""
PREPARED = PreparedStatement("grant", GRANT)


class ExpressLanes(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader) -> None:
        super().__init__(engine, leader)
        #: By pool: when its credit was written, and what the lane may bring in flight.
        self._granted: dict[str, tuple[float, int]] = {}

    def grant(
        self, pool: PoolState, served: int, ended_per_second: float | None, now: float
    ) -> int:
        """Renew the credit of a pool after so many of its jobs were sent; what it is now.

        ``ended_per_second``: in the slots that tenants share; None closes the lane.
        """
        credit, in_flight = 0, pool.in_flight + served
        if ended_per_second is not None:
            credit = lane_credit(pool.slots, in_flight, ended_per_second)
        granted_at, most = self._granted.get(pool.name, (-math.inf, 0))
        too_many = pool.credit > 0 and in_flight + pool.credit > most
        if not (too_many or credit_is_due(pool.credit, credit, now - granted_at)):
            return pool.credit
        most = max(pool.slots, in_flight + credit)
        self._write(PREPARED, pool=pool.name, credit=credit, slots=most)
        self._granted[pool.name] = (now, most)
        return credit

    def close(self) -> None:
        """Close all of them: the broker is unavailable."""
        for pool in POOLS:
            self._write(PREPARED, pool=pool, credit=0, slots=None)
