"""The facts about a job's wait. A few statements, each a few steps along indexes.

A job can run on the shared workers and on those of its tenant's slice. Free accounts have only
their slice while it has workers, else a small part of the shared slots for all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from app.policy.fairshare import Tier, default_seconds, entitlement_of, free_slots
from app.policy.forecast import STEADY_STARTS, QueueFlow
from app.policy.quota import MARGIN, UNSEEN_TOKENS_IN, UNSEEN_TOKENS_OUT, by_kind, quota_of
from app.policy.wait_reasons import Facts
from app.reads.rivals import read_rivals
from app.tenants.caps import cap_sql
from models.jobs.held_back import HELD_DEPENDENCIES, THROTTLED
from models.jobs.lane_walk import lane_walk
from models.presence import SERVING, WORKER_LOST
from tasks.retry.circuit import OPEN_SECONDS
from tasks.retry.guards import THROTTLED_IN_FLIGHT

#: Jobs ahead are counted no further than this.
MOST_AHEAD = 10_000
#: An older rate of starts says nothing; the leader writes it every second.
FRESH_SECONDS = 10

READ_FACTS = f"""
    SELECT job.tenant_id, job.status::text, job.pool, job.dependency, job.priority,
           now() AS now, {WORKER_LOST} AS worker_lost,
           extract(epoch FROM job.execute_at - now())::float8 AS due_seconds,
           coalesce(circuit.state, 'closed') AS circuit,
           coalesce(extract(epoch FROM now() - circuit.changed_at), 0)::float8
               AS circuit_seconds,
           coalesce(circuit.reason, '') AS circuit_reason,
           quota.dependency IS NOT NULL AS quota,
           coalesce(extract(epoch FROM quota.closed_until - now()), 0)::float8 AS closed_seconds,
           quota.requests_per_minute, quota.tokens_in_per_minute, quota.tokens_out_per_minute,
           quota.reading, extract(epoch FROM now() - quota.read_at)::float8 AS age_seconds,
           quota.calls, quota.tokens_in, quota.tokens_out,
           (job.tenant_id, job.pool) IN ({THROTTLED}) AS throttled,
           {cap_sql("job.pool")} AS cap,
           coalesce(own.dispatched, 0)::int AS under_way,
           coalesce(own.dispatched + own.running, 0)::int AS in_flight,
           coalesce((SELECT sum(dispatched + running) FROM job_counts
                     WHERE tenant_id = 0 AND pool = job.pool), 0)::int
               - (SELECT count(*) FROM jobs AS other
                  WHERE other.status IN ('dispatched', 'running') AND other.slice <> ''
                    AND other.pool = job.pool)::int AS shared_in_flight,
           (SELECT count(*) FROM jobs AS other
            WHERE other.status IN ('dispatched', 'running') AND other.slice <> ''
              AND other.pool = job.pool AND other.slice = slice.name)::int AS slice_in_flight,
           alive.shared, alive.sliced,
           (SELECT mean_seconds FROM job_types WHERE type = job.type) AS mean_seconds,
           coalesce(tenant.tier, 'standard') AS tier, tenant.weight AS own_weight,
           share.started_per_second, started.jobs AS starts, started.seconds AS starts_seconds,
           pool_share.weight AS total_weight
    FROM jobs AS job
    LEFT JOIN tenants AS tenant ON tenant.id = job.tenant_id
    LEFT JOIN tenant_limits AS limits
        ON limits.tenant_id = job.tenant_id AND limits.pool = job.pool
    LEFT JOIN circuits AS circuit ON circuit.dependency = job.dependency
    LEFT JOIN quotas AS quota ON quota.dependency = job.dependency
    LEFT JOIN shares AS share ON share.tenant_id = job.tenant_id AND share.pool = job.pool
        AND share.updated_at > now() - interval '{FRESH_SECONDS} seconds'
    LEFT JOIN shares AS pool_share ON pool_share.tenant_id = 0 AND pool_share.pool = job.pool
        AND pool_share.updated_at > now() - interval '{FRESH_SECONDS} seconds'
    CROSS JOIN LATERAL (
        SELECT count(*)::int AS jobs,
               coalesce(extract(epoch FROM now() - min(started_at)), 0)::float8 AS seconds
        FROM (SELECT ended.pool, ended.started_at FROM jobs AS ended
              WHERE ended.tenant_id = job.tenant_id AND ended.ended_xid IS NOT NULL
              ORDER BY ended.ended_xid DESC, ended.id DESC LIMIT {STEADY_STARTS}) AS ended
        WHERE pool = job.pool AND started_at > now() - interval '1 minute') AS started
    CROSS JOIN LATERAL (
        SELECT sum(dispatched) AS dispatched, sum(running) AS running FROM job_counts
        WHERE tenant_id = job.tenant_id AND pool = job.pool) AS own
    CROSS JOIN LATERAL (
        SELECT CASE WHEN tenant.tier = 'free' THEN 'free'
                    ELSE 'reserved.' || coalesce(tenant.name, '') END AS name) AS slice
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(slots) FILTER (WHERE job.pool = ANY (pools)), 0)::int AS shared,
               coalesce(sum(slots) FILTER (
                   WHERE job.pool || '.' || slice.name = ANY (pools)), 0)::int AS sliced
        FROM processes
        WHERE {SERVING}) AS alive
    WHERE job.id = %(id)s
