"""Cancel and replay for operators: many jobs by their ids, whosever they are.

The same moves as for one job of one tenant, each a conditional statement. Rows that somebody
else is changing at this moment are not waited for while others are held, so that nobody waits
in a circle; what is left of a cancellation is then done one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from app.jobs.cancel import cancel
from app.jobs.replay import FRESH
from models.arrays import plain_array
from models.session import connection
from models.states import JobStatus

#: Jobs of one call.
MOST = 500

CANCEL_SEVERAL = """
    WITH chosen AS (
        SELECT id FROM jobs
        WHERE id = ANY (%(ids)s::uuid[])
          AND status::text IN ('scheduled', 'queued', 'dispatched', 'running')
        ORDER BY id
        FOR UPDATE SKIP LOCKED
    )
    UPDATE jobs AS job
    SET status = CASE job.status WHEN 'running' THEN 'running'::job_status
                                 ELSE 'cancelled'::job_status END,
        finished_at = CASE job.status WHEN 'running' THEN NULL ELSE now() END,
        lease_expires_at = CASE job.status WHEN 'running' THEN job.lease_expires_at END,
        cancel_requested_at = coalesce(job.cancel_requested_at, now())
    FROM chosen
    WHERE job.id = chosen.id
      AND job.status::text IN ('scheduled', 'queued', 'dispatched', 'running')
    RETURNING job.id::text, job.status::text
"""
#: Those that have not ended; the status as text, so that only the primary key fits.
READ_LEFT = """
    SELECT id::text, tenant_id FROM jobs
    WHERE id = ANY (%(ids)s::uuid[])
      AND status::text IN ('scheduled', 'queued', 'dispatched', 'running')
"""
REPLAY_SEVERAL = f"""
    WITH chosen AS (
        SELECT id, error_class, error_message FROM jobs
        WHERE id = ANY (%(ids)s::uuid[]) AND status::text = 'dead'
        ORDER BY id
        FOR UPDATE SKIP LOCKED
    ){FRESH}
"""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of some jobs."""

    #: Cancelled, or replayed.
    changed: int = 0
    #: Running ones that were asked to stop.
    asked: int = 0
    #: Gone, ended, or brought back by somebody else.
    skipped: int = 0


def cancel_several(engine: Engine, ids: Sequence[str]) -> Done:
    """Cancel those that have not ended."""
    wanted = set(ids)
    parameters = {"ids": plain_array(sorted(wanted))}
    with connection(engine) as taken:
        became = {row[0]: row[1] for row in taken.exec_driver_sql(CANCEL_SEVERAL, parameters)}
        missed = sorted(wanted - became.keys())
        left = []
        if missed:
            rows = taken.exec_driver_sql(READ_LEFT, {"ids": plain_array(missed)})
            left = [(row[0], row[1]) for row in rows]
    for job_id, tenant_id in left:
        cancelled = cancel(engine, tenant_id, job_id)
        # Who ended on its own meanwhile is left as it is.
        if cancelled is not None and cancelled.status in (JobStatus.CANCELLED, JobStatus.RUNNING):
            became[job_id] = cancelled.status.value
    changed = sum(status == JobStatus.CANCELLED for status in became.values())
    return Done(changed, len(became) - changed, len(wanted) - len(became))


def replay_several(engine: Engine, ids: Sequence[str]) -> Done:
    """Bring back those that are dead."""
    wanted = set(ids)
    with connection(engine) as taken:
        rows = taken.exec_driver_sql(REPLAY_SEVERAL, {"ids": plain_array(sorted(wanted))}).all()
    return Done(changed=len(rows), skipped=len(wanted) - len(rows))
