"""Cancel: scheduled, queued or dispatched → cancelled; a running job is stopped by its worker.

Called by ``DELETE /jobs/{id}`` and, for many jobs at once, by the console, whose cancellations are
in the audit log. One conditional statement: dying before its commit changes nothing, and after it
the request is in the row. Whatever else wants the row (promotion, dispatch, claim) waits for it and
then finds a state that it does not match, or was first and left a running job: then the request
stands in the row until the run ends. A cancelled job never starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from models.audit import Act, record, record_jobs, recording
from models.jobs.states import JobStatus
from models.store.arrays import plain_array
from models.store.session import fetch

#: Jobs of one call that cancels or replays many.
MOST_SEVERAL = 500

NOT_ENDED = "IN ('scheduled', 'queued', 'dispatched', 'running')"
UPDATE = """UPDATE jobs AS job
    SET status = CASE job.status WHEN 'running' THEN 'running'::job_status
                                 ELSE 'cancelled'::job_status END,
        finished_at = CASE job.status WHEN 'running' THEN NULL ELSE now() END,
        lease_expires_at = CASE job.status WHEN 'running' THEN job.lease_expires_at END,
        cancel_requested_at = coalesce(job.cancel_requested_at, now())"""
CANCEL = f"""
    {UPDATE}
    WHERE job.id = %(id)s::uuid AND job.tenant_id = %(tenant)s AND job.status {NOT_ENDED}
    RETURNING job.status::text AS status, job.cancel_requested_at
"""
READ_STATUS = """
    SELECT status::text AS status, cancel_requested_at FROM jobs
    WHERE id = %(id)s::uuid AND tenant_id = %(tenant)s
"""
#: Status as text from here on: see CLAIM in claim.py.
CANCEL_SEVERAL = f"""
    WITH chosen AS (
        SELECT id FROM jobs WHERE id = ANY (%(ids)s::uuid[]) AND status::text {NOT_ENDED}
        ORDER BY id
        FOR UPDATE SKIP LOCKED
    )
    {UPDATE}
    FROM chosen WHERE job.id = chosen.id AND job.status::text {NOT_ENDED}
    RETURNING job.id::text AS id, job.tenant_id, job.status::text AS status
"""
READ_LEFT = f"""
    SELECT id::text AS id, tenant_id FROM jobs
    WHERE id = ANY (%(ids)s::uuid[]) AND status::text {NOT_ENDED}
"""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Where the job is now."""

    status: JobStatus
    requested_at: datetime | None


def cancel(engine: Engine, tenant_id: int, job_id: str) -> Cancellation | None:
    """Cancel the tenant's job; None if there is none. An ended job is left as it is."""
    parameters = {"id": job_id, "tenant": tenant_id}
    with recording(engine) as connection:
        while True:
            row = connection.exec_driver_sql(CANCEL, parameters).first()
            if row is not None:
                record(connection, Act.JOB_CANCEL, job_id, tenant=tenant_id)
                return Cancellation(JobStatus(row.status), row.cancel_requested_at)
            row = connection.exec_driver_sql(READ_STATUS, parameters).first()
            if row is None:
                return None
            if JobStatus(row.status).terminal:
                return Cancellation(JobStatus(row.status), row.cancel_requested_at)
            # It was dead, and was replayed between the two statements: cancel that.


@dataclass(frozen=True, slots=True)
class Done:
    """What became of some jobs."""

    #: Cancelled, or replayed.
    changed: int = 0
    #: Running ones, which their workers stop.
    asked: int = 0
    #: Gone, ended, or brought back meanwhile.
    skipped: int = 0
    #: To be replayed once the limits of their tenants have room.
    later: int = 0


def cancel_several(engine: Engine, ids: Sequence[str]) -> Done:
    """Cancel those that have not ended.

    Rows that another transaction is changing are not waited for while others are locked, so that
    there is no deadlock; what is left is then cancelled one by one.
    """
    wanted = set(ids)
    with recording(engine) as connection:
        asked = {"ids": plain_array(sorted(wanted))}
        rows = connection.exec_driver_sql(CANCEL_SEVERAL, asked).all()
        record_jobs(connection, Act.JOB_CANCEL, rows)
    became = {row.id: row.status for row in rows}
    missed = sorted(wanted - became.keys())
    for row in fetch(engine, READ_LEFT, {"ids": plain_array(missed)}) if missed else ():
        cancelled = cancel(engine, row.tenant_id, row.id)
        # One that ended by itself meanwhile is left as it is.
        if cancelled is not None and cancelled.status in (JobStatus.CANCELLED, JobStatus.RUNNING):
            became[row.id] = cancelled.status.value
    changed = sum(status == JobStatus.CANCELLED for status in became.values())
    return Done(changed, len(became) - changed, len(wanted) - len(became))
