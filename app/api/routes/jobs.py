"""``/jobs``: submit, read, cancel, and why a job is waiting."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request

from app.admission import Submission
from app.admission.intake import job_submission, status_of, take_in
from app.api.http.body import read_document, validate_body
from app.api.http.idempotency import parse_key
from app.api.http.prefer import PREFER, ended_reply, wait_for_end
from app.api.http.query import known_id
from app.api.http.reply import (
    POLL_SECONDS,
    STATUS_HEADER,
    QuickReply,
    Reply,
    own_view,
    poll_reply,
    submission_headers,
)
from app.api.http.state import read_state, write_state
from app.api.http.turns import long_read
from app.api.openapi import declared
from app.api.openapi.declared import Returns, for_tenants
from app.api.schemas import answers
from app.api.schemas.requests import SubmitJob
from app.api.services import Services, current_services, current_tenant
from app.errors import Conflict, NotFound, invalid_field
from app.log_ids import SENT_AGAIN
from app.policy.wait_reasons import TO_TENANT, Voice, WaitReason, explain
from app.reads.runs import read_runs
from app.reads.times import rfc3339
from app.reads.waits import WaitingJob, read_facts
from app.tenants.ownership import own
from app.tenants.scopes import Scope
from app.validation import ErrorBudget
from models.jobs.cancel import cancel
from models.jobs.ids import parse_id
from models.jobs.states import JobStatus

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

jobs = Blueprint("jobs", __name__)
waits = Blueprint("waits", __name__)

#: The length of an id: ``/jobs/batch`` is not a job, and takes POST alone.
JOB_RULE = "/jobs/<string(length=36):job_id>"
#: Codes of limits that hold a job back.
LIMIT_CODES = {WaitReason.CAP: "POOL_CONCURRENCY_CAP"}
#: Fields that are null where no prediction is possible.
STARTS = ("predicted_start", "earliest_start", "latest_start", "predicted_wait_seconds")
#: No predictions beyond this.
MOST_SECONDS = 366 * 86_400.0


@jobs.post("/jobs")
@declared.submission(
    "Submit a job", answers.AcceptedJob, answers.Job, SubmitJob, declared.STATUS_OF_JOB
)
def post_job() -> QuickReply:
    return submit_job(current_services(), request.environ)


@jobs.get(JOB_RULE)
@declared.poll("A job, its progress and its failed runs", answers.Job, declared.STATUS_OF_JOB)
def get_job(job_id: str) -> QuickReply:
    """Supports HEAD, and returns 304 if the job has not changed."""
    return read_job(current_services(), request.environ, job_id)


@jobs.delete(JOB_RULE)
@declared.cancellation(
    "Cancel a job", answers.CancelledJob, answers.StoppingJob, declared.STATUS_OF_JOB
)
def delete_job(job_id: str) -> Response:
    """Cancels a waiting job immediately; a running job is interrupted within 5 s.

    A job whose type is cooperative stops by itself.
    """
    return cancel_reply(current_tenant().id, known_id(job_id))


@waits.get("/jobs/<job_id>/wait")
@for_tenants(
    Scope.READ,
    "Why a job has not started, and when it probably will",
    Returns(200, answers.Wait),
)
@long_read
def get_wait(job_id: str) -> Response:
    tenant_id, known = current_tenant().id, known_id(job_id)
    with read_state() as connection:
        found = own(read_facts(connection, known), tenant_id)
    return Reply({"id": known, **wait_document(found)}, 200, {"Cache-Control": "no-cache"})


@waits.get("/jobs/<job_id>/runs")
@for_tenants(
    Scope.READ, "The runs of a job, with tracebacks and log lines", Returns(200, answers.Runs)
)
def get_runs(job_id: str) -> Response:
    """What `ctx.log` wrote, kept up to 200 lines and 16 KiB a run, and the traceback of what the
    job raised. Lines of a running job are there within seconds, less often the longer it runs."""
    known, tenant_id = known_id(job_id), current_tenant().id
    with read_state() as connection:
        found = own(read_runs(connection, known), tenant_id)
    return Reply({"runs": found.runs}, 200, {"Cache-Control": "no-cache"})


def wait_document(found: WaitingJob, voice: Voice = TO_TENANT) -> dict[str, object]:
    """The reason, position and predicted start of a waiting job."""
    facts, told = found.facts, explain(found.facts, voice)
    wait = told.forecast if (told.seconds or 0.0) <= MOST_SECONDS else None

    def at(seconds: float | None) -> str | None:
        if seconds is None or seconds > MOST_SECONDS:
            return None
        return rfc3339(found.now + timedelta(seconds=seconds))

    start = (
        {
            "predicted_start": at(wait.seconds),
            "earliest_start": at(wait.earliest),
            "latest_start": at(wait.latest),
            "predicted_wait_seconds": round(wait.seconds, 3),
        }
        if wait
        else dict.fromkeys(STARTS)
    )

    return {
        "status": facts.status,
        "pool": facts.pool,
        "reason": told.reason.value,
        "code": LIMIT_CODES.get(told.reason),
        "detail": told.detail,
        "also": [reason.value for reason in told.also],
        "position": facts.ahead if facts.status == "queued" else None,
        "at_least": facts.at_least,
        **start,
    }


def cancel_reply(
    tenant_id: int, job_id: str, names: Mapping[JobStatus, StrEnum] | None = None
) -> Response:
    """Cancel the tenant's job; ``names`` are the statuses as the caller sees them.

    200: it will not run. 202: it is running and is being stopped. 409: it has ended otherwise.
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
        hint = " Dead letters can be discarded." if found.status is JobStatus.DEAD else ""
        raise Conflict(f"It is already {status} and cannot be cancelled.{hint}")
    document["cancel_requested_at"] = found.requested_at
    return Reply(document, 202, headers | {"Retry-After": POLL_SECONDS})


