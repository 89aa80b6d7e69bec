"""Admit: a group of submissions becomes rows, durable when the statement returns.

Ids are made by the caller, so writing a group again after a lost answer changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from app.admission.submission import Submission
from models.pools import lease_interval_sql
from models.session import connection

#: A permission of the scheduler older than this is none.
PERMISSION_SECONDS = 60

ADMIT = f"""
    WITH item AS (
        SELECT * FROM unnest(
            %(ids)s::uuid[], %(tenants)s::bigint[], %(types)s::text[], %(pools)s::text[],
            %(payloads)s::text[], %(priorities)s::int[], %(execute_at)s::timestamptz[],
            %(not_after)s::timestamptz[], %(traceparents)s::text[], %(candidates)s::text[],
            %(roles)s::text[]
        ) AS item (id, tenant_id, type, pool, payload, priority, execute_at, not_after,
                   traceparent, candidate, role)
    ), lane AS (
        UPDATE express_lanes AS lane SET credit = lane.credit - wanted.jobs
        FROM (
            SELECT pool, count(*)::int AS jobs FROM item
            WHERE execute_at IS NULL OR execute_at <= now() GROUP BY pool
        ) AS wanted
        WHERE %(express)s AND lane.pool = wanted.pool AND lane.credit >= wanted.jobs
          AND lane.granted_at > now() - interval '{PERMISSION_SECONDS} seconds'
        RETURNING lane.pool
    ), born AS (
        SELECT item.*,
               CASE WHEN item.execute_at > now() THEN 'scheduled'::job_status
                    WHEN lane.pool IS NOT NULL THEN 'dispatched'::job_status
                    ELSE 'queued'::job_status END AS status
        FROM item LEFT JOIN lane ON lane.pool = item.pool
    ), job AS (
        INSERT INTO jobs (id, tenant_id, type, pool, payload, priority, execute_at, not_after,
                          traceparent, status, lease, dispatched_at, lease_expires_at)
        SELECT id, tenant_id, type, pool, payload::json, priority, execute_at, not_after,
               traceparent, status, (status = 'dispatched')::int,
               CASE status WHEN 'dispatched' THEN now() END,
               CASE status WHEN 'dispatched' THEN now() + {lease_interval_sql("pool")} END
        FROM born
        ON CONFLICT (id) DO NOTHING
        RETURNING id, status
    ), application AS (
        INSERT INTO applications (id, tenant_id, candidate, role)
        SELECT id, tenant_id, candidate, role FROM item WHERE candidate IS NOT NULL
        ON CONFLICT (id) DO NOTHING
    )
    SELECT id::text FROM job WHERE status = 'dispatched'
"""


def admit_group(engine: Engine, group: Sequence[Submission], express: bool) -> list[bool]:
    """Insert the group; for each submission, whether it was born dispatched."""
    with connection(engine) as taken:
        rows = taken.exec_driver_sql(
            ADMIT,
            {
                "ids": [item.id for item in group],
                "tenants": [item.tenant_id for item in group],
                "types": [item.type for item in group],
                "pools": [item.pool for item in group],
                "payloads": [item.payload for item in group],
                "priorities": [item.priority for item in group],
                "execute_at": [item.execute_at for item in group],
                "not_after": [item.not_after for item in group],
                "traceparents": [item.traceparent for item in group],
                "candidates": [item.candidate for item in group],
                "roles": [item.role for item in group],
                "express": express,
            },
        ).all()
    dispatched = {row[0] for row in rows}
    return [item.id in dispatched for item in group]
