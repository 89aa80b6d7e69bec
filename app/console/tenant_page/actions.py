"""What a tenant does on its page: replay its dead letters, take its jobs' documents whole.

The same functions as ``POST /dead-letters/replay``, with the id of the tenant who is signed in.
"""

from __future__ import annotations

from flask import Blueprint, Response, request
from werkzeug.wrappers import Response as AnyResponse

from app.api.auth.access import Access, open_to
from app.api.http.state import patience
from app.api.services import current_services
from app.console.done import done
from app.console.jobs.job import read_payload, read_result
from app.console.jobs.job_actions import plain
from app.console.tenant_page.job import own_id
from app.errors import FieldError, ValidationFailed
from models.jobs.ids import parse_id
from models.jobs.replay import replay_ids, replay_matching

tenant_page_actions = Blueprint("tenant_page_actions", __name__)

#: Dead letters that one press of a button brings back.
MOST_REPLAYED = 1_000


@tenant_page_actions.post("/tenant/dead-letters/replay")
@open_to(Access.TENANT_PAGE)
def post_replay() -> AnyResponse:
    """One by its id, or all that have type and class in common."""
    services = current_services()
    tenant_id = services.tenants.current(request.environ).id
    form = request.form
    if "id" in form:
        job_id = parse_id(form["id"])
        with patience(services.read_seconds):
            found = replay_ids(services.engine, tenant_id, [job_id] if job_id else [])
        return done("/tenant#dead-letters", in_words(len(found)))
    job_type, error_class = form.get("type"), form.get("error_class")
    if not (job_type and error_class) or "\0" in job_type + error_class:
        raise ValidationFailed(errors=(FieldError("type", "name a type and a class, or an id"),))
    found = replay_matching(
        services.engine,
        tenant_id,
        limit=MOST_REPLAYED,
        job_type=job_type,
        error_class=error_class,
        patience=lambda: patience(services.read_seconds),
    )
    return done("/tenant#dead-letters", in_words(len(found)))


def in_words(replayed: int) -> str:
    """What has happened."""
    if replayed >= MOST_REPLAYED:
        return f"{replayed} dead letters are in the line again; there may be more of them."
    if replayed == 1:
        return "1 dead letter is in the line again."
    if replayed:
        return f"{replayed} dead letters are in the line again."
    return "Nothing was replayed: somebody was faster."


@tenant_page_actions.get("/tenant/jobs/<job_id>/payload")
@open_to(Access.TENANT_PAGE)
def get_payload(job_id: str) -> Response:
    return plain(read_payload(owned(job_id)))


@tenant_page_actions.get("/tenant/jobs/<job_id>/result")
@open_to(Access.TENANT_PAGE)
def get_result(job_id: str) -> Response:
    return plain(read_result(owned(job_id)))


def owned(job_id: str) -> str:
    """The id, if the job is of the tenant who is signed in."""
    return own_id(job_id, current_services().tenants.current(request.environ).id)
