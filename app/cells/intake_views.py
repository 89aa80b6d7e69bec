"""Jobs that were taken in for a cell that is away, as their tenant sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from app.api.http.reply import STATUS_HEADER, QuickReply, Reply, poll_reply
from app.api.routes.jobs import STARTS
from app.errors import NotFound
from app.policy.wait_reasons import SENTENCES, WaitReason
from app.reads.job_views import CHANGING, View, job_view
from app.reads.views import application_view
from models.cells.intake_jobs import KeptRow, request_of
from models.jobs.states import APPLICATION_STATUS, JobStatus
from models.store.clock import DATABASE_CLOCK

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment
    from sqlalchemy import RowMapping

    from app.tenants.tenant import TenantProfile
    from models.jobs.submission import Submission

#: What a waiting job has beside the columns of its row: nothing else has happened to it.
REASON = WaitReason.CELL_AWAY


def kept_item(row: KeptRow, job_id: str, tenant: TenantProfile) -> Submission:
    """The job of a row, as it was submitted; NotFound if it is another tenant's."""
    request = None if row.tenant != tenant.name else request_of(row, tenant.id)
    if request is None:
        raise NotFound
    return next(item for item in request.submissions if item.id == job_id)


def status_of(row: KeptRow, item: Submission) -> JobStatus:
    """Where the job is: it waits, or it was cancelled."""
    if item.id in row.cancelled:
        return JobStatus.CANCELLED
    later = item.execute_at is not None and item.execute_at > DATABASE_CLOCK.now()
    return JobStatus.SCHEDULED if later else JobStatus.QUEUED


def columns_of(row: KeptRow, item: Submission, tenant: TenantProfile) -> RowMapping:
    """The columns that its row of ``jobs`` will have."""
    columns: dict[str, Any] = {
        **dict.fromkeys(CHANGING),
        **item._asdict(),
        "tenant": tenant.name,
        "status": status_of(row, item).value,
        "attempt": 0,
        "crashes": 0,
        "created_at": row.created_at,
        "replays": 0,
        "slot_seconds": 0.0,
        "attempts": None,
        "result": None,
        "score": None,
        "rationale": None,
        "scored_at": None,
    }
    return cast("RowMapping", columns)


def job_reply(
    row: KeptRow, item: Submission, tenant: TenantProfile, environ: WSGIEnvironment
) -> QuickReply:
    """``GET /jobs/{id}``."""
    return with_reason(job_view(columns_of(row, item, tenant)), environ)


def application_reply(
    row: KeptRow, item: Submission, tenant: TenantProfile, environ: WSGIEnvironment
) -> QuickReply:
    """``GET /applications/{id}``."""
    if item.candidate is None:
        raise NotFound
    return with_reason(application_view(columns_of(row, item, tenant), None), environ)


def with_reason(view: View, environ: WSGIEnvironment) -> QuickReply:
    """The view, with the reason why the job waits."""
    if not view.ended:
        view.document["reason"] = REASON.value
    return poll_reply(view, environ)


def wait_reply(row: KeptRow, item: Submission) -> Reply:
    """``GET /jobs/{id}/wait``."""
    status = status_of(row, item)
    reason = WaitReason.NONE if status is JobStatus.CANCELLED else REASON
    document: dict[str, object] = {
        "id": item.id,
        "status": status.value,
        "pool": item.pool,
        "reason": reason.value,
        "code": None,
        "detail": SENTENCES[reason],
        "also": [],
        "position": None,
        "at_least": False,
        **dict.fromkeys(STARTS),
    }
    return Reply(document, 200, {"Cache-Control": "no-cache"})


def runs_reply() -> Reply:
    """``GET /jobs/{id}/runs``: it has none."""
    return Reply({"runs": []}, 200, {"Cache-Control": "no-cache"})


def cancelled_reply(job_id: str, *, application: bool) -> Reply:
    """``DELETE /jobs/{id}`` and ``DELETE /applications/{id}``."""
    names = APPLICATION_STATUS if application else {JobStatus.CANCELLED: JobStatus.CANCELLED}
    status = names[JobStatus.CANCELLED].value
    headers = {STATUS_HEADER: status, "Cache-Control": "no-cache"}
    return Reply({"id": job_id, "status": status}, 200, headers)
