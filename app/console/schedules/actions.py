"""What operators do with a schedule: pause it, resume it, run its job now.

By the rules of ``/schedules``: a resumed schedule counts from now, and a run is a submission like
any other, subject to the tenant's rate and depth.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlsplit

from flask import request
from pydantic_core import from_json
from sqlalchemy import Row
from werkzeug.wrappers import Response

from app.admission.intake import take_in
from app.api.http.query import known_id
from app.api.http.state import write_state
from app.api.routes.schedules import change_of, job_of
from app.api.services import current_services
from app.console.page import done, find_row, route
from app.console.schedules.page import PATH
from app.errors import FairlineError, NotFound
from app.tenants import schedules
from app.tenants.ownership import own

READ_SCHEDULE = """
    SELECT schedule.id::text, schedule.tenant_id, tenant.name AS tenant FROM schedules AS schedule
    JOIN tenants AS tenant ON tenant.id = schedule.tenant_id WHERE schedule.id = %(id)s
"""


@route("POST", "/console/schedules/<schedule_id>/pause")
def post_pause(schedule_id: str) -> Response:
    return set_paused(existing(schedule_id), paused=True)


@route("POST", "/console/schedules/<schedule_id>/resume")
def post_resume(schedule_id: str) -> Response:
    return set_paused(existing(schedule_id), paused=False)


@route("POST", "/console/schedules/<schedule_id>/run")
def post_run(schedule_id: str) -> Response:
    """Submit its job now, without a tick."""
    services, found = current_services(), existing(schedule_id)
    tenant = services.visitors.tenant_named(found.tenant)
    if tenant is None:
        raise NotFound
    try:
        services.gate.pass_rate(tenant)
        with write_state() as engine:
            schedule = own(schedules.read(engine, found.tenant_id, found.id), found.tenant_id)
        payload = from_json(schedule.payload)
        job = job_of(services, tenant.id, schedule.type, payload, schedule.priority)
        (job_id,) = take_in(services, tenant, (job,), None).ids
    except FairlineError as error:
        return back(f"Not run: {explain(error)}")
    return back(f"{schedule.name} of {tenant.name} was submitted as job {job_id}.")


def set_paused(found: Row[Any], *, paused: bool) -> Response:
    """As ``PATCH /schedules/{id}`` does; ticks missed during a pause are not made up for."""
    change = partial(change_of, current_services(), {"paused": paused})
    try:
        with write_state() as engine:
            changed = schedules.change(engine, found.tenant_id, found.id, change)
        schedule = own(changed, found.tenant_id)
    except FairlineError as error:
        return back(f"Not changed: {explain(error)}")
    return back(f"{schedule.name} of {found.tenant} is {'paused' if paused else 'active again'}.")


def existing(schedule_id: str) -> Row[Any]:
    """The schedule's id and tenant."""
    return find_row(READ_SCHEDULE, id=known_id(schedule_id))


def explain(error: FairlineError) -> str:
    return "; ".join(f"{one.field} {one.message}" for one in error.errors) or error.detail


def back(notice: str) -> Response:
    """To the page that the form was on."""
    target = request.form.get("back_to", "")
    return done(target if urlsplit(target).path == PATH else PATH, notice)
