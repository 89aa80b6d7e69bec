"""The runs of a job: what became of each, what it logged, and where it failed.

Runs without a result are on record; the current or last one is in the row of the job. A run that
was handed back with its worker is known by what it logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row

from app.reads.contents import readable_error, readable_log, readable_traceback
from app.reads.times import rfc3339
from models.jobs.run_logs import read_logs

#: The newest runs without a result that are shown.
MOST_RUNS = 100

READ_OWNED = """
    SELECT id::text AS id, tenant_id, lease, status::text AS status, worker, started_at, finished_at
    FROM jobs WHERE id = %(id)s::uuid
"""
READ_ATTEMPTS = f"""
    SELECT lease, worker, started_at, ended_at, status::text AS status, error_class, error_message
    FROM attempts WHERE job_id = %(id)s::uuid ORDER BY lease DESC LIMIT {MOST_RUNS}
"""


class JobRuns(NamedTuple):
    """The runs of a job as documents, oldest first."""

    tenant_id: int
    runs: list[dict[str, Any]]


def read_runs(connection: Connection, job_id: str) -> JobRuns | None:
    """The runs of a job; None if there is no such job."""
    job = connection.exec_driver_sql(READ_OWNED, {"id": job_id}).first()
    if job is None:
        return None
    attempts = connection.exec_driver_sql(READ_ATTEMPTS, {"id": job_id}).all()
    return JobRuns(job.tenant_id, run_documents(job, attempts, read_logs(connection, job_id)))


def run_documents(
    job: Row[Any], attempts: Sequence[Row[Any]], logs: dict[int, Row[Any]]
) -> list[dict[str, Any]]:
    """One document for each lease under which the job is known to have run."""
    whose = (job.tenant_id, job.id)
    runs = {lease: run_of(lease, ended_at=log.written_at) for lease, log in logs.items()}
    if job.status in ("running", "succeeded"):
        runs[job.lease] = run_of(job.lease, job.worker, job.started_at, job.finished_at, job.status)
    for attempt in attempts:
        message = readable_error(attempt.error_message, *whose)
        failure = {"class": attempt.error_class, "message": message}
        runs[attempt.lease] = run_of(
            *(attempt.lease, attempt.worker, attempt.started_at, attempt.ended_at, attempt.status),
            failure if attempt.error_class else None,
        )
    for lease, log in logs.items():
        runs[lease] |= {
            "traceback": readable_traceback(log.traceback, *whose),
            "log": readable_log(log.log, *whose, log.written_at),
            "log_dropped": log.dropped,
        }
    return [runs[lease] for lease in sorted(runs)]


def run_of(
    lease: int,
    worker: str | None = None,
    started_at: Any = None,
    ended_at: Any = None,
    status: str = "queued",
    error: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A run that logged nothing; by default one that was handed back."""
    return {
        "lease": lease,
        "worker": worker,
        "started_at": rfc3339(started_at),
        "ended_at": rfc3339(ended_at),
        "status": status,
        "error": error,
        "traceback": None,
        "log": [],
        "log_dropped": 0,
    }
