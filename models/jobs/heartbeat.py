"""Heartbeat: running → running, with a later end of the lease, a begun run or progress.

Called by a worker every few seconds for all runs it holds, and by its watchdog while the worker
itself is blocked. Dying before the commit lets the leases run out; dying after it changes nothing
else. A lease that is not among the answers was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Engine

from models.jobs.claim import OF_WORKER, JobRef, ref_arrays
from models.pools import lease_interval_sql
from models.store.session import execute, fetch

#: Status as text: see CLAIM.
BEAT = f"""
    UPDATE jobs AS job
    SET lease_expires_at = now() + {lease_interval_sql("job.pool")}
    {OF_WORKER}
    RETURNING job.id::text AS id, job.lease
"""
#: Runs of claims that had to wait. Skips locked rows: the next heartbeat comes soon.
NOTE_BEGUN = """
    WITH noted AS (
        SELECT job.id, begun.ran_seconds
        FROM unnest(%(ids)s::uuid[], %(leases)s::int[], %(ran)s::float8[])
            AS begun (id, lease, ran_seconds)
        JOIN jobs AS job ON job.id = begun.id AND job.lease = begun.lease
        WHERE job.status::text = 'running' AND job.worker = %(worker)s
        FOR NO KEY UPDATE OF job SKIP LOCKED
    )
    UPDATE jobs AS job
    SET waiting_lease = NULL, started_at = now() - make_interval(secs => noted.ran_seconds)
    FROM noted WHERE job.id = noted.id
    RETURNING job.id::text AS id, job.lease
"""
REPORT = """
    UPDATE jobs AS job SET progress = report.progress::json
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[], %(progress)s::text[])
        AS report (id, lease, progress)
    WHERE job.id = report.id AND job.lease = report.lease AND job.status::text = 'running'
      AND job.worker = %(worker)s
"""
#: By an index of the running jobs that are to stop, which is nearly always empty.
READ_CANCELLED = """
    SELECT id::text AS id, lease FROM jobs
    WHERE worker = %(worker)s AND status = 'running' AND cancel_requested_at IS NOT NULL
"""


def beat(engine: Engine, worker: str, held: Collection[JobRef]) -> set[JobRef]:
    """Renew the leases of ``held``; those that are still ours."""
    if not held:
        return set()
    rows = fetch(engine, BEAT, {**ref_arrays(held), "worker": worker})
    return {JobRef(row.id, row.lease) for row in rows}


def note_begun(engine: Engine, worker: str, begun: Sequence[tuple[JobRef, float]]) -> set[JobRef]:
    """Note that the runs of waiting claims have begun, so many seconds ago; those noted."""
    if not begun:
        return set()
    refs, ran = zip(*begun, strict=True)
    parameters = {**ref_arrays(refs), "worker": worker, "ran": list(ran)}
    return {JobRef(row.id, row.lease) for row in fetch(engine, NOTE_BEGUN, parameters)}


def report(engine: Engine, worker: str, progress: Sequence[tuple[JobRef, str]]) -> None:
    """Write the progress of runs, JSON texts."""
    if not progress:
        return
    refs, texts = zip(*progress, strict=True)
    execute(engine, REPORT, {**ref_arrays(refs), "worker": worker, "progress": list(texts)})


def read_cancelled(engine: Engine, worker: str) -> set[JobRef]:
    """Runs of ``worker`` that were asked to stop."""
    rows = fetch(engine, READ_CANCELLED, {"worker": worker})
    return {JobRef(row.id, row.lease) for row in rows}
