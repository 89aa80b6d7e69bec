"""``GET /jobs/{id}/wait``: why a job has not started, its position, its predicted start."""

from __future__ import annotations

from datetime import timedelta

from flask import Blueprint, Response

from app.api.auth.access import Access
from app.api.http.reply import Reply
from app.api.http.state import read_state
from app.api.openapi.declared import Operation, Returns
from app.api.schemas import answers
from app.api.services import current_tenant
from app.errors import NotFound
from app.policy.wait_reasons import explain
from app.reads.times import rfc3339
from app.reads.waits import WaitingJob, read_facts
from app.tenants.ownership import own
from models.jobs.ids import parse_id

waits = Blueprint("waits", __name__)

#: No predictions beyond this.
MOST_SECONDS = 366 * 86_400.0


@waits.get("/jobs/<job_id>/wait")
@Operation(
    Access.TENANT,
    "Why a job has not started, and when it probably will",
    Returns(200, "The reason.", answers.Wait),
)
def get_wait(job_id: str) -> Response:
    tenant_id = current_tenant().id
    known = parse_id(job_id)
    if known is None:
        raise NotFound
    with read_state() as connection:
        found = own(read_facts(connection, known), tenant_id)
    return Reply({"id": known, **wait_document(found)}, 200, {"Cache-Control": "no-cache"})


def wait_document(found: WaitingJob) -> dict[str, object]:
    """The answer, without the job's id."""
    facts, wait = found.facts, explain(found.facts)
    seconds = wait.seconds
    if seconds is not None and seconds > MOST_SECONDS:
        seconds = None
    start = None if seconds is None else found.now + timedelta(seconds=seconds)
    return {
        "status": facts.status,
        "pool": facts.pool,
        "reason": wait.reason.value,
        "detail": wait.detail,
        "also": [reason.value for reason in wait.also],
        "position": facts.ahead if facts.status == "queued" else None,
        "at_least": facts.at_least,
        "predicted_start": rfc3339(start),
        "predicted_wait_seconds": None if seconds is None else round(seconds, 3),
    }