"""
#: Mean duration of what the tenant has in flight, expected and so far.
READ_OWN = """
    SELECT avg(greatest(taking.seconds, ran.seconds)) AS mean_seconds,
           avg(ran.seconds) AS elapsed_seconds
    FROM jobs AS job LEFT JOIN job_types AS type ON type.type = job.type
    CROSS JOIN LATERAL (
        SELECT coalesce(type.mean_seconds, %(default)s)::float8 AS seconds) AS taking
    CROSS JOIN LATERAL (
        SELECT coalesce(extract(epoch FROM now() - job.started_at), 0)::float8 AS seconds) AS ran
    WHERE job.status IN ('dispatched', 'running') AND job.pool = %(pool)s
      AND job.tenant_id = %(tenant_id)s
"""
#: Jobs that free accounts have in flight in a slice, and how many accounts.
COUNT_FREE = """
    SELECT count(*), count(DISTINCT job.tenant_id)
    FROM jobs AS job JOIN tenants AS tenant ON tenant.id = job.tenant_id
    WHERE job.status IN ('dispatched', 'running') AND job.pool = %(pool)s AND job.slice = %(slice)s
      AND tenant.tier = 'free'
"""
#: Across the tenant's lanes, as they are dispatched; lanes that give nothing are not ahead.
#: Each lane is two stretches of the index: higher priorities, and the same with lower ids.
COUNT_AHEAD = f"""{lane_walk(where="tenant_id = %(tenant_id)s")}
    SELECT count(*) FROM (
        SELECT FROM lane, LATERAL (
            (SELECT FROM jobs
             WHERE status = 'queued' AND pool = %(pool)s AND tenant_id = %(tenant_id)s
               AND dependency = lane.dependency AND priority > %(priority)s
             ORDER BY priority DESC, id LIMIT {MOST_AHEAD + 1})
            UNION ALL
            (SELECT FROM jobs
             WHERE status = 'queued' AND pool = %(pool)s AND tenant_id = %(tenant_id)s
               AND dependency = lane.dependency AND priority = %(priority)s
               AND id < %(id)s
             ORDER BY priority DESC, id LIMIT {MOST_AHEAD + 1})
        ) AS ahead
        WHERE lane.dependency = %(dependency)s
           OR lane.dependency NOT IN ({HELD_DEPENDENCIES})
        LIMIT {MOST_AHEAD + 1}
    ) AS counted
"""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job's facts, its tenant and when they were read."""

    tenant_id: int
    now: datetime
    facts: Facts


