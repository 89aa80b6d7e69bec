"""Mark: queued rows become dispatched under a new lease number; release takes it back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Engine

from app.scheduler.leader import STILL_LEADER
from models.pools import lease_interval_sql
from models.session import connection

#: Within a pool higher priority first, then first in, first out; what is too late expires.
#: The line has a lane for each dependency. A lane whose circuit is not closed is left out, or
#: gives as many probes as it may, however long it is: each lane is one walk along the index.
#: Only a tenant that is left out or singled out costs more, by what stands in front of others.
#: Status as text in the update: see CLAIM.
MARK = f"""
    WITH RECURSIVE lane AS (
        (SELECT dependency FROM jobs WHERE status = 'queued' AND pool = %(pool)s
         ORDER BY dependency LIMIT 1)
        UNION ALL
        SELECT (SELECT dependency FROM jobs
                WHERE status = 'queued' AND pool = %(pool)s AND dependency > lane.dependency
                ORDER BY dependency LIMIT 1)
        FROM lane WHERE lane.dependency IS NOT NULL
    ), open AS (
        SELECT lane.dependency, least(%(room)s, coalesce(held.room, %(room)s)) AS room
        FROM lane LEFT JOIN unnest(%(lanes)s::text[], %(rooms)s::int[])
            AS held (dependency, room) USING (dependency)
        WHERE lane.dependency IS NOT NULL AND {STILL_LEADER}
    ), candidate AS (
        SELECT job.id, job.priority FROM open, LATERAL (
            SELECT id, priority FROM jobs
            WHERE status = 'queued' AND pool = %(pool)s AND dependency = open.dependency
              AND tenant_id <> ALL (%(without)s::bigint[])
              AND (%(only)s::bigint IS NULL OR tenant_id = %(only)s::bigint)
            ORDER BY priority DESC, id
            LIMIT open.room
            FOR UPDATE SKIP LOCKED
        ) AS job
    ), picked AS (
        SELECT id FROM candidate ORDER BY priority DESC, id LIMIT %(room)s
    )
    UPDATE jobs AS job
    SET status = CASE WHEN job.not_after < now() THEN 'expired'::job_status
                      ELSE 'dispatched'::job_status END,
        finished_at = CASE WHEN job.not_after < now() THEN now() END,
        lease = job.lease + 1,
        dispatched_at = CASE WHEN job.not_after < now() THEN job.dispatched_at ELSE now() END,
        lease_expires_at = CASE WHEN job.not_after < now() THEN NULL
                                ELSE now() + {lease_interval_sql("job.pool")} END
    FROM picked
    WHERE job.id = picked.id AND job.status::text = 'queued'
    RETURNING job.id::text, job.lease, job.type, job.pool, job.status = 'dispatched',
              job.priority
"""

#: A message that was never sent: back to its place in the line, nothing spent.
#: Status as text: see CLAIM.
RELEASE = """
    UPDATE jobs AS job
    SET status = 'queued', lease_expires_at = NULL
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
    WHERE job.id = ref.id AND job.lease = ref.lease AND job.status::text = 'dispatched'
"""


class Dispatch(NamedTuple):
    """A marked job on its way to the broker."""

    id: str
    lease: int
    type: str
    pool: str


def mark(
    engine: Engine,
    pool: str,
    room: int,
    epoch: int,
    lanes: Mapping[str, int] | None = None,
    without: Collection[int] = (),
    only: int | None = None,
) -> list[Dispatch]:
    """Mark the next jobs of a pool, at most ``room``; higher priority first, then oldest.

    ``lanes`` limits dependencies to so many jobs, 0 for an open circuit; ``without`` names
    tenants that get nothing now, ``only`` the one that gets all.
    """
    held = dict(lanes or {})
    with connection(engine) as taken:
        rows = taken.exec_driver_sql(
            MARK,
            {
                "pool": pool,
                "room": room,
                "epoch": epoch,
                "lanes": list(held),
                "rooms": list(held.values()),
                "without": list(without),
                "only": only,
            },
        ).all()
    rows = sorted(rows, key=lambda row: (-row[5], row[0]))
    return [Dispatch(*row[:4]) for row in rows if row[4]]


def release(engine: Engine, dispatches: Sequence[Dispatch]) -> None:
    """Put jobs back whose message could not be sent; a late message will not match."""
    # In the order of a claim: some of them may have been delivered all the same.
    ordered = sorted(dispatches)
    with connection(engine) as taken:
        taken.exec_driver_sql(
            RELEASE,
            {
                "ids": [dispatch.id for dispatch in ordered],
                "leases": [dispatch.lease for dispatch in ordered],
            },
        )
