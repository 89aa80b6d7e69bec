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
#: Whether a job would be held back in the queue. It takes no room: it is promoted as it comes, or
#: the jobs behind it would wait for a dependency that they do not need.
HELD = """(dependency = ANY (%(lanes)s::text[])
                OR tenant_id = ANY (%(tenants)s::bigint[])
                OR %(free_full)s AND EXISTS (
                    SELECT FROM tenants WHERE tenants.id = jobs.tenant_id AND tier = 'free'))"""
#: Promotes until ``room`` jobs of the pool can be dispatched, of at most ``most`` that are due, the
#: oldest first.
#: Status as text in the update: see CLAIM in claim.py. ``condition``: the role's own.
PROMOTE_IF = f"""
    WITH due AS (
        SELECT id, execute_at, {HELD} AS held
        FROM jobs
        WHERE status = 'scheduled' AND pool = %(pool)s AND execute_at <= now() AND {{condition}}
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
#: Tenants that one statement looks at.
MOST_TENANTS = 100
NEXT_TENANT = """LATERAL (
            SELECT tenant_id FROM jobs
            WHERE status = 'scheduled' AND jobs.pool = %(pool)s AND tenant_id > {after}
            ORDER BY tenant_id LIMIT 1)"""
#: The same for tenants in turns, from the one behind ``after`` on: of each as many as there is room
#: for all of them, at least one. The last tenant that had its turn; NULL behind the last of all.
PROMOTE_BY_TENANT_IF = f"""
    WITH RECURSIVE turn AS (
        SELECT first.tenant_id, 1 AS place
        FROM {NEXT_TENANT.format(after="%(after)s::bigint")} AS first
        UNION ALL
        SELECT next.tenant_id, turn.place + 1
        FROM turn, {NEXT_TENANT.format(after="turn.tenant_id")} AS next
        WHERE turn.place < {MOST_TENANTS}
    ), due AS (
        SELECT turn.tenant_id, own.*
        FROM turn, LATERAL (
            SELECT id, execute_at, {HELD} AS held FROM jobs
            WHERE status = 'scheduled' AND pool = %(pool)s AND jobs.tenant_id = turn.tenant_id
              AND execute_at <= now() AND {{condition}}
            ORDER BY jobs.tenant_id, execute_at
            LIMIT (SELECT greatest(1, %(room)s / nullif(count(*), 0)) FROM turn)
            FOR UPDATE SKIP LOCKED) AS own
    ), placed AS (
        SELECT id, count(*) FILTER (WHERE NOT held) OVER (ORDER BY tenant_id, execute_at, id)
                   AS place
        FROM due
    ), promoted AS (
        UPDATE jobs AS job SET status = 'queued'
        FROM placed
        WHERE job.id = placed.id AND placed.place <= %(room)s AND job.status::text = 'scheduled'
        RETURNING job.tenant_id
    )
    SELECT (SELECT count(*) FROM promoted)::int AS jobs,
           CASE WHEN (SELECT max(place) FROM placed) > %(room)s
                    THEN (SELECT max(tenant_id) FROM promoted)
                WHEN (SELECT max(place) FROM turn) = {MOST_TENANTS}
                    THEN (SELECT max(tenant_id) FROM turn) END AS last
"""

PREPARED = PreparedStatement("find_due", FIND_DUE)


def find_due(engine: Engine) -> set[str]:
    """Pools in which a job is due."""
    return {row.name for row in fetch(engine, PREPARED, {"pools": list(POOLS)})}
