"""A job as its tenant sees it: columns, document, and an ETag that changes with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping

from app.reads.contents import readable_error, readable_result
from app.reads.times import rfc3339, sql_rfc3339
from models.encryption.key_ring import DecryptionError
from models.jobs.states import TERMINAL, JobStatus
from models.store.arrays import plain_array
from models.store.prepared import PreparedStatement

#: The newest attempts are shown, at most so many: a dependency that is away for a week adds
#: one every five minutes.
MOST_ATTEMPTS = 100

PLAIN = ("id", "type", "tenant", "pool", "priority", "status", "attempt", "crashes")
TIMES = ("created_at", "execute_at", "not_after", "dispatched_at", "started_at", "finished_at")
ERROR = ("error_class", "error_message")
#: The columns of a job that change on its way, but for its status.
CHANGING = ("attempt", "crashes", *TIMES, "progress", *ERROR, "cancel_requested_at")
#: What ``job_document`` reads beside ``id``, ``tenant_id`` and ``tenant``, the name;
#: ``progress`` as JSON text.
JOB_COLUMNS = ("type", "pool", "priority", "status", *CHANGING)
JOB_SQL = ", ".join(f"job.{name}" for name in JOB_COLUMNS).replace("progress", "progress::text")


def attempts_of_job(most: int) -> str:
    """Selects ``attempts`` of ``job``, JSON text: the newest unsuccessful runs, oldest first.

    A job without any is not looked up: most have none. A run that succeeded counts as an attempt.
    """
    return f"""
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
        ) AS run"""


READ_JOBS = f"""
    SELECT job.id::text, job.tenant_id,
           (SELECT name FROM tenants WHERE tenants.id = job.tenant_id) AS tenant,
           {JOB_SQL}, job.replays, job.slot_seconds, job.resubmitted_from::text, tried.attempts,
           job.result::text
    FROM unnest(%(ids)s::uuid[]) AS asked (id)
    JOIN jobs AS job ON job.id = asked.id
    LEFT JOIN LATERAL ({attempts_of_job(MOST_ATTEMPTS)}) AS tried ON true
"""
PREPARED = PreparedStatement("read_jobs", READ_JOBS)

#: The columns that the tag of a job changes with.
TAGGED: itemgetter[tuple[Any, ...]] = itemgetter(
    "id", "priority", "status", *CHANGING, "replays", "slot_seconds", "attempts"
)


@dataclass(frozen=True, slots=True)
class View:
    """A job or an application as its tenant sees it."""

    tenant_id: int
    #: Of the job, or of the application.
    status: str
    #: Nothing about it changes any more, except by a replay.
    ended: bool
    etag: str
    document: dict[str, Any]
    #: Characters of its result.
    weight: int = 0
    #: It was erased: all that is known is whose it was.
    erased: bool = False
    #: Why its result cannot be decrypted; empty if it can.
    unreadable: str = ""


def read_jobs(connection: Connection, ids: Iterable[str]) -> dict[str, View]:
    """Those of the jobs that exist, by id."""
    # Mappings: by its attributes a row is read ten times as slowly.
    rows = PREPARED.execute(connection, {"ids": plain_array(ids)}).mappings()
    return {row["id"]: job_view(row) for row in rows}


def job_view(row: RowMapping) -> View:
    """A row of READ_JOBS as a view."""
    document = job_document(row) | more_of(row)
    status, tenant_id, unreadable = row["status"], row["tenant_id"], ""
    try:
        result = readable_result(row["result"], tenant_id, row["id"])
    except DecryptionError as error:
        result, unreadable = None, str(error)
    # As it stands in the row: nothing is gained by parsing it.
    document["result"] = None if result is None else orjson.Fragment(result)
    etag = etag_of("|".join(map(str, TAGGED(row))))
    ended, weight = JobStatus(status) in TERMINAL, len(result or "")
    return View(tenant_id, status, ended, etag, document, weight, unreadable=unreadable)


def job_document(row: RowMapping) -> dict[str, Any]:
    """Id, tenant and JOB_COLUMNS as every job shows them."""
    progress, failure = row["progress"], row["error_class"]
    message = readable_error(row["error_message"], row["tenant_id"], row["id"])
    return {
        **{name: row[name] for name in PLAIN},
        **{name: rfc3339(row[name]) for name in TIMES},
        "progress": None if progress is None else orjson.Fragment(progress),
        "error": None if failure is None else {"class": failure, "message": message},
        "cancel_requested_at": rfc3339(row["cancel_requested_at"]),
    }


def more_of(row: RowMapping) -> dict[str, Any]:
    """What a job shows beyond what an application does."""
    # Parsed, and so written as the rest of the document is: most jobs have none.
    attempts = orjson.loads(row["attempts"] or "[]")
    for attempt in attempts:
        if error := attempt["error"]:
            error["message"] = readable_error(error["message"], row["tenant_id"], row["id"])
    return {
        "replays": row["replays"],
        "slot_seconds": round(row["slot_seconds"], 6),
        "resubmitted_from": row["resubmitted_from"],
        "attempts": attempts,
    }


def etag_of(mark: str) -> str:
    """An ETag that changes with ``mark``."""
    return f'"{hashlib.blake2b(mark.encode(), digest_size=9).hexdigest()}"'
