"""Heartbeat: running → running, with a later end of the lease, or with progress.

Called by a worker every few seconds for all runs it holds, and by its watchdog while the worker
itself is blocked. Dying before the commit lets the leases run out; dying after it changes nothing
else. A lease that is not among the answers was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Engine

from models.jobs.claim import OF_REFS, JobRef, ref_arrays
from models.pools import lease_interval_sql
from models.store.session import execute, fetch

#: Status as text: see CLAIM.
BEAT = f"""
    UPDATE jobs AS job
    SET lease_expires_at = now() + {lease_interval_sql("job.pool")}
    {OF_REFS} AND job.status::text = 'running'
    RETURNING job.id::text AS id, job.lease
"""
REPORT = """
    UPDATE jobs AS job SET progress = report.progress::json
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[], %(progress)s::text[])
        AS report (id, lease, progress)
    WHERE job.id = report.id AND job.lease = report.lease AND job.status::text = 'running'
"""
#: By an index of the running jobs that are to stop, which is nearly always empty.
READ_CANCELLED = """
    SELECT id::text AS id, lease FROM jobs
    WHERE worker = %(worker)s AND status = 'running' AND cancel_requested_at IS NOT NULL
"""


def beat(engine: Engine, held: Collection[JobRef]) -> set[JobRef]:
    """Renew the leases of ``held``; those that are still ours."""
    if not held:
        return set()
    return {JobRef(row.id, row.lease) for row in fetch(engine, BEAT, ref_arrays(held))}


def report(engine: Engine, progress: Sequence[tuple[JobRef, str]]) -> None:
    """Write the progress of runs, JSON texts."""
    if not progress:
        return
    refs, texts = zip(*progress, strict=True)
    execute(engine, REPORT, {**ref_arrays(refs), "progress": list(texts)})


def read_cancelled(engine: Engine, worker: str) -> set[JobRef]:
    """Runs of ``worker`` that were asked to stop."""
    rows = fetch(engine, READ_CANCELLED, {"worker": worker})
    return {JobRef(row.id, row.lease) for row in rows}
