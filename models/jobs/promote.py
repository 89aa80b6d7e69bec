"""Promote: scheduled → queued, for jobs whose ``execute_at`` has come.

Called by the Promoter of the scheduler or the relief. One statement: dying before its commit
changes nothing, and after it the job is queued. Who was replaced in the role finds no row.
"""

from __future__ import annotations

from sqlalchemy import Engine

from models.pools import POOLS
from models.store.prepared import PreparedStatement
from models.store.session import fetch

#: Jobs promoted in one statement.
BATCH = 500

#: The first of each pool. To find out whether one is due an EXISTS would do, but after a stampede
#: has fallen due the planner looks for any due job in the table, where it finds the promoted ones.
FIRST_SCHEDULED = """unnest(%(pools)s::text[]) AS pool (name), LATERAL (
        SELECT execute_at FROM jobs WHERE status = 'scheduled' AND pool = pool.name
        ORDER BY execute_at LIMIT 1) AS first"""
FIND_DUE = f"SELECT pool.name FROM {FIRST_SCHEDULED} WHERE first.execute_at <= now()"
#: Promotes until ``room`` jobs of the pool can be dispatched, of at most ``most`` that are due.
#: What would be held back in the queue takes no room: it is promoted as it comes, or the jobs
#: behind it would wait for a dependency that they do not need.
#: Status as text in the update: see CLAIM in claim.py. ``condition``: the role's own.
PROMOTE_IF = """
    WITH due AS (
        SELECT id, execute_at, dependency = ANY (%(lanes)s::text[])
                            OR tenant_id = ANY (%(tenants)s::bigint[])
                            OR %(free_full)s AND EXISTS (
                                SELECT FROM tenants
                                WHERE tenants.id = jobs.tenant_id AND tier = 'free') AS held
        FROM jobs
        WHERE status = 'scheduled' AND pool = %(pool)s AND execute_at <= now() AND {condition}
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

PREPARED = PreparedStatement("find_due", FIND_DUE)


def find_due(engine: Engine) -> set[str]:
    """Pools in which a job is due."""
    return {row.name for row in fetch(engine, PREPARED, {"pools": list(POOLS)})}
