"""Queries about tenants and their work, for the page that shows all of them.

Cheap with ten thousand tenants: queues are walked in one step per tenant, and only tenants that are
shown are read. A tenant that used a little today, beyond the first thousand, is found by name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row

from app.console.tenants.shares import Working
from app.reads.waits import FRESH_SECONDS
from app.tenants.caps import cap_sql
from models.jobs.lane_walk import lane_walk
from models.pools import POOLS

#: Tenants whose queues are read, in each pool; and jobs in flight.
MOST_QUEUES = 500
MOST_IN_FLIGHT = 10_000
#: Tenants that are shown as active.
MOST_ACTIVE = 100
#: Tenants whose usage of today is read although they have no work.
MOST_ASKED = 1_000
#: Restrictions on tenants, newest first.
MOST_VERDICTS = 1_000

QUEUED_TENANTS = lane_walk(pools="unnest(%(pools)s::text[])", keys="tenant_id", most=MOST_QUEUES)
READ_WORKING = f"""{QUEUED_TENANTS}, flight AS (
        SELECT pool, tenant_id, count(*)::int AS jobs
        FROM (SELECT pool, tenant_id FROM jobs
              WHERE status IN ('dispatched', 'running') AND pool = ANY (%(pools)s::text[])
              LIMIT {MOST_IN_FLIGHT}) AS in_flight
        GROUP BY pool, tenant_id
    )
    SELECT work.pool, tenant.id AS tenant_id, tenant.tier, tenant.weight, tenant.share,
           work.waits, work.jobs AS in_flight
    FROM (SELECT pool, tenant_id, lane.place IS NOT NULL AS waits, coalesce(jobs, 0) AS jobs
          FROM lane FULL JOIN flight USING (pool, tenant_id)) AS work
    JOIN tenants AS tenant ON tenant.id = work.tenant_id
    ORDER BY 1, 2
"""

READ_USED = f"""
    WITH candidate AS (
        SELECT unnest(%(working)s::bigint[]) AS tenant_id
        UNION (SELECT id FROM tenants ORDER BY id LIMIT {MOST_ASKED})
        UNION (SELECT tenant_id FROM shares WHERE counted_day = current_date AND tenant_id > 0
               GROUP BY tenant_id ORDER BY max(counted_seconds) DESC LIMIT {MOST_ACTIVE})
    )
    SELECT candidate.tenant_id, coalesce(used.seconds, 0)::float8 AS seconds,
           coalesce(used.jobs, 0)::bigint AS jobs,
           coalesce(sum(used.seconds) OVER (), 0)::float8 AS total_seconds
    FROM candidate, LATERAL (
        SELECT sum(slot_seconds) AS seconds, sum(jobs) AS jobs FROM usage
        WHERE tenant_id = candidate.tenant_id AND day = current_date
          AND (%(pool)s::text IS NULL OR pool = %(pool)s::text)) AS used
    WHERE used.jobs IS NOT NULL OR candidate.tenant_id = ANY (%(working)s::bigint[])
    ORDER BY 2 DESC, 3 DESC, 1 LIMIT {MOST_ACTIVE + 1}
"""

#: ``caps``: most jobs in flight, by pool. ``refused``: submissions today. ``owed``: slot-seconds
#: that the pools owe it; NULL without recent word from the leader.
READ_TENANTS = f"""
    SELECT tenant.id, tenant.name, tenant.tier, tenant.weight, counts.scheduled, counts.queued,
           counts.in_flight,
           (SELECT json_object_agg(capped.pool, capped.cap) FROM (
                SELECT known.pool, {cap_sql("known.pool")} AS cap
                FROM unnest(%(pools)s::text[]) AS known (pool)
                LEFT JOIN tenant_limits AS limits
                    ON limits.tenant_id = tenant.id AND limits.pool = known.pool) AS capped
            WHERE capped.cap IS NOT NULL
              AND (%(pool)s::text IS NULL OR capped.pool = %(pool)s::text)) AS caps,
           coalesce((SELECT sum(refused) FROM refusals
                     WHERE tenant_id = tenant.id AND day = current_date), 0)::bigint AS refused,
           (SELECT sum((overall.pass - share.pass) * share.weight)::float8
            FROM shares AS share
            JOIN shares AS overall ON overall.tenant_id = 0 AND overall.pool = share.pool
            WHERE share.tenant_id = tenant.id
              AND (%(pool)s::text IS NULL OR share.pool = %(pool)s::text)
              AND share.updated_at > now() - interval '{FRESH_SECONDS} seconds') AS owed
    FROM unnest(%(ids)s::bigint[]) AS shown (id)
    JOIN tenants AS tenant ON tenant.id = shown.id
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(scheduled), 0)::bigint AS scheduled,
               coalesce(sum(queued), 0)::bigint AS queued,
               coalesce(sum(dispatched + running), 0)::bigint AS in_flight
        FROM job_counts
        WHERE tenant_id = tenant.id
          AND (%(pool)s::text IS NULL OR pool = %(pool)s::text)) AS counts
"""

#: ``pool`` is empty if it is about none in particular.
READ_VERDICTS = f"""
    SELECT tenant_id, kind, name, pool, since FROM verdicts WHERE tenant_id <> 0
    ORDER BY kind = 'retry_budget', since DESC, kind, tenant_id, pool LIMIT {MOST_VERDICTS}
"""


def read_working(connection: Connection, pools: Collection[str]) -> list[Working]:
    """Tenants with jobs queued or in flight in these pools."""
    rows = connection.exec_driver_sql(READ_WORKING, {"pools": list(pools)})
    return [Working(**row._mapping) for row in rows]


def read_used(
    connection: Connection, working: Collection[int], pool: str | None
) -> Sequence[Row[Any]]:
    """Usage of today, most first; a row more than are shown if there are more."""
    asked = {"working": sorted(set(working)), "pool": pool}
    return connection.exec_driver_sql(READ_USED, asked).all()


def read_tenants(
    connection: Connection, ids: Collection[int], pool: str | None
) -> Sequence[Row[Any]]:
    """These tenants, in one pool or in all."""
    asked = {"ids": list(ids), "pool": pool, "pools": list(POOLS)}
    return connection.exec_driver_sql(READ_TENANTS, asked).all()


def read_restrictions(connection: Connection) -> dict[int, list[Row[Any]]]:
    """What the scheduler has imposed, by tenant."""
    found: dict[int, list[Row[Any]]] = {}
    for row in connection.exec_driver_sql(READ_VERDICTS):
        found.setdefault(row.tenant_id, []).append(row)
    return found
