"""``/applications``: submit, read, withdraw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import Blueprint, Response, request
from pydantic_core import to_json

from app.admission import Submission
from app.admission.intake import start_of, take_in
from app.api.http.body import read_document, validate_body
from app.api.http.idempotency import parse_key
from app.api.http.prefer import PREFER, ended_reply, wait_for_end
from app.api.http.reply import QuickReply, own_view, poll_reply, submission_headers
from app.api.http.state import write_state
from app.api.openapi import declared
from app.api.routes.jobs import cancel_reply
from app.api.schemas import answers
from app.api.schemas.requests import SubmitApplication
from app.api.services import Services, current_services, current_tenant
from app.errors import Conflict, Erased, NotFound
from app.log_ids import SENT_AGAIN
from app.reads.job_views import View
from app.tenants.tenant import TenantProfile
from models.jobs.ids import new_id, parse_id
from models.jobs.states import APPLICATION_STATUS

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

applications = Blueprint("applications", __name__)


@applications.post("/applications")
@declared.submission(
    "Submit an application",
    answers.AcceptedApplication,
    answers.Application,
    SubmitApplication,
    declared.STATUS_OF_APPLICATION,
)
def post_application() -> QuickReply:
    return submit_application(current_services(), request.environ)


@applications.get("/applications/<application_id>")
@declared.poll(
    "An application's status, score and rank", answers.Application, declared.STATUS_OF_APPLICATION
)
def get_application(application_id: str) -> QuickReply:
    """Supports HEAD, and returns 304 if the application has not changed."""
    return read_application(current_services(), request.environ, application_id)


@applications.delete("/applications/<application_id>")
@declared.cancellation(
    "Withdraw an application",
    answers.WithdrawnApplication,
    answers.StoppingApplication,
    declared.STATUS_OF_APPLICATION,
    (Erased,),
)
def delete_application(application_id: str) -> Response:
    """Withdraws a waiting application immediately; interrupts one being scored within 5 s."""
    services, tenant_id = current_services(), current_tenant().id
    with write_state():
        view = find_application(services, tenant_id, application_id)
        try:
            return cancel_reply(tenant_id, view.document["id"], APPLICATION_STATUS)
        except NotFound:
            # A scored application outlives its job.
            raise Conflict("It is already scored and cannot be cancelled.") from None


def submit_application(services: Services, environ: WSGIEnvironment) -> QuickReply:
    """Parse, admit, 202."""
    tenant = services.tenants.current(environ)
    allowance = services.gate.pass_rate(tenant, spent=SENT_AGAIN in environ)
    document = read_document(environ, services.body_limits)
    body = validate_body(document, SubmitApplication)
    submission = application_submission(tenant, body, services.cell)
    admitted = take_in(services, tenant, (submission,), parse_key(environ, document))
    job_id = admitted.ids[0]
    headers = submission_headers(f"/applications/{job_id}", "pending", allowance, admitted.repeated)
    if PREFER in environ:
        ended = ended_reply(services, environ, job_id, services.views.application, headers)
        if ended is not None:
            return ended
    return QuickReply(b'{"id":"%b","status":"pending"}' % job_id.encode(), 202, headers)


def application_submission(
    tenant: TenantProfile, body: SubmitApplication, cell: int = 0
) -> Submission:
    """A validated body as a submission; ``cell``: for its id."""
    work = {"candidate": body.candidate, "role": body.role, "payload": body.payload}
    return Submission(
        id=new_id(cell=cell),
        tenant_id=tenant.id,
        type="score_application",
        pool="medium",
        payload=to_json(work).decode(),
        priority=body.priority,
        execute_at=start_of(body.execute_at, body.not_after, body.jitter),
        not_after=body.not_after,
        candidate=body.candidate,
        role=body.role,
        dependency="claude",
    )


def read_application(services: Services, environ: WSGIEnvironment, text: str) -> QuickReply:
    """The caller's application, or 304."""
    tenant_id = services.tenants.current(environ).id
    view = find_application(services, tenant_id, text)
    if PREFER in environ and wait_for_end(services, environ, view.document["id"], view):
        return poll_reply(find_application(services, tenant_id, text), environ, waited=True)
    return poll_reply(view, environ)


def find_application(services: Services, tenant_id: int, text: str) -> View:
    """The tenant's application; 410 if it was erased."""
    application_id = parse_id(text)
    view = services.views.application(application_id) if application_id else None
    return own_view(view, tenant_id)
