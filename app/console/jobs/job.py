"""``/console/jobs/<id>``: one job, what happened to it, why it is waiting and its result.

The payload, which cannot change, is read once with the page; the rest is live.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from flask import Response
from sqlalchemy import Connection, Row

from app.api.http.query import known_id
from app.api.http.state import read_state
from app.api.routes.jobs import wait_document
from app.api.services import current_services
from app.console.formatting import SHOWN_CHARACTERS, pretty
from app.console.jobs.timeline import is_discarded, timeline
from app.console.page import PageRequest, find_row, live_page, route
from app.errors import BlobStoreUnavailable, ContentUnreadable, NotFound
from app.logs import INDENT, visible
from app.policy.wait_reasons import ABOUT_TENANT, TO_TENANT, Voice, WaitReason
from app.reads.contents import (
    readable_error,
    readable_log,
    readable_result,
    readable_traceback,
)
from app.reads.waits import WaitingJob, read_facts
from models.blobs import BlobError, BlobMissing
from models.encryption.key_ring import ContentKind, DecryptionError, Place, is_encrypted
from models.encryption.values import cut_json_sql, decrypt_blob, decrypt_json
from models.jobs.run_logs import read_logs
from models.jobs.states import LIVE
from models.jobs.trace_context import trace_headers
from models.pools import POOLS
from models.presence import WORKER_LOST

#: The newest runs without a result, and characters of each error.
MOST_ATTEMPTS = 100
SHOWN_MESSAGE = 2_000
#: A tenant's newest events, which are searched for replays.
EVENTS_LOOKED = 2_000
#: A job that has one of these waits for nothing.
NO_WAIT = (WaitReason.NONE.value, WaitReason.RUNNING.value)
NO_JOB = "There is no such job, or it was retired."
#: No script in it runs, whatever it contains.
INERT = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

READ_JOB = f"""
    SELECT job.id::text, job.tenant_id, tenant.name AS tenant, job.type, job.pool, job.priority,
           job.status::text, job.lease, job.attempt, job.deferrals, job.crashes, job.replays,
           job.created_at, job.execute_at, job.not_after, job.dispatched_at, job.started_at,
           job.finished_at, job.cancel_requested_at, job.worker, {WORKER_LOST} AS worker_lost,
           job.traceparent, job.dependency, job.slice, job.slot_seconds, job.progress,
           origin.id::text AS resubmitted_from,
           job.error_class, job.error_message,
           {cut_json_sql("job.result", SHOWN_CHARACTERS + 1)} AS result,
           length(job.result::text) AS result_length,
           checkpoint.saved_at AS checkpoint_at, checkpoint.blob AS checkpoint_blob,
           octet_length(checkpoint.state::text) AS checkpoint_bytes,
           EXISTS (SELECT 1 FROM applications WHERE applications.id = job.id) AS is_application
    FROM jobs AS job
    LEFT JOIN tenants AS tenant ON tenant.id = job.tenant_id
    LEFT JOIN checkpoints AS checkpoint ON checkpoint.job_id = job.id
    LEFT JOIN jobs AS origin ON origin.id = job.resubmitted_from
        AND origin.tenant_id = job.tenant_id
    WHERE job.id = %(id)s::uuid
"""
READ_ATTEMPTS = f"""
    SELECT lease, worker, started_at, ended_at, status::text, error_class, error_message
    FROM attempts WHERE job_id = %(id)s::uuid ORDER BY lease DESC LIMIT {MOST_ATTEMPTS + 1}
"""
#: There is no index by job: the newest events of the tenant are searched.
READ_REPLAYS = f"""
    SELECT at FROM (SELECT job_id, kind, at FROM events WHERE tenant_id = %(tenant)s
          ORDER BY xid DESC, id DESC LIMIT {EVENTS_LOOKED}) AS newest
    WHERE job_id = %(id)s::uuid AND kind = 'job_replayed' ORDER BY at
"""
READ_PAYLOAD = """
    SELECT tenant_id, payload::text, payload_blob FROM jobs WHERE id = %(id)s::uuid
