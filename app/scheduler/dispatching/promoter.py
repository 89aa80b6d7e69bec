"""Promoter: scheduled jobs that are due, also retries, are queued at a bounded pace.

The oldest first; while more are due than may be queued, every other turn goes from tenant to
tenant, so that a hundred thousand due jobs of one do not delay the retries of all others.

The queue is ordered by the age of the job, so a promoted job overtakes those submitted meanwhile.
That is harmless only because the pace counts all that waits, at the broker and in the workers too:
the whole queue then fits into the dispatcher's window, and a new job leaves it at the next turn.
"""

from __future__ import annotations

from sqlalchemy import Engine

from app.policy.pacing import Pace
from app.scheduler.dispatching.pools import Pools
from app.scheduler.role import RoleQueries
from models.jobs.promote import BATCH, PROMOTE_BY_TENANT_IF, PROMOTE_IF, find_due
from models.leadership import RoleLease
from models.pools import POOLS

#: Due jobs are looked for this often while the counts say that none is scheduled.
LOOK_SECONDS = 0.25
#: Below the ids of all tenants.
NO_TENANT = -1


class Promoter(RoleQueries):
    def __init__(self, engine: Engine, leader: RoleLease, pools: Pools, per_second: float) -> None:
        """``per_second`` bounds each pool's promotions, however fast the pool is."""
        super().__init__(engine, leader)
        self._promote_sql = PROMOTE_IF.format(condition=leader.condition)
        self._by_tenant_sql = PROMOTE_BY_TENANT_IF.format(condition=leader.condition)
        #: Pools of which the next turn goes by tenant, and the tenant behind which it begins.
        self._by_tenant: dict[str, bool] = {}
        self._last: dict[str, int] = {}
        self._pools = pools
        self._paces = {pool: Pace(per_second) for pool in POOLS}
        self._at: float | None = None
        self._look_due = 0.0

    def run_once(self, now: float) -> int:
        """Promote what each pool's pace allows; how many."""
        if now < self._look_due and not self._pools.has_scheduled:
            return 0
        seconds, self._at = now - (now if self._at is None else self._at), now
        self._look_due = now + LOOK_SECONDS
        due = find_due(self._engine)
        if not due:
            return 0
        lanes = list(self._pools.holds(now).lanes)
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
            promoted += self._promote(pool.name, min(most, BATCH), lanes)
        return promoted

    def _promote(self, pool: str, room: int, lanes: list[str]) -> int:
        tenants, free_full = self._pools.capped(pool), self._pools.free_full(pool)
        held = {"lanes": lanes, "tenants": tenants, "free_full": free_full}
        most = BATCH if any(held.values()) else room
        if most <= 0:
            return 0
        if room > 0 and self._by_tenant.pop(pool, False):
            after = self._last.get(pool, NO_TENANT)
            [row] = self._read(self._by_tenant_sql, pool=pool, room=room, after=after, **held)
            self._last[pool] = NO_TENANT if row.last is None else row.last
            return int(row.jobs)
        promoted = self._write(self._promote_sql, pool=pool, room=room, most=most, **held)
        if room > 0:
            self._by_tenant[pool] = room <= promoted  # there may be more
        return promoted
