"""Cancel: a job that waits ends at once; one that runs is asked to stop.

One conditional statement. Whatever else wants the row (promotion, dispatch, claim) waits for
it and then finds a state that it does not match, or was first and left a running job: then
the request stands in the row until the run ends. A cancelled job never starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from models.session import connection
from models.states import JobStatus

CANCEL = """
    UPDATE jobs AS job
    SET status = CASE job.status WHEN 'running' THEN 'running'::job_status
                                 ELSE 'cancelled'::job_status END,
        finished_at = CASE job.status WHEN 'running' THEN NULL ELSE now() END,
        lease_expires_at = CASE job.status WHEN 'running' THEN job.lease_expires_at END,
        cancel_requested_at = coalesce(job.cancel_requested_at, now())
    WHERE job.id = %(id)s::uuid AND job.tenant_id = %(tenant)s
      AND job.status IN ('scheduled', 'queued', 'dispatched', 'running')
    RETURNING job.status::text, job.cancel_requested_at
"""
READ_STATUS = """
    SELECT status::text, cancel_requested_at FROM jobs
    WHERE id = %(id)s::uuid AND tenant_id = %(tenant)s
"""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Where the job is now."""

    status: JobStatus
    requested_at: datetime | None


def cancel(engine: Engine, tenant_id: int, job_id: str) -> Cancellation | None:
    """Cancel the tenant's job; None if there is none. An ended job is left as it is."""
    parameters = {"id": job_id, "tenant": tenant_id}
    with connection(engine) as taken:
        while True:
            row = taken.exec_driver_sql(CANCEL, parameters).first()
            if row is not None:
                return Cancellation(JobStatus(row[0]), row[1])
            row = taken.exec_driver_sql(READ_STATUS, parameters).first()
            if row is None:
                return None
            if JobStatus(row[0]).terminal:
                return Cancellation(JobStatus(row[0]), row[1])
            # It was dead, and was replayed between the two statements: cancel that.
