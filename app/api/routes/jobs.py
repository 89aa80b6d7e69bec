"""``/jobs``: submit one, ask for one, cancel one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request

from app.admission.intake import job_submission, status_of, take_in
from app.api.auth.access import Access, open_to
from app.api.http.body import fit_body, read_document
from app.api.http.idempotency import REPLAYED, parse_key
from app.api.http.reply import (
    FIRST_POLL_SECONDS,
    STATUS_HEADER,
    QuickReply,
    limit_headers,
    poll_reply,
)
from app.api.openapi.declared import DeclaredResponse, described
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
from app.api.routes.cancelling import cancel_reply
from app.api.schemas import answers
from app.api.schemas.requests import SubmitJob, timing_of
from app.api.services import Services, current_services
from app.errors import Conflict, IdempotencyKeyReused, NotFound
from app.tenants.ownership import own
from models.jobs.ids import parse_id

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

jobs = Blueprint("jobs", __name__)

#: As long as an id: ``/jobs/batch`` is no job, and takes POST alone.
JOB_RULE = "/jobs/<string(length=36):job_id>"


@jobs.post("/jobs")
@open_to(Access.TENANT)
@described(
    "Submit a job",
    DeclaredResponse(
        202, "It is kept and will run.", answers.AcceptedJob, (LOCATION, STATUS_OF_JOB, *SUBMITTED)
    ),
    body=SubmitJob,
    query=None,
    headers=(IDEMPOTENCY_KEY,),
    errors=(*SUBMISSION_ERRORS, IdempotencyKeyReused),
)
def post_job() -> QuickReply:
    return submit_job(current_services(), request.environ)


@jobs.get(JOB_RULE)
@open_to(Access.TENANT)
@described(
    "A job, its progress and the runs that failed",
    DeclaredResponse(200, "The job.", answers.Job, (ETAG, STATUS_OF_JOB, ASK_AGAIN_AFTER)),
    unchanged(STATUS_OF_JOB),
    query=None,
    headers=(IF_NONE_MATCH,),
    head=True,
)
def get_job(job_id: str) -> QuickReply:
    """Also answers HEAD, and 304 to a caller who knows the state already."""
    return read_job(current_services(), request.environ, job_id)


@jobs.delete(JOB_RULE)
@open_to(Access.TENANT)
@described(
    "Cancel a job",
    DeclaredResponse(200, "It will not run.", answers.CancelledJob, (STATUS_OF_JOB,)),
    DeclaredResponse(
        202, "It runs and was asked to stop.", answers.StoppingJob, (STATUS_OF_JOB, ASK_AFTER)
    ),
    errors=(Conflict,),
)
def delete_job(job_id: str) -> Response:
    """Cancel it: at once if it waits, soon if it runs."""
    services = current_services()
    tenant_id = services.tenants.current(request.environ).id
    known = parse_id(job_id)
    if known is None:
        raise NotFound
    return cancel_reply(services, tenant_id, known)


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
    headers = {
        "Location": f"/jobs/{job_id}",
        "Retry-After": FIRST_POLL_SECONDS,
        STATUS_HEADER: status,
        **limit_headers(allowance),
    }
    if admitted.repeated:
        headers[REPLAYED] = "true"
    return QuickReply(orjson.dumps({"id": job_id, "status": status}), 202, headers)


def read_job(services: Services, environ: WSGIEnvironment, text: str) -> QuickReply:
    """Find it if it is the caller's, say what changed."""
    tenant_id = services.tenants.current(environ).id
    job_id = parse_id(text)
    view = own(services.views.job(job_id) if job_id else None, tenant_id)
    return poll_reply(view, environ)
