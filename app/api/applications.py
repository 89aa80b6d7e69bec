"""``/applications``: submit one, ask for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request
from pydantic_core import to_json

from app.admission import Submission
from app.api.body import parse_body
from app.api.reply import Reply
from app.api.schemas import SubmitApplication
from app.api.services import Services, services
from app.errors import FieldError, NotFound, ValidationFailed
from app.telemetry import current_traceparent
from models.ids import new_id, parse_id
from models.states import TERMINAL

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

applications = Blueprint("applications", __name__)

STATUS_HEADER = "Fairline-Status"
#: Seconds a client should wait before it asks for the first and for the next time.
FIRST_POLL_SECONDS = "2"
POLL_SECONDS = "1"


@applications.post("/applications")
def post_application() -> Response:
    return submit_application(services(), request.environ)


@applications.get("/applications/<application_id>")
def get_application(application_id: str) -> Response:
    """Also answers HEAD, and 304 to a caller who knows the state already."""
    return read_application(services(), request.environ, application_id)


def submit_application(house: Services, environ: WSGIEnvironment) -> Response:
    """Parse, admit, 202."""
    tenant_id = house.tenants.current_id()
    body = parse_body(environ, SubmitApplication, house.body_limits)
    if body.execute_at and body.not_after and body.not_after < body.execute_at:
        raise ValidationFailed(errors=(FieldError("not_after", "is before execute_at"),))
    job_id = new_id()
    work = {"candidate": body.candidate, "role": body.role, "payload": body.payload}
    house.admission.admit(
        Submission(
            id=job_id,
            tenant_id=tenant_id,
            type="score_application",
            pool="medium",
            payload=to_json(work).decode(),
            priority=body.priority,
            execute_at=body.execute_at,
            not_after=body.not_after,
            traceparent=current_traceparent(),
            candidate=body.candidate,
            role=body.role,
        )
    )
    return Reply(
        b'{"id":"%b","status":"pending"}' % job_id.encode(),
        202,
        {
            "Location": f"/applications/{job_id}",
            "Retry-After": FIRST_POLL_SECONDS,
            STATUS_HEADER: "pending",
        },
    )


def read_application(house: Services, environ: WSGIEnvironment, text: str) -> Response:
    """Find it if it is the caller's, say what changed."""
    tenant_id = house.tenants.current_id()
    application_id = parse_id(text)
    view = house.views.application(application_id) if application_id else None
    if view is None or view.tenant_id != tenant_id:
        raise NotFound
    headers = {
        "ETag": view.etag,
        STATUS_HEADER: view.status,
        "Cache-Control": "no-cache",
    }
    if view.job_status not in TERMINAL:
        headers["Retry-After"] = POLL_SECONDS
    known = environ.get("HTTP_IF_NONE_MATCH")
    # Etags are hexadecimal between quotes, so one cannot be a part of another.
    if known is not None and (view.etag in known or known.strip() == "*"):
        return Response(status=304, headers=headers)
    return Reply(orjson.dumps(view.document), 200, headers)
