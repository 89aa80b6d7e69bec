"""Heartbeat: running → running, with a later end of the lease, or with progress.

Called by a worker every few seconds for all runs it holds, and by its watchdog while the worker
itself is blocked. Dying before the commit lets the leases run out; dying after it changes nothing
else. A lease that is not among the answers was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Engine

from models.jobs.claim import JobRef
from models.pools import lease_interval_sql
from models.store.session import connect

#: Status as text: see CLAIM.
BEAT = f"""
    UPDATE jobs AS job
    SET lease_expires_at = now() + {lease_interval_sql("job.pool")}
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS held (id, lease)
    WHERE job.id = held.id AND job.lease = held.lease AND job.status::text = 'running'
    RETURNING job.id::text AS id, job.lease
"""
REPORT = """
    UPDATE jobs AS job SET progress = report.progress::json
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[], %(progress)s::text[])
        AS report (id, lease, progress)
    WHERE job.id = report.id AND job.lease = report.lease AND job.status::text = 'running'
"""
#: An index of nothing but running jobs that somebody wants to stop: empty, as a rule.
READ_CANCELLED = """
    SELECT id::text AS id, lease FROM jobs
    WHERE worker = %(worker)s AND status = 'running' AND cancel_requested_at IS NOT NULL
"""


def beat(engine: Engine, held: Collection[JobRef]) -> set[JobRef]:
    """Renew the leases in ``held``; those that are still ours."""
    if not held:
        return set()
    with connect(engine) as connection:
        rows = connection.exec_driver_sql(
            BEAT, {"ids": [ref.id for ref in held], "leases": [ref.lease for ref in held]}
        ).all()
    return {JobRef(row.id, row.lease) for row in rows}


def report(engine: Engine, progress: Sequence[tuple[JobRef, str]]) -> None:
    """Write how far runs are."""
    if not progress:
        return
    with connect(engine) as connection:
        connection.exec_driver_sql(
            REPORT,
            {
                "ids": [ref.id for ref, _ in progress],
                "leases": [ref.lease for ref, _ in progress],
                "progress": [text for _, text in progress],
            },
        )


def read_cancelled(engine: Engine, worker: str) -> set[JobRef]:
    """Runs of ``worker`` that somebody wants to stop."""
    with connect(engine) as connection:
        rows = connection.exec_driver_sql(READ_CANCELLED, {"worker": worker}).all()
    return {JobRef(row.id, row.lease) for row in rows}
