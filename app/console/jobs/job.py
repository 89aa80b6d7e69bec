"""``/console/jobs/<id>``: one job, what happened to it, what it waits for and what it gave.

What cannot change, its payload, is read when the page is; the rest again and again while
somebody looks. Long texts are cut, with a link to the whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping

from app.api.http.state import read_state
from app.api.routes.jobs import wait_document
from app.api.services import current_services
from app.console.formatting import SHOWN_CHARACTERS, pretty
from app.console.jobs.timeline import TimelineAttempt, Way, timeline
from app.console.page import LivePage, PageRequest
from app.errors import BlobStoreUnavailable, NotFound
from app.reads.waits import read_facts
from models.blobs import BlobError, BlobMissing
from models.jobs.ids import parse_id
from models.jobs.states import LIVE
from models.pools import POOLS

#: The newest runs that gave no result, and characters of what each said.
MOST_ATTEMPTS = 100
SHOWN_MESSAGE = 2_000
#: A tenant's newest events among which replays are looked for.
EVENTS_LOOKED = 2_000

READ_JOB = f"""
    SELECT job.id::text, job.tenant_id, tenant.name AS tenant, job.type, job.pool, job.priority,
           job.status::text, job.lease, job.attempt, job.deferrals, job.crashes, job.replays,
           job.created_at, job.execute_at, job.not_after, job.dispatched_at, job.started_at,
           job.finished_at, job.cancel_requested_at, job.worker,
           job.traceparent, job.dependency, job.slice, job.slot_seconds, job.progress,
           job.error_class, left(job.error_message, {SHOWN_CHARACTERS}) AS error_message,
           left(job.result::text, {SHOWN_CHARACTERS + 1}) AS result,
           length(job.result::text) AS result_length,
           checkpoint.saved_at AS checkpoint_at, checkpoint.blob AS checkpoint_blob,
           octet_length(checkpoint.state::text) AS checkpoint_bytes,
           EXISTS (SELECT 1 FROM applications WHERE applications.id = job.id) AS is_application
    FROM jobs AS job
    LEFT JOIN tenants AS tenant ON tenant.id = job.tenant_id
    LEFT JOIN checkpoints AS checkpoint ON checkpoint.job_id = job.id
    WHERE job.id = %(id)s::uuid
"""
READ_ATTEMPTS = f"""
    SELECT lease, worker, started_at, ended_at, status::text, error_class,
           left(error_message, {SHOWN_MESSAGE}) AS error_message
    FROM attempts WHERE job_id = %(id)s::uuid ORDER BY lease DESC LIMIT {MOST_ATTEMPTS + 1}
"""
#: No index is by job: the newest of the tenant are looked through.
READ_REPLAYS = f"""
    SELECT at FROM (SELECT job_id, kind, at FROM events WHERE tenant_id = %(tenant)s
          ORDER BY xid DESC, id DESC LIMIT {EVENTS_LOOKED}) AS newest
    WHERE job_id = %(id)s::uuid AND kind = 'job_replayed' ORDER BY at
"""
READ_PAYLOAD = """
    SELECT payload::text, payload_blob FROM jobs WHERE id = %(id)s::uuid
"""
READ_RESULT = "SELECT result::text FROM jobs WHERE id = %(id)s::uuid"


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document as far as the page shows it."""

    text: str
    #: Characters of the whole, if that is longer.
    cut_from: int | None = None
    #: Why it cannot be shown.
    trouble: str = ""


def read_job(asked: PageRequest) -> dict[str, Any]:
    """The job and all that belongs to it."""
    job_id = parse_id(asked.values["job_id"])
    if job_id is None:
        raise NotFound("There is no such job.")
    with read_state() as connection:
        job = connection.exec_driver_sql(READ_JOB, {"id": job_id}).mappings().first()
        if job is None:
            raise NotFound("There is no such job, or it was retired.")
        attempts = read_attempts(connection, job_id)
        replays = read_replays(connection, job) if job["replays"] else []
        wait = read_wait(connection, job)
    left_out = len(attempts) > MOST_ATTEMPTS
    pool = POOLS.get(job["pool"])
    known = current_services().types.get(job["type"])
    return {
        "job": job,
        "steps": timeline(way_of(job), attempts[-MOST_ATTEMPTS:], replays),
        "left_out": left_out,
        "wait": wait,
        "tries": known.limits.tries if known else pool.tries if pool else None,
        "trace_id": trace_of(job["traceparent"]),
        "progress": progress_of(job["progress"]),
        "result": shown(job["result"], job["result_length"]),
        "can_cancel": job["status"] in LIVE,
        "can_replay": job["status"] == "dead",
        # Called where it is written: parts that live do without.
        "payload": lambda: show_payload(job_id),
    }


