"""What can be done with a schedule: pause it, resume it, run its job now.

As its tenant could, by the rules of ``/schedules``: a resumption counts from now on, and a run
is a submission like any other, held to the tenant's rate and depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from flask import Blueprint, request
from pydantic_core import from_json
from werkzeug.wrappers import Response

from app.api.access import Access, open_to
from app.api.intake import take_in
from app.api.schedules import change_of, job_of, known_id
from app.api.services import services
from app.api.state import patience, read_state
from app.console.done import done
from app.errors import FairlineError, NotFound
from app.schedules import store
from app.schedules.store import Schedule
from app.tenants.tenant import Tenant

schedules_actions = Blueprint("schedules_actions", __name__)

PAGE = "/console/schedules"

READ_OWNER = """
    SELECT tenant.id, tenant.name FROM schedules AS schedule
    JOIN tenants AS tenant ON tenant.id = schedule.tenant_id WHERE schedule.id = %(id)s
"""


@dataclass(frozen=True, slots=True)
class Owned:
    """A schedule's id and whose it is."""

    id: str
    tenant_id: int
    tenant: str


@schedules_actions.post("/console/schedules/<schedule_id>/pause")
@open_to(Access.CONSOLE)
def post_pause(schedule_id: str) -> Response:
    """No ticks from now on."""
    return set_paused(owned(schedule_id), paused=True)


@schedules_actions.post("/console/schedules/<schedule_id>/resume")
@open_to(Access.CONSOLE)
def post_resume(schedule_id: str) -> Response:
    """Ticks again; those of the pause do not come."""
    return set_paused(owned(schedule_id), paused=False)


@schedules_actions.post("/console/schedules/<schedule_id>/run")
@open_to(Access.CONSOLE)
def post_run(schedule_id: str) -> Response:
    """One job of it now, and no tick."""
    house, found = services(), owned(schedule_id)
    tenant = tenant_of(found)
    try:
        house.gate.pass_rate(tenant)
        with patience(house.read_seconds):
            schedule = store.read(house.engine, found.tenant_id, found.id)
        if schedule is None:
            raise NotFound
        payload = from_json(schedule.payload)
        job = job_of(house, tenant.id, schedule.type, payload, schedule.priority)
        (job_id,) = take_in(house, tenant, (job,), None).ids
    except FairlineError as error:
        return back(f"Nothing was run: {said(error)}")
    return back(f"{schedule.name} of {tenant.name} runs now as job {job_id}.")


def set_paused(found: Owned, *, paused: bool) -> Response:
    """As PATCH /schedules/{id} with ``paused`` does it."""
    house = services()

    def changed(schedule: Schedule, now: datetime) -> Schedule:
        return change_of(house, schedule, {"paused": paused}, now)

    try:
        with patience(house.read_seconds):
            schedule = store.change(house.engine, found.tenant_id, found.id, changed)
        if schedule is None:
            raise NotFound
    except FairlineError as error:
        return back(f"Nothing was changed: {said(error)}")
    return back(f"{schedule.name} of {found.tenant} is {'paused' if paused else 'active again'}.")


def owned(schedule_id: str) -> Owned:
    """Whose schedule it is."""
    known = known_id(schedule_id)
    with read_state() as taken:
        row = taken.exec_driver_sql(READ_OWNER, {"id": known}).first()
    if row is None:
        raise NotFound
    return Owned(known, row.id, row.name)


def tenant_of(found: Owned) -> Tenant:
    """The tenant that the job is to be of."""
    tenant = services().visitors.tenant_named(found.tenant)
    if tenant is None:
        raise NotFound
    return tenant


def said(error: FairlineError) -> str:
    """What an error says, with its fields."""
    return "; ".join(f"{one.field} {one.message}" for one in error.errors) or error.detail


def back(notice: str) -> Response:
    """The page that the form was on."""
    target = request.form.get("back_to", "")
    return done(target if urlsplit(target).path == PAGE else PAGE, notice)
