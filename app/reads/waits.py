"""The facts about a job's wait. A few statements, each a few steps along indexes.

A job can run on the shared workers and on those of its tenant's slice. Free accounts have only
their slice while it has workers, else a small part of the shared slots for all of them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from app.policy.fairshare import Tier, entitlement_of, free_slots
from app.policy.forecast import STEADY_STARTS, QueueFlow
from app.policy.quota import (
    MARGIN,
    UNSEEN_TOKENS_IN,
    UNSEEN_TOKENS_OUT,
    QuotaBucket,
    by_kind,
    quota_of,
)
from app.policy.wait_reasons import Facts
from app.reads.rivals import read_rivals
from app.reads.run_times import ahead_of, debt_of, read_types
from app.tenants.caps import cap_sql
from models.jobs.held_back import HELD_DEPENDENCIES, THROTTLED
from models.jobs.lane_walk import lane_walk
from models.leadership import BROKER_SECONDS
from models.presence import SERVING, WORKER_LOST
from models.store.roles import every_tenant, scoped_tenant
from tasks.retry.circuit import OPEN_SECONDS
from tasks.retry.guards import THROTTLED_IN_FLIGHT

#: Jobs ahead are counted no further than this.
MOST_AHEAD = 10_000
#: An older rate of starts says nothing; the leader writes it every second.
FRESH_SECONDS = 10

#: Of the last jobs of the tenant that ended: those that started a moment ago, and those whose run
#: time tells something.
LATELY = "started_at > now() - interval '1 minute'"
KNOWN_RUN = "started_at > now() - interval '1 hour' AND finished_at > started_at"

FIND = "SELECT id FROM jobs WHERE id = %(id)s"
READ_FACTS = f"""
    SELECT job.tenant_id, job.status::text, job.pool, job.dependency, job.priority, job.type,
           now() AS now, {WORKER_LOST} AS worker_lost,
           job.cancel_requested_at IS NOT NULL AS cancelled,
           EXISTS (SELECT FROM leaders WHERE role = 'scheduler' AND expires_at > now()
                   AND broker_seen_at < now() - interval '{BROKER_SECONDS} seconds') AS broker_away,
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
           coalesce(tenant.suspended_at IS NOT NULL, false) AS suspended,
           coalesce(own.dispatched, 0)::int AS under_way,
           coalesce(own.dispatched + own.running, 0)::int AS in_flight,
           coalesce(own.queued, 0)::int AS queued,
           coalesce((SELECT sum(dispatched + running) FROM job_counts
                     WHERE tenant_id = 0 AND pool = job.pool), 0)::int
               - (SELECT count(*) FROM jobs AS other
                  WHERE other.status IN ('dispatched', 'running') AND other.slice <> ''
                    AND other.pool = job.pool)::int AS shared_in_flight,
           (SELECT count(*) FROM jobs AS other
            WHERE other.status IN ('dispatched', 'running') AND other.slice <> ''
              AND other.pool = job.pool AND other.slice = slice.name)::int AS slice_in_flight,
           alive.shared, alive.sliced,
           coalesce(tenant.tier, 'standard') AS tier, tenant.weight AS own_weight,
           coalesce(tenant.share, 1) AS own_share,
           share.started_per_second, ended.starts, ended.starts_seconds, ended.types, ended.runs,
           (SELECT mean_seconds FROM job_types WHERE type = job.type) AS usual_seconds,
           pool_share.weight AS total_weight, share.weight AS share_weight,
           share.pass - pool_share.pass AS ahead_of_others
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
        SELECT count(*) FILTER (WHERE {LATELY})::int AS starts,
               coalesce(extract(epoch FROM now() - min(started_at) FILTER (WHERE {LATELY})),
                        0)::float8 AS starts_seconds,
               array_agg(type) FILTER (WHERE {KNOWN_RUN}) AS types,
               array_agg(extract(epoch FROM finished_at - started_at)::float8)
                   FILTER (WHERE {KNOWN_RUN}) AS runs
        FROM (SELECT ended.pool, ended.type, ended.started_at, ended.finished_at FROM jobs AS ended
              WHERE ended.tenant_id = job.tenant_id AND ended.ended_xid IS NOT NULL
              ORDER BY ended.ended_xid DESC, ended.id DESC LIMIT {STEADY_STARTS}) AS recent
        WHERE pool = job.pool) AS ended
    CROSS JOIN LATERAL (
        SELECT sum(queued) AS queued, sum(dispatched) AS dispatched, sum(running) AS running
        FROM job_counts
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
#: What the tenant has in flight, by type, and how long what runs has run so far.
READ_OWN = """
    SELECT type, count(*)::int AS jobs,
           coalesce(array_agg(extract(epoch FROM now() - started_at)::float8)
                    FILTER (WHERE status = 'running' AND started_at < now()), '{}') AS running
    FROM jobs
    WHERE status IN ('dispatched', 'running') AND pool = %(pool)s AND tenant_id = %(tenant_id)s
    GROUP BY type
"""
#: Where in its lane a job is that is too far back to be counted, by time between the first and the
#: last of its priority.
READ_PLACE = """
    SELECT extract(epoch FROM job.created_at - first.created_at)::float8
           / nullif(extract(epoch FROM last.created_at - first.created_at), 0)::float8 AS part
    FROM jobs AS job,
        LATERAL (SELECT created_at FROM jobs
                 WHERE status = 'queued' AND pool = job.pool AND tenant_id = job.tenant_id
                   AND dependency = job.dependency AND priority = job.priority
                 ORDER BY priority DESC, id LIMIT 1) AS first,
        LATERAL (SELECT created_at FROM jobs
                 WHERE status = 'queued' AND pool = job.pool AND tenant_id = job.tenant_id
                   AND dependency = job.dependency AND priority = job.priority
                 ORDER BY priority, id DESC LIMIT 1) AS last
    WHERE job.id = %(id)s
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
    SELECT type, count(*)::int AS jobs FROM (
        SELECT ahead.type FROM lane, LATERAL (
            (SELECT type FROM jobs
             WHERE status = 'queued' AND pool = %(pool)s AND tenant_id = %(tenant_id)s
               AND dependency = lane.dependency AND priority > %(priority)s
             ORDER BY priority DESC, id LIMIT {MOST_AHEAD + 1})
            UNION ALL
            (SELECT type FROM jobs
             WHERE status = 'queued' AND pool = %(pool)s AND tenant_id = %(tenant_id)s
               AND dependency = lane.dependency AND priority = %(priority)s
               AND id < %(id)s
             ORDER BY priority DESC, id LIMIT {MOST_AHEAD + 1})
        ) AS ahead
        WHERE lane.dependency = %(dependency)s
           OR lane.dependency NOT IN ({HELD_DEPENDENCIES})
        LIMIT {MOST_AHEAD + 1}
    ) AS counted GROUP BY type
"""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job's facts, its tenant and when they were read."""

    tenant_id: int
    now: datetime
    facts: Facts


def read_facts(connection: Connection, job_id: str) -> WaitingJob | None:
    """The facts about the job; None if there is none, or a tenant asks for another's.

    How long it waits depends on the jobs of others, which a tenant does not see.
    """
    if scoped_tenant() is not None and not connection.exec_driver_sql(FIND, {"id": job_id}).all():
        return None
    with every_tenant():
        return read_all_facts(connection, job_id)


def read_all_facts(connection: Connection, job_id: str) -> WaitingJob | None:
    """The same, whoever asks."""
    row = connection.exec_driver_sql(READ_FACTS, {"id": job_id}).first()
    if row is None:
        return None
    asked = {**row._mapping, "id": job_id}
    run = connection.exec_driver_sql
    ahead: dict[str, int] = {}
    if row.status == "queued":
        ahead = {each.type: each.jobs for each in run(COUNT_AHEAD, asked)}
    total = sum(ahead.values())
    cap = row.cap
    if row.throttled:
        cap = THROTTLED_IN_FLIGHT if cap is None else min(THROTTLED_IN_FLIGHT, cap)
    own = run(READ_OWN, asked).all() if row.in_flight else []
    types = read_types(connection, row, ahead, own)
    in_flight = sum(each.jobs for each in own)
    elapsed = sum(sum(each.running) for each in own) / max(1, in_flight)
    at_cap = cap is not None and row.in_flight >= cap
    jobs = ahead_of(row, types, ahead, own if at_cap else ())
    slots, idle, share, free_full = reach_of(connection, row)
    quota, costs = quota_of(row), costs_of(row)
    flow = QueueFlow(
        slots=slots,
        in_flight=slots - idle,
        jobs=jobs,
        share=share,
        under_way=row.under_way,
        started_per_second=row.started_per_second,
        starts=row.starts,
        starts_seconds=row.starts_seconds,
        cap=cap,
        own=row.in_flight,
        elapsed_seconds=elapsed,
        debt_seconds=debt_of(row, types, own, share),
    )
    facts = Facts(
        status=row.status,
        pool=row.pool,
        ahead=min(total, MOST_AHEAD),
        at_least=total > MOST_AHEAD,
        flow=flow,
        estimated_ahead=read_place(connection, row, job_id) if total > MOST_AHEAD else None,
        due_seconds=row.due_seconds,
        dependency=row.dependency,
        circuit=row.circuit,
        circuit_seconds=row.circuit_seconds,
        circuit_reason=row.circuit_reason,
        open_seconds=OPEN_SECONDS,
        quota=row.quota,
        closed_seconds=max(row.closed_seconds, quota.spent_seconds(costs)),
        calls_per_second=pace_of(quota, costs),
        suspended=row.suspended,
        throttled=row.throttled,
        worker_lost=row.worker_lost,
        cancelled=row.cancelled,
        broker_away=row.broker_away,
        free_full=free_full,
    )
    return WaitingJob(row.tenant_id, row.now, facts)


def read_place(connection: Connection, row: Row[Any], job_id: str) -> float:
    """About how many jobs of the tenant are ahead, of all that it has queued."""
    found = connection.exec_driver_sql(READ_PLACE, {"id": job_id}).first()
    part = 1.0 if found is None or found.part is None else min(1.0, max(0.0, found.part))
    return float(max(MOST_AHEAD, part * row.queued))


def reach_of(connection: Connection, row: Row[Any]) -> tuple[int, int, float, bool]:
    """The slots that the tenant's jobs can get, how many of them are idle, and its share of them.

    Last, whether it is a free account and those have all that they may.
    """
    idle = max(0, row.shared - row.shared_in_flight)
    sliced_idle = max(0, row.sliced - row.slice_in_flight)
    rivals = read_rivals(connection, row.pool, row.tenant_id)
    if row.tier != Tier.FREE:
        own = entitlement_of(Tier(row.tier), row.own_weight, row.own_share)
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


def costs_of(row: Row[Any]) -> dict[str, float]:
    """What a call to the dependency uses of its quota, by kind."""
    if row.calls:
        return by_kind(row.tokens_in / row.calls, row.tokens_out / row.calls)
    return by_kind(UNSEEN_TOKENS_IN, UNSEEN_TOKENS_OUT)


def pace_of(quota: QuotaBucket, costs: Mapping[str, float]) -> float | None:
    """Calls per second that the quota of the dependency allows; None if there is no limit."""
    paces = [
        MARGIN * limit / 60.0 / cost
        for kind, limit in quota.limits().items()
        if (cost := costs.get(kind, 1.0)) > 0
    ]
    return min(paces, default=None)
