"""A job as its tenant sees it: the columns, the document, the tag that changes with both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection

from app.api.times import rfc3339, sql_rfc3339
from models.arrays import plain_array
from models.prepared import Prepared
from models.states import TERMINAL, JobStatus

#: The newest attempts are shown, at most so many: a dependency that is away for a week adds
#: one every five minutes.
MOST_ATTEMPTS = 100

#: What ``job_document`` reads, after id, tenant id and tenant name.
JOB_COLUMNS = """
    job.type, job.pool, job.priority, job.status, job.attempt, job.crashes, job.created_at,
    job.execute_at, job.not_after, job.dispatched_at, job.started_at, job.finished_at,
    job.progress::text, job.error_class, job.error_message, job.cancel_requested_at"""
#: What a job says beyond what an application does.
MORE_COLUMNS = "job.replays, job.slot_seconds, tried.attempts"


def attempts_join(most: int) -> str:
    """Joins ``tried.attempts``, JSON text: the newest unsuccessful runs, oldest first.

    A job without any is not looked up: most have none. A run that succeeded counts as a try.
    """
    return f"""
    LEFT JOIN LATERAL (
        SELECT json_agg(json_build_object(
                   'lease', run.lease, 'worker', run.worker,
                   'started_at', {sql_rfc3339("run.started_at")},
                   'ended_at', {sql_rfc3339("run.ended_at")},
                   'status', run.status,
                   'error', CASE WHEN run.error_class IS NOT NULL THEN json_build_object(
                       'class', run.error_class, 'message', run.error_message) END
               ) ORDER BY run.lease)::text AS attempts
        FROM (
            SELECT * FROM attempts
            WHERE attempts.job_id = job.id
              AND (job.attempt > (job.status = 'succeeded')::int OR job.deferrals > 0
                   OR job.crashes > 0 OR job.replays > 0
                   OR job.status IN ('dead', 'cancelled', 'expired'))
            ORDER BY attempts.lease DESC LIMIT {most}
        ) AS run
    ) AS tried ON true"""


READ_JOBS = f"""
    SELECT job.id::text, job.tenant_id,
           (SELECT name FROM tenants WHERE tenants.id = job.tenant_id),
           {JOB_COLUMNS}, {MORE_COLUMNS}, job.result::text
    FROM unnest(%(ids)s::uuid[]) AS asked (id)
    JOIN jobs AS job ON job.id = asked.id
    {attempts_join(MOST_ATTEMPTS)}
"""
PREPARED = Prepared("read_jobs", READ_JOBS)


@dataclass(frozen=True, slots=True)
class View:
    """A job or an application as its tenant sees it."""

    tenant_id: int
    #: That of the job, or of the application.
    status: str
    #: Nothing about it changes any more, but for a replay.
    ended: bool
    etag: str
    document: dict[str, Any]
    #: Characters of its result.
    weight: int = 0


def read_jobs(taken: Connection, ids: Iterable[str]) -> dict[str, View]:
    """The jobs that there are, by id."""
    rows = PREPARED.execute(taken, {"ids": plain_array(ids)})
    return {row[0]: job_view(row) for row in rows}


def job_view(row: Sequence[Any]) -> View:
    """A row of READ_JOBS as a view."""
    document = job_document(row) | more_of(row)
    # As it stands in the row: nothing is gained by parsing it.
    document["result"] = None if row[22] is None else orjson.Fragment(row[22])
    status = row[6]
    # All that can change, replays and attempts among it.
    mark = "|".join(map(str, (*row[:1], *row[5:22])))
    weight = len(row[22] or "")
    return View(row[1], status, JobStatus(status) in TERMINAL, etag_of(mark), document, weight)


def job_document(row: Sequence[Any]) -> dict[str, Any]:
    """Id, tenant id, tenant name and JOB_COLUMNS as every job shows them."""
    return {
        "id": row[0],
        "type": row[3],
        "tenant": row[2],
        "pool": row[4],
        "priority": row[5],
        "status": row[6],
        "attempt": row[7],
        "crashes": row[8],
        "created_at": rfc3339(row[9]),
        "execute_at": rfc3339(row[10]),
        "not_after": rfc3339(row[11]),
        "dispatched_at": rfc3339(row[12]),
        "started_at": rfc3339(row[13]),
        "finished_at": rfc3339(row[14]),
        "progress": None if row[15] is None else orjson.Fragment(row[15]),
        "error": None if row[16] is None else {"class": row[16], "message": row[17]},
        "cancel_requested_at": rfc3339(row[18]),
    }


def more_of(row: Sequence[Any]) -> dict[str, Any]:
    """MORE_COLUMNS, which follow."""
    return {
        "replays": row[19],
        "slot_seconds": round(row[20], 6),
        # Parsed, and so written as the rest of the document is: most jobs have none.
        "attempts": [] if row[21] is None else orjson.loads(row[21]),
    }


def etag_of(mark: str) -> str:
    """A tag that is another if ``mark`` is."""
    return f'"{hashlib.blake2b(mark.encode(), digest_size=9).hexdigest()}"'
