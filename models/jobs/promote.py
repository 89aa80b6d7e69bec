"""Promote: scheduled → queued, for jobs whose ``execute_at`` has come.

Called by the scheduler's Promoter. One statement: dying before its commit changes nothing, and
after it the job is queued. A leader that was replaced finds no row (``STILL_LEADER``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Engine

from models.leadership import STILL_LEADER
from models.pools import POOLS
from models.store.session import execute, fetch

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
#: What would be held back in the queue takes no room: it is promoted as it comes, or the jobs
#: behind it would wait for a dependency that they do not need.
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


def find_due_pools(engine: Engine) -> set[str]:
    """The pools that have jobs to promote."""
    return {row.name for row in fetch(engine, FIND_DUE, {"pools": list(POOLS)})}


def promote(
    engine: Engine,
    pool: str,
    room: int,
    epoch: int | None,
    *,
    lanes: Collection[str],
    tenants: Sequence[int],
    free_full: bool,
) -> int:
    """Promote jobs of a pool until ``room`` of them can be dispatched; how many.

    Lanes, tenants and free accounts that are held back take no room.
    """
    held = bool(lanes or tenants or free_full)
    if room <= 0 and not held:
        return 0
    parameters = {
        "pool": pool,
        "room": room,
        "most": BATCH if held else room,
        "lanes": list(lanes),
        "tenants": tenants,
        "free_full": free_full,
        "epoch": epoch,
    }
    return execute(engine, PROMOTE, parameters)
