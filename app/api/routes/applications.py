"""``/applications``: submit one, ask for one, withdraw one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import Blueprint, Response, request
from pydantic_core import to_json

from app.admission import Admitted, IdempotencyKey, Submission
from app.admission.intake import start_of, take_in
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
from app.api.http.state import patience
from app.api.openapi.declared import DeclaredResponse, described
from app.api.openapi.parts import (
    ASK_AFTER,
    ASK_AGAIN_AFTER,
    ETAG,
    IDEMPOTENCY_KEY,
    IF_NONE_MATCH,
    LOCATION,
    STATUS_OF_APPLICATION,
    SUBMISSION_ERRORS,
    SUBMITTED,
    unchanged,
)
from app.api.routes.cancelling import cancel_reply
from app.api.schemas import answers
from app.api.schemas.requests import SubmitApplication
from app.api.services import Services, current_services
from app.errors import Conflict, IdempotencyKeyReused, NotFound
from app.reads.job_views import View
from app.tenants.ownership import own
from app.tenants.tenant import TenantProfile
from models.jobs.ids import new_id, parse_id
from models.jobs.states import APPLICATION_STATUS

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

applications = Blueprint("applications", __name__)


@applications.post("/applications")
@open_to(Access.TENANT)
@described(
    "Submit an application",
    DeclaredResponse(
        202,
        "It is kept and will be scored.",
        answers.AcceptedApplication,
        (LOCATION, STATUS_OF_APPLICATION, *SUBMITTED),
    ),
    body=SubmitApplication,
    query=None,
    headers=(IDEMPOTENCY_KEY,),
    errors=(*SUBMISSION_ERRORS, IdempotencyKeyReused),
)
def post_application() -> QuickReply:
    return submit_application(current_services(), request.environ)


@applications.get("/applications/<application_id>")
@open_to(Access.TENANT)
@described(
    "Its status, score and rank",
    DeclaredResponse(
        200, "The application.", answers.Application, (ETAG, STATUS_OF_APPLICATION, ASK_AGAIN_AFTER)
    ),
    unchanged(STATUS_OF_APPLICATION),
    query=None,
    headers=(IF_NONE_MATCH,),
    head=True,
)
def get_application(application_id: str) -> QuickReply:
    """Also answers HEAD, and 304 to a caller who knows the state already."""
    return read_application(current_services(), request.environ, application_id)


@applications.delete("/applications/<application_id>")
@open_to(Access.TENANT)
@described(
    "Withdraw an application",
    DeclaredResponse(
        200, "It will not be scored.", answers.WithdrawnApplication, (STATUS_OF_APPLICATION,)
    ),
    DeclaredResponse(
        202,
        "It is being scored and was asked to stop.",
        answers.StoppingApplication,
        (STATUS_OF_APPLICATION, ASK_AFTER),
    ),
    errors=(Conflict,),
)
def delete_application(application_id: str) -> Response:
    """Withdraw it: at once if it waits, soon if it is being scored."""
    services = current_services()
    tenant_id = services.tenants.current(request.environ).id
    with patience(services.read_seconds):
        view = find_application(services, tenant_id, application_id)
        try:
            return cancel_reply(services, tenant_id, view.document["id"], APPLICATION_STATUS)
        except NotFound:
            # A scored application outlives its job.
            raise Conflict("It is scored already; there is nothing left to cancel.") from None


def submit_application(services: Services, environ: WSGIEnvironment) -> QuickReply:
    """Parse, admit, 202."""
    tenant = services.tenants.current(environ)
    allowance = services.gate.pass_rate(tenant)
    document = read_document(environ, services.body_limits)
    body = fit_body(document, SubmitApplication)
    admitted = take_application(services, tenant, body, parse_key(environ, document))
    job_id = admitted.ids[0]
    headers = {
        "Location": f"/applications/{job_id}",
        "Retry-After": FIRST_POLL_SECONDS,
        STATUS_HEADER: "pending",
        **limit_headers(allowance),
    }
    if admitted.repeated:
        headers[REPLAYED] = "true"
    return QuickReply(b'{"id":"%b","status":"pending"}' % job_id.encode(), 202, headers)


def take_application(
    services: Services, tenant: TenantProfile, body: SubmitApplication, key: IdempotencyKey | None
) -> Admitted:
    """Make a tenant's application durable; its rate was looked at before its body was."""
    work = {"candidate": body.candidate, "role": body.role, "payload": body.payload}
    submission = Submission(
        id=new_id(),
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
    return take_in(services, tenant, (submission,), key)


def read_application(services: Services, environ: WSGIEnvironment, text: str) -> QuickReply:
    """Find it if it is the caller's, say what changed."""
    return poll_reply(
        find_application(services, services.tenants.current(environ).id, text), environ
    )


def find_application(services: Services, tenant_id: int, text: str) -> View:
    """The tenant's application."""
    application_id = parse_id(text)
    return own(services.views.application(application_id) if application_id else None, tenant_id)
