"""Mark: queued rows become dispatched under a new lease number; release takes it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Engine

from app.scheduler.leader import STILL_LEADER
from models.pools import lease_interval_sql
from models.session import connection

#: First in, first out within a pool, higher priority first. What is too late expires here.
MARK = f"""
    WITH picked AS (
        SELECT id FROM jobs
        WHERE status = 'queued' AND pool = %(pool)s AND {STILL_LEADER}
        ORDER BY priority DESC, id
        LIMIT %(room)s
        FOR UPDATE SKIP LOCKED
    )
    UPDATE jobs AS job
    SET status = CASE WHEN job.not_after < now() THEN 'expired'::job_status
                      ELSE 'dispatched'::job_status END,
        finished_at = CASE WHEN job.not_after < now() THEN now() END,
        lease = job.lease + 1,
        dispatched_at = now(),
        lease_expires_at = now() + {lease_interval_sql("job.pool")}
    FROM picked
    WHERE job.id = picked.id
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


def mark(engine: Engine, pool: str, room: int, epoch: int) -> list[Dispatch]:
    """Mark the next jobs of a pool, at most ``room``; higher priority first, then oldest."""
    with connection(engine) as taken:
        rows = taken.exec_driver_sql(MARK, {"pool": pool, "room": room, "epoch": epoch}).all()
    rows = sorted(rows, key=lambda row: (-row[5], row[0]))
    return [Dispatch(*row[:4]) for row in rows if row[4]]


def release(engine: Engine, dispatches: Sequence[Dispatch]) -> None:
    """Put jobs back whose message could not be sent; a late message will not match."""
    with connection(engine) as taken:
        taken.exec_driver_sql(
            RELEASE,
            {
                "ids": [dispatch.id for dispatch in dispatches],
                "leases": [dispatch.lease for dispatch in dispatches],
            },
        )
