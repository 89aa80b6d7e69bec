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

from app.admission.intake import take_in
from app.api.auth.access import Access, open_to
from app.api.http.query import known_id
from app.api.http.state import patience, read_state
from app.api.routes.schedules import change_of, job_of
from app.api.services import current_services
from app.console.done import done
from app.errors import FairlineError, NotFound
from app.tenants import schedules
from app.tenants.schedules import RecurringSchedule
from app.tenants.tenant import TenantProfile

schedules_actions = Blueprint("schedules_actions", __name__)

PAGE = "/console/schedules"

READ_OWNER = """
    SELECT tenant.id, tenant.name FROM schedules AS schedule
    JOIN tenants AS tenant ON tenant.id = schedule.tenant_id WHERE schedule.id = %(id)s
"""


@dataclass(frozen=True, slots=True)
class OwnedSchedule:
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
    services, found = current_services(), owned(schedule_id)
    tenant = tenant_of(found)
    try:
        services.gate.pass_rate(tenant)
        with patience(services.read_seconds):
            schedule = schedules.read(services.engine, found.tenant_id, found.id)
        if schedule is None:
            raise NotFound
        payload = from_json(schedule.payload)
        job = job_of(services, tenant.id, schedule.type, payload, schedule.priority)
        (job_id,) = take_in(services, tenant, (job,), None).ids
    except FairlineError as error:
        return back(f"Nothing was run: {said(error)}")
    return back(f"{schedule.name} of {tenant.name} runs now as job {job_id}.")


def set_paused(found: OwnedSchedule, *, paused: bool) -> Response:
    """As PATCH /schedules/{id} with ``paused`` does it."""
    services = current_services()

    def changed(schedule: RecurringSchedule, now: datetime) -> RecurringSchedule:
        return change_of(services, schedule, {"paused": paused}, now)

    try:
        with patience(services.read_seconds):
            schedule = schedules.change(services.engine, found.tenant_id, found.id, changed)
        if schedule is None:
            raise NotFound
    except FairlineError as error:
        return back(f"Nothing was changed: {said(error)}")
    return back(f"{schedule.name} of {found.tenant} is {'paused' if paused else 'active again'}.")


def owned(schedule_id: str) -> OwnedSchedule:
    """Whose schedule it is."""
    known = known_id(schedule_id)
    with read_state() as connection:
        row = connection.exec_driver_sql(READ_OWNER, {"id": known}).first()
    if row is None:
        raise NotFound
    return OwnedSchedule(known, row.id, row.name)


def tenant_of(found: OwnedSchedule) -> TenantProfile:
    """The tenant that the job is to be of."""
    tenant = current_services().visitors.tenant_named(found.tenant)
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
