"""What the tables know of tenants and their work, for the page that shows all of them.

Cheap with ten thousand tenants: lines are walked by one step a tenant, what is in flight is as
much as there are slots, and only tenants that are shown are looked up. Use is looked up for
those with work, for the heaviest of the day as the scheduler counts them, and for the first
thousand tenants: one that is none of these and used a little is found by its name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.console.tenants.shares import Working
from app.reads.waits import FRESH_SECONDS
from models.jobs.lane_walk import lane_walk

#: Tenants whose lines are looked at, in each pool; and jobs in flight.
MOST_LINES = 500
MOST_IN_FLIGHT = 10_000
#: Tenants that are shown as active.
MOST_ACTIVE = 100
#: Tenants whose use of today is looked up although nothing else speaks for them.
MOST_ASKED = 1_000
#: What is held against tenants, newest first.
MOST_VERDICTS = 1_000

QUEUED_TENANTS = lane_walk(pools="unnest(%(pools)s::text[])", keys="tenant_id", most=MOST_LINES)
READ_WORKING = f"""{QUEUED_TENANTS}, flight AS (
        SELECT pool, tenant_id, count(*)::int AS jobs
        FROM (SELECT pool, tenant_id FROM jobs
              WHERE status IN ('dispatched', 'running') AND pool = ANY (%(pools)s::text[])
              LIMIT {MOST_IN_FLIGHT}) AS flying
        GROUP BY pool, tenant_id
    )
    SELECT work.pool, tenant.id AS tenant_id, tenant.tier, tenant.weight, work.waits,
           work.jobs AS in_flight
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

READ_TENANTS = f"""
    SELECT tenant.id, tenant.name, tenant.tier, tenant.weight, counts.scheduled, counts.queued,
           counts.in_flight,
           (SELECT json_object_agg(pool, in_flight) FROM tenant_limits
            WHERE tenant_id = tenant.id AND in_flight IS NOT NULL
              AND (%(pool)s::text IS NULL OR pool = %(pool)s::text)) AS caps,
           coalesce((SELECT sum(refused) FROM refusals
                     WHERE tenant_id = tenant.id AND day = current_date), 0)::bigint AS refused,
           (SELECT sum((everybody.pass - share.pass) * share.weight)::float8
            FROM shares AS share
            JOIN shares AS everybody ON everybody.tenant_id = 0 AND everybody.pool = share.pool
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

READ_VERDICTS = f"""
    SELECT tenant_id, kind, pool, since FROM verdicts WHERE tenant_id <> 0
    ORDER BY since DESC, kind, tenant_id, pool LIMIT {MOST_VERDICTS}
"""


@dataclass(frozen=True, slots=True)
class Used:
    """What a tenant used today."""

    seconds: float
    jobs: int


@dataclass(frozen=True, slots=True)
class UsedToday:
    """Who used how much, most first."""

    by_tenant: dict[int, Used]
    #: Of all that were looked at.
    total_seconds: float
    #: Whether there are more than are shown.
    more: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """A tenant as the tables have it, in one pool or in all."""

    id: int
    name: str
    tier: str
    weight: float | None
    scheduled: int
    queued: int
    in_flight: int
    #: Jobs in flight at most, by pool.
    caps: dict[str, int] | None
    #: Submissions refused today.
    refused: int
    #: Slot-seconds that it is behind where the pool is; None if the leader said nothing lately.
    owed: float | None


@dataclass(frozen=True, slots=True)
class Restriction:
    """Something that the scheduler holds against a tenant."""

    kind: str
    #: Empty if it is about no pool in particular.
    pool: str
    since: datetime


def read_working(connection: Connection, pools: Collection[str]) -> list[Working]:
    """Those that have jobs in line or in flight in these pools."""
    rows = connection.exec_driver_sql(READ_WORKING, {"pools": list(pools)})
    return [Working(**row._mapping) for row in rows]


def read_used(connection: Connection, working: Collection[int], pool: str | None) -> UsedToday:
    """Use of today, of those with work and of whoever used something."""
    asked = {"working": sorted(set(working)), "pool": pool}
    rows = connection.exec_driver_sql(READ_USED, asked).all()
    return UsedToday(
        {row.tenant_id: Used(row.seconds, row.jobs) for row in rows[:MOST_ACTIVE]},
        rows[0].total_seconds if rows else 0.0,
        len(rows) > MOST_ACTIVE,
    )


def read_seen(connection: Connection, ids: Collection[int], pool: str | None) -> Sequence[Seen]:
    """These tenants."""
    rows = connection.exec_driver_sql(READ_TENANTS, {"ids": list(ids), "pool": pool})
    return [Seen(**row._mapping) for row in rows]


def read_held(connection: Connection) -> dict[int, list[Restriction]]:
    """What is held against tenants, by their ids."""
    held: dict[int, list[Restriction]] = {}
    for tenant_id, kind, pool, since in connection.exec_driver_sql(READ_VERDICTS):
        held.setdefault(tenant_id, []).append(Restriction(kind, pool, since))
    return held
