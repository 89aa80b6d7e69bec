"""``/tenant/jobs/<id>``: a job as its own tenant sees it, and what it does with its dead letters.

A job of another tenant is answered like one that does not exist.
"""

from __future__ import annotations

from typing import Any

from flask import Response, request
from sqlalchemy import Row
from werkzeug.wrappers import Response as AnyResponse

from app.admission.replays import replay
from app.api.auth.access import Access
from app.api.http.query import known_id
from app.api.http.state import write_state
from app.api.schemas.requests import MOST_DISCARDED
from app.api.services import current_services, current_tenant
from app.console.jobs.job import plain_payload, plain_result, read_job
from app.console.page import PageRequest, done, find_row, live_page, route
from app.errors import invalid_field
from app.tenants.ownership import own
from models.audit import Act
from models.jobs import replay_requests
from models.jobs.discard import discard_dead
from models.jobs.ids import parse_id
from models.jobs.replay_requests import ReplayRequest

REPLAYS = (Act.JOB_REPLAY, Act.REPLAY_REQUEST)
READ_OWNER = "SELECT tenant_id FROM jobs WHERE id = %(id)s::uuid"


def own_id(text: str, tenant_id: int) -> str:
    """The id of a job of this tenant; NotFound for any other."""
    job_id = parse_id(text)
    own(find_row(READ_OWNER, id=job_id) if job_id else None, tenant_id)
    assert job_id is not None
    return job_id


def read(asked: PageRequest) -> dict[str, Any]:
    own_id(asked.values["job_id"], asked.own.id)
    return {"tenant": asked.own, **read_job(asked)}


@route("GET", "/tenant/jobs/<job_id>/payload", Access.TENANT_PAGE)
def get_payload(job_id: str) -> Response:
    return plain_payload(own_id(job_id, current_tenant().id))


@route("GET", "/tenant/jobs/<job_id>/result", Access.TENANT_PAGE)
def get_result(job_id: str) -> Response:
    return plain_result(own_id(job_id, current_tenant().id))


@route("POST", "/tenant/dead-letters/replay", Access.TENANT_PAGE, REPLAYS)
def post_replay() -> AnyResponse:
    """One by its id, or all of a type and error class, as ``POST /dead-letters/replay`` does."""
    services = current_services()
    replayed = replay(services.engine, services.tenant_limits, chosen(), write_state)
    return done("/tenant#dead-letters", describe(replayed))


@route("POST", "/tenant/dead-letters/discard", Access.TENANT_PAGE, (Act.JOB_DISCARD,))
def post_discard() -> AnyResponse:
    """One by its id, or those of a type and error class, as ``POST /dead-letters/discard`` does."""
    wanted = chosen()
    discarded = discard_dead(
        current_services().engine,
        wanted.tenant_id,
        wanted.ids,
        limit=None if wanted.ids else MOST_DISCARDED,
        job_type=wanted.type,
        error_class=wanted.error_class,
        bounded=write_state,
    )
    current_services().gate.charge_requests(current_tenant(), len(discarded))
    notice = f"{counted(len(discarded), 'dead letter')} discarded."
    if len(discarded) == MOST_DISCARDED:
        notice += " There may be more: press again."
    return done("/tenant#dead-letters", notice)


def chosen() -> ReplayRequest:
    """The tenant's dead letters that a form names."""
    form, tenant_id = request.form, current_tenant().id
    if "id" in form:
        job_id = parse_id(form["id"])
        return ReplayRequest(tenant_id, (job_id,) if job_id else ())
    job_type, error_class = form.get("type"), form.get("error_class")
    if not (job_type and error_class) or "\0" in job_type + error_class:
        raise invalid_field("type", "give a type and a class, or an id")
    return ReplayRequest(tenant_id, type=job_type, error_class=error_class)


@route("POST", "/tenant/replays/<replay_id>/cancel", Access.TENANT_PAGE, (Act.REPLAY_CANCEL,))
def post_cancel_replay(replay_id: str) -> AnyResponse:
    """What it has queued stays queued."""
    with write_state() as engine:
        found = own(replay_requests.read(engine, known_id(replay_id)), current_tenant().id)
        replay_requests.cancel(engine, found.id)
    return done("/tenant#dead-letters", "The replay is cancelled.")


def describe(replayed: list[str] | Row[Any]) -> str:
    if not isinstance(replayed, list):
        jobs = counted(replayed.total, "dead letter")
        return f"{jobs} to be queued again as fast as your limits allow: see the progress."
    if not replayed:
        return "Nothing was replayed: it is no longer a dead letter."
    return f"{counted(len(replayed), 'dead letter')} queued again."


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


TENANT_JOB = live_page(
    "/tenant/jobs/<job_id>", "console/tenant-job.html", read, access=Access.TENANT_PAGE
)