def way_of(job: RowMapping) -> Way:
    """What the row says of its way."""
    return Way(
        status=job["status"],
        lease=job["lease"],
        created_at=job["created_at"],
        attempt=job["attempt"],
        replays=job["replays"],
        execute_at=job["execute_at"],
        dispatched_at=job["dispatched_at"],
        started_at=job["started_at"],
        finished_at=job["finished_at"],
        cancel_requested_at=job["cancel_requested_at"],
        worker=job["worker"],
    )


def read_attempts(connection: Connection, job_id: str) -> list[TimelineAttempt]:
    """Its runs that gave no result, oldest first."""
    rows = connection.exec_driver_sql(READ_ATTEMPTS, {"id": job_id}).all()
    return [TimelineAttempt(**row._mapping) for row in reversed(rows)]


def read_replays(connection: Connection, job: RowMapping) -> list[datetime]:
    """When it was brought back, as far as that is still known."""
    asked = {"id": job["id"], "tenant": job["tenant_id"]}
    return list(connection.exec_driver_sql(READ_REPLAYS, asked).scalars())


def read_wait(connection: Connection, job: RowMapping) -> dict[str, Any] | None:
    """Why it has not started; None if it has."""
    if job["status"] not in ("scheduled", "queued", "dispatched"):
        return None
    found = read_facts(connection, job["id"])
    if found is None:
        return None
    document = wait_document(found)
    predicted = document["predicted_start"]
    if isinstance(predicted, str):
        # To the second: it is a guess, and the page is sent again whenever it changes.
        document["predicted_start"] = datetime.fromisoformat(predicted).replace(microsecond=0)
    return document


def trace_of(traceparent: str | None) -> str | None:
    """The id of the trace, as W3C writes the header."""
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else None


def progress_of(document: Any) -> tuple[float, float] | None:
    """How much is done, of how much."""
    match document:
        case {"done": int() | float() as part, "total": int() | float() as total} if total > 0:
            return max(0.0, min(part, total)), total
    return None


def show_payload(job_id: str) -> ShownDocument:
    """What it was given, wherever it is kept."""
    try:
        text = read_payload(job_id)
    except BlobStoreUnavailable:
        return ShownDocument("", trouble="The store for large payloads does not answer.")
    except NotFound:
        return ShownDocument("", trouble="Its payload is gone.")
    return shown(text, len(text)) or ShownDocument("")


def shown(text: str | None, length: int | None) -> ShownDocument | None:
    """A document as people read it, up to a length."""
    if text is None or length is None:
        return None
    if length > SHOWN_CHARACTERS:
        return ShownDocument(text[:SHOWN_CHARACTERS], length)
    try:
        readable = pretty(json.loads(text))
    except ValueError:
        return ShownDocument(text)
    return ShownDocument(readable if len(readable) <= 2 * SHOWN_CHARACTERS else text)


def read_payload(job_id: str) -> str:
    """The whole payload as JSON."""
    with read_state() as connection:
        row = connection.exec_driver_sql(READ_PAYLOAD, {"id": job_id}).first()
    if row is None:
        raise NotFound("There is no such job, or it was retired.")
    if row.payload_blob is None:
        return str(row.payload)
    try:
        return current_services().blobs.get(row.payload_blob).decode(errors="replace")
    except BlobMissing:
        raise NotFound("Its payload is gone.") from None
    except BlobError as error:
        raise BlobStoreUnavailable from error


def read_result(job_id: str) -> str:
    """The whole result as JSON."""
    with read_state() as connection:
        row = connection.exec_driver_sql(READ_RESULT, {"id": job_id}).first()
    if row is None or row.result is None:
        raise NotFound("There is no such job, or it has no result.")
    return str(row.result)


JOB = LivePage("/console/jobs/<job_id>", "console/job.html", read_job)