"""
READ_RESULT = """
    SELECT tenant_id, result::text FROM jobs WHERE id = %(id)s::uuid AND result IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document as far as the page shows it."""

    text: str = ""
    #: Characters of the whole, if that is longer.
    cut_from: int | None = None
    #: Why it cannot be shown.
    trouble: str = ""
    #: Of an application: whether it is what was scored; None if no hash is stored.
    same_input: bool | None = None


def read_job(asked: PageRequest) -> dict[str, Any]:
    job_id = known_id(asked.values["job_id"], NO_JOB)
    with read_state() as connection:
        row = connection.exec_driver_sql(READ_JOB, {"id": job_id}).first()
        if row is None:
            raise NotFound(NO_JOB)
        job = readable_job(row)
        found = connection.exec_driver_sql(READ_ATTEMPTS, {"id": job_id}).all()[::-1]
        replays: list[datetime] = []
        if job.replays:
            whose = {"id": job_id, "tenant": job.tenant_id}
            replays = list(connection.exec_driver_sql(READ_REPLAYS, whose).scalars())
        wait = read_wait(connection, job, TO_TENANT if asked.tenant else ABOUT_TENANT)
        logs = read_logs(connection, job_id) if job.lease else {}
    attempts = [readable_attempt(attempt, job) for attempt in found]
    pool = POOLS.get(job.pool)
    known = current_services().types.get(job.type)
    return {
        "job": job,
        "steps": timeline(job, attempts[-MOST_ATTEMPTS:], replays, logs),
        "logs": {lease: shown_log(log, job) for lease, log in logs.items()},
        "left_out": len(attempts) > MOST_ATTEMPTS,
        "wait": wait,
        "tries": known.limits.tries if known else pool.tries if pool else None,
        "trace_id": trace_of(job.traceparent),
        "progress": progress_of(job.progress),
        "result": shown_result(job),
        "can_cancel": job.status in LIVE,
        "can_replay": job.status == "dead",
        "can_resubmit": job.status not in LIVE,
        "discarded": is_discarded(job),
        # Called outside of the live parts.
        "payload": lambda: show_payload(job_id),
    }


def readable_job(job: Row[Any]) -> SimpleNamespace:
    """The row with its error decrypted."""
    message = readable_error(job.error_message, job.tenant_id, job.id)
    return SimpleNamespace(**{**job._mapping, "error_message": message})


def readable_attempt(attempt: Row[Any], job: SimpleNamespace) -> SimpleNamespace:
    """An attempt of the job with its error decrypted, as far as it is shown."""
    message = readable_error(attempt.error_message, job.tenant_id, job.id)
    return SimpleNamespace(
        **{**attempt._mapping, "error_message": message and message[:SHOWN_MESSAGE]}
    )


def shown_result(job: SimpleNamespace) -> ShownDocument | None:
    """The result, as the page shows it."""
    if job.result is None or not is_encrypted(job.result):
        return shown(job.result, job.result_length)
    try:
        text = readable_result(job.result, job.tenant_id, job.id) or ""
    except DecryptionError as error:
        return ShownDocument(trouble=str(error))
    return shown(text, len(text))


def shown_log(log: Row[Any], job: SimpleNamespace) -> dict[str, Any]:
    """What a run of the job logged, as the page shows it."""
    lines = readable_log(log.log, job.tenant_id, job.id, log.written_at)
    traceback = readable_traceback(log.traceback, job.tenant_id, job.id)
    text = "\n".join(
        f"{one['at']} {one['level'].upper()} {visible(one['message'])}".replace("\n", f"\n{INDENT}")
        for one in lines
    )
    return {"lines": len(lines), "text": text, "dropped": log.dropped, "traceback": traceback}


def read_wait(connection: Connection, job: SimpleNamespace, voice: Voice) -> dict[str, Any] | None:
    """Why it has not started, or has to start again; None if it runs or has ended."""
    if job.status not in ("scheduled", "queued", "dispatched") and not job.worker_lost:
        return None
    found = read_facts(connection, job.id)
    wait = None if found is None else shown_wait(found, voice)
    # It may have started or ended since it was read.
    return None if wait is None or wait["reason"] in NO_WAIT else wait


def shown_wait(found: WaitingJob, voice: Voice = TO_TENANT) -> dict[str, Any]:
    """Predicted to the second: it is a guess, and the page is sent again when it changes."""
    document = wait_document(found, voice)
    for name in ("predicted_start", "earliest_start", "latest_start"):
        if isinstance(predicted := document[name], str):
            document[name] = datetime.fromisoformat(predicted).replace(microsecond=0)
    return document


def trace_of(traceparent: str | None) -> str | None:
    """The trace id of a row's ``traceparent``."""
    parts = trace_headers(traceparent).get("traceparent", "").split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else None


def progress_of(document: Any) -> tuple[float, float] | None:
    """How much is done, of how much."""
    match document:
        case {"done": int() | float() as part, "total": int() | float() as total} if total > 0:
            return max(0.0, min(part, total)), total
    return None


def show_payload(job_id: str) -> ShownDocument:
    """The payload, from the row or the blob store."""
    try:
        text, _ = read_payload(job_id)
    except (BlobStoreUnavailable, ContentUnreadable, NotFound) as error:
        return ShownDocument(trouble=error.detail)
    return shown(text, len(text)) or ShownDocument()


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


def read_payload(job_id: str) -> tuple[str, bool]:
    """The whole payload as JSON, and whether it comes from the blob store."""
    row = find_row(READ_PAYLOAD, NO_JOB, id=job_id)
    place = Place(row.tenant_id, job_id, ContentKind.PAYLOAD)
    try:
        if row.payload_blob is None:
            return decrypt_json(row.payload, place), False
        data = decrypt_blob(current_services().blobs.get(row.payload_blob), place)
        return data.decode(errors="replace"), True
    except DecryptionError as error:
        raise ContentUnreadable(str(error)) from None
    except BlobMissing:
        raise NotFound("The payload is no longer stored.") from None
    except BlobError as error:
        raise BlobStoreUnavailable from error


@route("GET", "/console/jobs/<job_id>/payload")
def get_payload(job_id: str) -> Response:
    return plain_payload(known_id(job_id, NO_JOB))


@route("GET", "/console/jobs/<job_id>/result")
def get_result(job_id: str) -> Response:
    return plain_result(known_id(job_id, NO_JOB))


def plain_payload(job_id: str) -> Response:
    return Response(read_payload(job_id)[0], 200, INERT, content_type="text/plain; charset=utf-8")


def plain_result(job_id: str) -> Response:
    row = find_row(READ_RESULT, "There is no such job, or it has no result.", id=job_id)
    text = readable_result(row.result, row.tenant_id, job_id)
    return Response(text, 200, INERT, content_type="text/plain; charset=utf-8")


JOB = live_page("/console/jobs/<job_id>", "console/job.html", read_job)
