"""``/jobs``: submit one, ask for one, cancel one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request

from app.api.access import Access, open_to
from app.api.body import fit_body, read_document
from app.api.cancelling import cancel_reply
from app.api.idempotency import REPLAYED, parse_key
from app.api.intake import job_submission, status_of, take_in
from app.api.reply import FIRST_POLL_SECONDS, STATUS_HEADER, QuickReply, limit_headers, poll_reply
from app.api.schemas import SubmitJob
from app.api.services import Services, services
from app.errors import NotFound
from app.tenants.ownership import own
from models.ids import parse_id

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

jobs = Blueprint("jobs", __name__)


@jobs.post("/jobs")
@open_to(Access.TENANT)
def post_job() -> QuickReply:
    return submit_job(services(), request.environ)


@jobs.get("/jobs/<job_id>")
@open_to(Access.TENANT)
def get_job(job_id: str) -> QuickReply:
    """Also answers HEAD, and 304 to a caller who knows the state already."""
    return read_job(services(), request.environ, job_id)


@jobs.delete("/jobs/<job_id>")
@open_to(Access.TENANT)
def delete_job(job_id: str) -> Response:
    """Cancel it: at once if it waits, soon if it runs."""
    house = services()
    tenant_id = house.tenants.current(request.environ).id
    known = parse_id(job_id)
    if known is None:
        raise NotFound
    return cancel_reply(house, tenant_id, known)


def submit_job(house: Services, environ: WSGIEnvironment) -> QuickReply:
    """Parse, admit, 202."""
    tenant = house.tenants.current(environ)
    allowance = house.gate.pass_rate(tenant)
    document = read_document(environ, house.body_limits)
    submission = job_submission(house.types, tenant.id, fit_body(document, SubmitJob))
    admitted = take_in(house, tenant, (submission,), parse_key(environ, document))
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


def read_job(house: Services, environ: WSGIEnvironment, text: str) -> QuickReply:
    """Find it if it is the caller's, say what changed."""
    tenant_id = house.tenants.current(environ).id
    job_id = parse_id(text)
    view = own(house.views.job(job_id) if job_id else None, tenant_id)
    return poll_reply(view, environ)
