"""Promoter: scheduled jobs that are due, also retries, are queued, oldest first and paced.

The queue is ordered by the age of the job, so a promoted job overtakes those submitted meanwhile.
That is harmless only because the pace counts all that waits, at the broker and in the workers too:
the whole queue then fits into the dispatcher's window, and a new job leaves it at the next turn.
"""

from __future__ import annotations

from sqlalchemy import Engine

from app.policy.pacing import Pace
from app.scheduler.dispatching.pools import Pools
from models.jobs.promote import BATCH, find_due_pools, promote
from models.leadership import Leader
from models.pools import POOLS


class Promoter:
    def __init__(self, engine: Engine, leader: Leader, pools: Pools, per_second: float) -> None:
        """``per_second`` bounds each pool's promotions, however fast the pool is."""
        self._engine = engine
        self._leader = leader
        self._pools = pools
        self._paces = {pool: Pace(per_second) for pool in POOLS}
        self._at: float | None = None

    def run_once(self, now: float) -> int:
        """Promote what each pool's pace allows; how many."""
        seconds, self._at = now - (now if self._at is None else self._at), now
        due = find_due_pools(self._engine)
        if not due:
            return 0
        holds = self._pools.holds(now)
        promoted = 0
        for pool in self._pools.read(now):
            if pool.name not in due:
                continue
            most, self._paces[pool.name] = self._paces[pool.name].turn(
                queued=pool.waiting,
                slots=pool.slots,
                ended_per_second=pool.ended_per_second,
                seconds=seconds,
            )
            promoted += promote(
                self._engine,
                pool.name,
                min(most, BATCH),
                self._leader.epoch,
                lanes=holds.lanes,
                tenants=self._pools.capped(pool.name),
                free_full=self._pools.free_full(pool.name),
            )
        return promoted
