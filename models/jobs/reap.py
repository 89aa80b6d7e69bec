"""Reap: dispatched or running → queued, scheduled, dead or cancelled, once the lease ran out.

Called by the scheduler's Reaper, which finds, judges and writes in one transaction: dying before
its commit changes nothing, and the rows it had locked are found again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from models.jobs.claim import OF_REFS, JobRef, ref_arrays
from models.jobs.states import FailureClass, JobStatus
from models.leadership import STILL_LEADER

#: Rows judged in one transaction.
BATCH = 1000

#: ``leased_seconds``: from the claim to the end of the lease; null if there was no claim.
FIND_LOST = f"""
    SELECT id::text AS id, lease, status::text AS status, type, pool, tenant_id, attempt,
           deferrals, crashes, worker, cancel_requested_at IS NOT NULL AS cancelled,
           extract(epoch FROM lease_expires_at - started_at)::float8 AS leased_seconds
    FROM jobs
    WHERE status IN ('dispatched', 'running') AND lease_expires_at < now() AND {STILL_LEADER}
    LIMIT {BATCH}
    FOR UPDATE SKIP LOCKED
"""
#: The rows are locked by FIND_LOST; the lease is compared all the same.
REAP = """
    WITH reaped AS (
        UPDATE jobs AS job
        SET status = verdict.status,
            attempt = job.attempt + verdict.tries_spent,
            crashes = job.crashes + verdict.crashed::int,
            execute_at = CASE verdict.status WHEN 'scheduled'
                THEN now() + make_interval(secs => verdict.delay_seconds) ELSE job.execute_at END,
            lease_expires_at = NULL,
            finished_at = CASE WHEN verdict.status IN ('dead', 'cancelled') THEN now() END,
            error_class = coalesce(verdict.error_class, job.error_class),
            error_message = coalesce(verdict.error_message, job.error_message)
        FROM unnest(%(ids)s::uuid[], %(leases)s::int[], %(statuses)s::job_status[],
                    %(tries_spent)s::int[], %(crashed)s::bool[], %(delays)s::float8[],
                    %(error_classes)s::text[], %(error_messages)s::text[])
            AS verdict (id, lease, status, tries_spent, crashed, delay_seconds, error_class,
                        error_message)
        WHERE job.id = verdict.id AND job.lease = verdict.lease
        RETURNING job.id, job.lease, job.worker, job.started_at, job.status,
                  verdict.error_class, verdict.error_message
    )
    INSERT INTO attempts (job_id, lease, worker, started_at, status, error_class, error_message)
    SELECT id, lease, worker, started_at, status, error_class, error_message
    FROM reaped WHERE error_class IS NOT NULL
    ON CONFLICT DO NOTHING
"""
#: For a worker process that is known to be gone: its leases need not run out first.
EXPIRE_LEASES = f"""
    UPDATE jobs AS job SET lease_expires_at = now()
    {OF_REFS} AND job.status::text = 'running'
"""


@dataclass(frozen=True, slots=True)
class Reaping:
    """What becomes of a row whose lease ran out."""

    status: JobStatus
    tries_spent: int = 0
    crashed: bool = False
    delay_seconds: float = 0.0
    error_class: FailureClass | None = None
    error_message: str | None = None


def reap(connection: Connection, found: Sequence[Row[Any]], verdicts: Sequence[Reaping]) -> None:
    """Write what becomes of the rows that FIND_LOST locked."""
    parameters = {
        **ref_arrays(JobRef(lost.id, lost.lease) for lost in found),
        "statuses": [verdict.status.value for verdict in verdicts],
        "tries_spent": [verdict.tries_spent for verdict in verdicts],
        "crashed": [verdict.crashed for verdict in verdicts],
        "delays": [verdict.delay_seconds for verdict in verdicts],
        "error_classes": [verdict.error_class for verdict in verdicts],
        "error_messages": [verdict.error_message for verdict in verdicts],
    }
    connection.exec_driver_sql(REAP, parameters)