def submit_job(services: Services, environ: WSGIEnvironment) -> QuickReply:
    """Parse, admit, 202."""
    tenant = services.tenants.current(environ)
    allowance = services.gate.pass_rate(tenant, spent=SENT_AGAIN in environ)
    document = read_document(environ, services.body_limits)
    body = validate_body(document, SubmitJob)
    submission = submission_of(services, tenant.id, body)
    admitted = take_in(services, tenant, (submission,), parse_key(environ, document))
    job_id, status = admitted.ids[0], status_of(submission, admitted)
    headers = submission_headers(f"/jobs/{job_id}", status, allowance, admitted.repeated)
    if PREFER in environ:
        ended = ended_reply(services, environ, job_id, services.views.job, headers)
        if ended is not None:
            return ended
    return QuickReply(orjson.dumps({"id": job_id, "status": status}), 202, headers)


def submission_of(
    services: Services, tenant_id: int, body: SubmitJob, budget: ErrorBudget | None = None
) -> Submission:
    """A validated body as a submission; raises if the type is unknown or rejects the payload."""
    return job_submission(
        services.types,
        tenant_id,
        body.type,
        body.payload,
        priority=body.priority,
        execute_at=body.execute_at,
        not_after=body.not_after,
        jitter=body.jitter,
        resubmitted_from=origin_of(body.resubmitted_from),
        budget=budget,
        cell=services.cell,
    )


def origin_of(text: str | None) -> str | None:
    """The id of the job that a submission replaces; whether there is one is not looked up."""
    found = None if text is None else parse_id(text)
    if text is not None and found is None:
        raise invalid_field("resubmitted_from", "is not an id")
    return found


def read_job(services: Services, environ: WSGIEnvironment, text: str) -> QuickReply:
    """The caller's job, or 304."""
    tenant_id = services.tenants.current(environ).id
    job_id = parse_id(text)
    view = own_view(services.views.job(job_id) if job_id else None, tenant_id)
    if PREFER in environ and job_id and wait_for_end(services, environ, job_id, view):
        return poll_reply(own_view(services.views.job(job_id), tenant_id), environ, waited=True)
    return poll_reply(view, environ)