def read_facts(connection: Connection, job_id: str) -> WaitingJob | None:
    """The facts about the job; None if there is none."""
    row = connection.exec_driver_sql(READ_FACTS, {"id": job_id}).first()
    if row is None:
        return None
    default = default_seconds(row.pool)
    asked = {**row._mapping, "id": job_id, "default": default}
    ahead = 0
    if row.status == "queued":
        ahead = connection.exec_driver_sql(COUNT_AHEAD, asked).scalar_one()
    cap = row.cap
    if row.throttled:
        cap = min(THROTTLED_IN_FLIGHT, cap or THROTTLED_IN_FLIGHT)
    slots, idle, share, free_full = reach_of(connection, row)
    mean_seconds, elapsed = row.mean_seconds or default, 0.0
    if cap is not None and row.in_flight:
        found = connection.exec_driver_sql(READ_OWN, asked).one()
        if found.mean_seconds is not None:  # else it has ended since
            mean_seconds, elapsed = found.mean_seconds, found.elapsed_seconds
    flow = QueueFlow(
        slots=slots,
        in_flight=slots - idle,
        mean_seconds=mean_seconds,
        share=share,
        under_way=row.under_way,
        started_per_second=row.started_per_second,
        starts=row.starts,
        starts_seconds=row.starts_seconds,
        cap=cap,
        own=row.in_flight,
        elapsed_seconds=elapsed,
    )
    facts = Facts(
        status=row.status,
        pool=row.pool,
        ahead=min(ahead, MOST_AHEAD),
        at_least=ahead > MOST_AHEAD,
        flow=flow,
        due_seconds=row.due_seconds,
        dependency=row.dependency,
        circuit=row.circuit,
        circuit_seconds=row.circuit_seconds,
        circuit_reason=row.circuit_reason,
        open_seconds=OPEN_SECONDS,
        quota=row.quota,
        closed_seconds=row.closed_seconds,
        calls_per_second=pace_of(row),
        throttled=row.throttled,
        worker_lost=row.worker_lost,
        free_full=free_full,
    )
    return WaitingJob(row.tenant_id, row.now, facts)


def reach_of(connection: Connection, row: Row[Any]) -> tuple[int, int, float, bool]:
    """The slots that the tenant's jobs can get, how many of them are idle, and its share of them.

    Last, whether it is a free account and those have all that they may.
    """
    idle = max(0, row.shared - row.shared_in_flight)
    sliced_idle = max(0, row.sliced - row.slice_in_flight)
    rivals = read_rivals(connection, row.pool, row.tenant_id)
    if row.tier != Tier.FREE:
        own = entitlement_of(Tier(row.tier), row.own_weight)
        share = rivals.share_of(own, row.total_weight)
        slots = row.shared + row.sliced
        if row.sliced:
            share = (row.shared * share + row.sliced) / slots
        return slots, idle + sliced_idle, share, False
    asked = {"pool": row.pool, "slice": "free" if row.sliced else ""}
    in_flight, accounts = connection.exec_driver_sql(COUNT_FREE, asked).one()
    slots = row.sliced or free_slots(row.shared)
    left = max(0, slots - in_flight)
    # They take turns: those with something in flight or queued, and this one.
    turns = max(accounts + (0 if row.in_flight else 1), rivals.free + 1)
    full = slots > 0 and left == 0
    return slots, left if row.sliced else min(left, idle), 1.0 / turns, full


def pace_of(row: Row[Any]) -> float | None:
    """Calls per second that the quota of the dependency allows; None if there is no limit."""
    tokens_in, tokens_out = UNSEEN_TOKENS_IN, UNSEEN_TOKENS_OUT
    if row.calls:
        tokens_in, tokens_out = row.tokens_in / row.calls, row.tokens_out / row.calls
    costs = by_kind(tokens_in, tokens_out)
    paces = [
        MARGIN * limit / 60.0 / cost
        for kind, limit in quota_of(row).limits().items()
        if (cost := costs.get(kind, 1.0)) > 0
    ]
    return min(paces, default=None)
