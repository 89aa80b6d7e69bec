"""Promoter: scheduled jobs that are due join the line, oldest first, at a bounded pace.

Whatever falls due at one instant, or fell due during an outage, waits where it is and joins
the line as the pool works it off. Retries come the same way.

The line is ordered by the age of the job, so a promoted job passes those that were submitted
meanwhile. That is harmless only because the pace counts all that waits, at the broker and in
the workers too: the dispatcher's window then always has room for the whole line, and a
newcomer leaves it at the next turn, however many are due.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Engine

from app.scheduler.leader import STILL_LEADER, Leader
from app.scheduler.pacing import Pace
from app.scheduler.pools import Pools
from models.pools import POOLS
from models.session import connection

#: Jobs promoted in one statement.
BATCH = 500

#: The first of each pool and whether it is due. An EXISTS would do, but after a stampede has
#: fallen due the planner looks for any due job in the table, where it finds the promoted ones.
FIND_DUE = """
    SELECT pool.name FROM unnest(%(pools)s::text[]) AS pool (name), LATERAL (
        SELECT execute_at FROM jobs WHERE status = 'scheduled' AND pool = pool.name
        ORDER BY execute_at LIMIT 1) AS first
    WHERE first.execute_at <= now()
"""
#: What would be held back in the line takes nobody's room: it goes there as it comes, or those
#: behind it would wait for a dependency that is none of theirs.
#: Status as text in the update: see CLAIM.
PROMOTE = f"""
    WITH due AS (
        SELECT id, execute_at, dependency = ANY (%(lanes)s::text[])
                            OR tenant_id = ANY (%(tenants)s::bigint[])
                            OR %(free_full)s AND EXISTS (
                                SELECT FROM tenants
                                WHERE tenants.id = jobs.tenant_id AND tier = 'free') AS held
        FROM jobs
        WHERE status = 'scheduled' AND pool = %(pool)s AND execute_at <= now() AND {STILL_LEADER}
        ORDER BY execute_at
        LIMIT %(most)s
        FOR UPDATE SKIP LOCKED
    ), placed AS (
        SELECT id, count(*) FILTER (WHERE NOT held) OVER (ORDER BY execute_at, id) AS place
        FROM due
    )
    UPDATE jobs AS job SET status = 'queued'
    FROM placed
    WHERE job.id = placed.id AND placed.place <= %(room)s AND job.status::text = 'scheduled'
"""


class Promoter:
    """Moves due jobs into the line."""

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
        with connection(self._engine) as taken:
            due = {row[0] for row in taken.exec_driver_sql(FIND_DUE, {"pools": list(POOLS)})}
        if not due:
            return 0
        holds = self._pools.holds(now)
        promoted = 0
        for pool in self._pools.read(now):
            if pool.name not in due:
                continue
            room, self._paces[pool.name] = self._paces[pool.name].turn(
                queued=pool.waiting,
                slots=pool.slots,
                ended_per_second=pool.ended_per_second,
                seconds=seconds,
            )
            promoted += self._promote(pool.name, min(room, BATCH), holds.lanes)
        return promoted

    def _promote(self, pool: str, room: int, lanes: Collection[str]) -> int:
        tenants, free_full = self._pools.capped(pool), self._pools.free_full(pool)
        held = bool(lanes or tenants or free_full)
        if room <= 0 and not held:
            return 0
        with connection(self._engine) as taken:
            return taken.exec_driver_sql(
                PROMOTE,
                {
                    "pool": pool,
                    "room": room,
                    "most": BATCH if held else room,
                    "lanes": list(lanes),
                    "tenants": tenants,
                    "free_full": free_full,
                    "epoch": self._leader.epoch,
                },
            ).rowcount
