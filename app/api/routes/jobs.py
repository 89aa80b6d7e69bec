"""``/jobs``: submit, read, cancel."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request

from app.admission.intake import job_submission, status_of, take_in
from app.api.auth.access import Access
from app.api.http.body import fit_body, read_document
from app.api.http.idempotency import parse_key
from app.api.http.reply import (
    POLL_SECONDS,
    STATUS_HEADER,
    QuickReply,
    Reply,
    poll_reply,
    submission_headers,
)
from app.api.http.state import write_state
from app.api.openapi.declared import Operation, Returns
from app.api.openapi.parts import (
    ASK_AFTER,
    ASK_AGAIN_AFTER,
    ETAG,
    IDEMPOTENCY_KEY,
    IF_NONE_MATCH,
    LOCATION,
    STATUS_OF_JOB,
    SUBMISSION_ERRORS,
    SUBMITTED,
    unchanged,
)
from app.api.schemas import answers
from app.api.schemas.requests import SubmitJob, timing_of
from app.api.services import Services, current_services, current_tenant
from app.errors import Conflict, IdempotencyKeyReused, NotFound
from app.tenants.ownership import own
from models.jobs.cancel import cancel
from models.jobs.ids import parse_id
from models.jobs.states import JobStatus

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

jobs = Blueprint("jobs", __name__)

#: The length of an id: ``/jobs/batch`` is not a job, and takes POST alone.
JOB_RULE = "/jobs/<string(length=36):job_id>"


@jobs.post("/jobs")
@Operation(
    Access.TENANT,
    "Submit a job",
    Returns(202, "Accepted.", answers.AcceptedJob, (LOCATION, STATUS_OF_JOB, *SUBMITTED)),
    body=SubmitJob,
    query=None,
    headers=(IDEMPOTENCY_KEY,),
    errors=(*SUBMISSION_ERRORS, IdempotencyKeyReused),
)
def post_job() -> QuickReply:
    return submit_job(current_services(), request.environ)


@jobs.get(JOB_RULE)
@Operation(
    Access.TENANT,
    "A job, its progress and its failed runs",
    Returns(200, "The job.", answers.Job, (ETAG, STATUS_OF_JOB, ASK_AGAIN_AFTER)),
    also=(unchanged(STATUS_OF_JOB, ASK_AGAIN_AFTER),),
    query=None,
    headers=(IF_NONE_MATCH,),
    head=True,
)
def get_job(job_id: str) -> QuickReply:
    """Supports HEAD, and returns 304 if the job has not changed."""
    return read_job(current_services(), request.environ, job_id)


@jobs.delete(JOB_RULE)
@Operation(
    Access.TENANT,
    "Cancel a job",
    Returns(200, "Cancelled.", answers.CancelledJob, (STATUS_OF_JOB,)),
    also=(Returns(202, "Asked to stop.", answers.StoppingJob, (STATUS_OF_JOB, ASK_AFTER)),),
    errors=(Conflict,),
)
def delete_job(job_id: str) -> Response:
    """Cancels a waiting job immediately; asks a running job to stop."""
    tenant_id = current_tenant().id
    known = parse_id(job_id)
    if known is None:
        raise NotFound
    return cancel_reply(tenant_id, known)


def cancel_reply(
    tenant_id: int, job_id: str, names: Mapping[JobStatus, StrEnum] | None = None
) -> Response:
    """Cancel the tenant's job; ``names`` are the statuses as the caller sees them.

    200: it will not run. 202: it is running and was asked to stop. 409: it has ended otherwise.
    Cancelling a cancelled job again is a 200.
    """
    with write_state() as engine:
        found = cancel(engine, tenant_id, job_id)
    if found is None:
        raise NotFound
    status = (names[found.status] if names else found.status).value
    document: dict[str, object] = {"id": job_id, "status": status}
    headers = {STATUS_HEADER: status, "Cache-Control": "no-cache"}
    if found.status is JobStatus.CANCELLED:
        return Reply(document, 200, headers)
    if found.status is not JobStatus.RUNNING:
        raise Conflict(f"It is already {status} and cannot be cancelled.")
    document["cancel_requested_at"] = found.requested_at
    return Reply(document, 202, headers | {"Retry-After": POLL_SECONDS})


def submit_job(services: Services, environ: WSGIEnvironment) -> QuickReply:
    """Parse, admit, 202."""
    tenant = services.tenants.current(environ)
    allowance = services.gate.pass_rate(tenant)
    document = read_document(environ, services.body_limits)
    body = fit_body(document, SubmitJob)
    submission = job_submission(
        services.types, tenant.id, body.type, body.payload, **timing_of(body)
    )
    admitted = take_in(services, tenant, (submission,), parse_key(environ, document))
    job_id, status = admitted.ids[0], status_of(submission, admitted)
    headers = submission_headers(f"/jobs/{job_id}", status, allowance, admitted.repeated)
    return QuickReply(orjson.dumps({"id": job_id, "status": status}), 202, headers)


def read_job(services: Services, environ: WSGIEnvironment, text: str) -> QuickReply:
    """The caller's job, or 304."""
    tenant_id = services.tenants.current(environ).id
    job_id = parse_id(text)
    view = own(services.views.job(job_id) if job_id else None, tenant_id)
    return poll_reply(view, environ)
