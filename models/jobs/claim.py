"""Claim: dispatched → running (or expired) under the lease number of its message.

Called by a worker for the messages it received. Dying before the commit leaves the message, which
comes back, or the row, which is reaped; dying after it leaves a running row whose worker is lost:
it is reaped within seconds and counts a crash, unless the claim still waited for a slot.

A message whose number or state does not match finds no row and runs nothing: it was
redelivered, reaped, cancelled or forged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Engine

from models.jobs.states import VIOLATION_CLASSES
from models.pools import lease_interval_sql
from models.store.arrays import plain_array
from models.store.prepared import PreparedStatement
from models.store.session import connect

#: Attempts of a row of ``jobs AS job`` that broke a time or memory limit, since its last replay.
#: Looked up only if it had any attempt.
VIOLATIONS = f"""CASE WHEN job.attempt = 0 THEN 0 ELSE (
    SELECT count(*) FROM attempts AS run
    WHERE run.job_id = job.id AND run.error_class IN {tuple(map(str, VIOLATION_CLASSES))}
      AND run.lease > coalesce((SELECT max(lease) FROM attempts AS died
                                WHERE died.job_id = job.id AND died.status = 'dead'), 0)
)::int END"""
#: A claim whose answer was lost may be asked for again: the row is then already ours.
#: The status is compared as text, so that only the primary key fits: the index of what is in
#: flight looks shorter to the planner, but it is full of entries that wait for vacuum.
CLAIM = f"""
    UPDATE jobs AS job
    SET status = CASE WHEN job.not_after < now() THEN 'expired'::job_status
                      ELSE 'running'::job_status END,
        finished_at = CASE WHEN job.not_after < now() THEN now() END,
        started_at = CASE WHEN job.not_after < now() THEN job.started_at ELSE now() END,
        worker = CASE WHEN job.not_after < now() THEN job.worker ELSE %(worker)s::text END,
        lease_expires_at = CASE WHEN job.not_after < now() THEN NULL
                                ELSE now() + {lease_interval_sql("job.pool")} END,
        waiting_lease = CASE WHEN ref.waits OR job.crashes > 0 THEN job.lease END
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[], %(again)s::bool[], %(waits)s::bool[])
        AS ref (id, lease, again, waits)
    WHERE job.id = ref.id AND job.lease = ref.lease
      AND (job.status::text = 'dispatched'
           OR ref.again AND job.status::text = 'running' AND job.worker = %(worker)s)
    RETURNING job.id::text AS id, job.lease, job.tenant_id, job.type, job.pool, job.attempt,
              job.deferrals, job.crashes, job.replays, job.traceparent, job.created_at,
              job.payload, job.payload_blob, job.dependency, job.lost_claims,
              {VIOLATIONS} AS violations,
              CASE WHEN job.crashes = 0 AND job.replays = 0
                   THEN extract(epoch FROM now() - greatest(job.created_at, job.execute_at))::float8
              END AS wait_seconds, job.status = 'running' AS running
"""
PREPARED = PreparedStatement("claim", CLAIM)


#: The rows of a statement's references, for ``UPDATE jobs AS job``; takes ``ref_arrays``.
OF_REFS = """FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
    WHERE job.id = ref.id AND job.lease = ref.lease"""
#: The same, if the run is still this worker's. The number alone does not say so: after a failover
#: that lost commits, another worker may have been given it again.
OF_WORKER = f"{OF_REFS} AND job.status::text = 'running' AND job.worker = %(worker)s::text"


class JobRef(NamedTuple):
    """All that a message carries."""

    id: str
    lease: int


def ref_arrays(refs: Iterable[JobRef]) -> dict[str, str]:
    """References as parameters: two arrays."""
    refs = list(refs)
    return {
        "ids": plain_array([ref.id for ref in refs]),
        "leases": plain_array([ref.lease for ref in refs]),
    }


class Claim(NamedTuple):
    """The right to run a job and to write its end, for as long as the lease holds."""

    ref: JobRef
    tenant_id: int
    type: str
    pool: str
    attempt: int
    deferrals: int
    crashes: int
    replays: int
    traceparent: str | None
    created_at: datetime
    payload: Any
    #: Where the payload is if it is large.
    payload_blob: str | None
    #: Service its type depended on when it was admitted; empty if there is none.
    dependency: str = ""
    #: Since it was due; None after a crash or a replay: when it came back is not recorded.
    wait_seconds: float | None = None
    #: Claims that were lost with their worker before a run was known to have begun.
    lost_claims: int = 0
    #: Attempts that broke a time or memory limit.
    violations: int = 0


def claim_group(
    engine: Engine,
    worker: str,
    messages: Sequence[tuple[JobRef, ...]],
    unanswered: AbstractSet[JobRef] = frozenset(),
    waiting: AbstractSet[JobRef] = frozenset(),
) -> list[tuple[Claim, ...]]:
    """Claim the references of many messages in one statement; each gets its own claims.

    ``unanswered`` names those that this very process asked for before without an answer,
    ``waiting`` those for which it has no slot yet.
    """
    # In one order: a message that comes twice is claimed by two workers at a time, and rows
    # locked the other way round would make each wait for the other.
    refs = sorted(ref for message in messages for ref in message)
    with connect(engine) as connection:
        found = PREPARED.execute(
            connection,
            {
                **ref_arrays(refs),
                "worker": worker,
                "again": plain_array([ref in unanswered for ref in refs]),
                "waits": plain_array([ref in waiting for ref in refs]),
            },
        )
        # Ordered by name once for the whole group: reading fifteen attributes of every row
        # takes ten times as long.
        rows = found.columns("running", "id", "lease", *Claim._fields[1:]).all()
    claimed = {}
    for running, job_id, lease, *values in rows:
        if running:
            ref = JobRef(job_id, lease)
            claimed[ref] = Claim(ref, *values)
    # A message delivered twice into one group gets its job once.
    return [tuple(claimed.pop(ref) for ref in message if ref in claimed) for message in messages]
