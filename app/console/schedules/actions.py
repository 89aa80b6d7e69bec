"""What operators and tenants do with schedules: make, change, pause, resume, run and remove one.

By the rules of ``/schedules``: a resumed schedule counts from now, and a run is a submission like
any other, subject to the tenant's rate and depth. Errors of a form are shown beside its fields,
which keep what was typed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from flask import Response, render_template, request
from sqlalchemy import Row
from werkzeug.wrappers import Response as AnyResponse

from app.api.http.problems import problem_of
from app.api.http.state import write_state
from app.api.routes.schedules import change_of, create_schedule, run_now
from app.api.services import current_services, current_tenant
from app.console.forms import changed_names
from app.console.page import LivePage, PageRequest, done, route
from app.console.schedules.form import parse_form, refused_form
from app.console.schedules.one import ONE
from app.console.schedules.page import SCHEDULES
from app.console.schedules.sides import SIDES, ScheduleSide, read_whole
from app.errors import FairlineError, NotFound, invalid_field
from app.tenants import schedules
from app.tenants.ownership import own
from app.tenants.tenant import TenantProfile
from models.audit import Act


def post_new(side: ScheduleSide) -> AnyResponse:
    """A new schedule: of the tenant that the operator names, or of the one who asks."""
    typed = request.form.to_dict()
    try:
        tenant = named_tenant(typed) if side.of_operators else current_tenant()
        made = create_schedule(current_services(), tenant, parse_form(typed))
    except FairlineError as error:
        return refusal(side, SCHEDULES[side], typed, error)
    return done(f"{side.path}/{made.id}", f"{made.name} of {tenant.name} was created.")


def post_change(side: ScheduleSide, schedule_id: str) -> AnyResponse:
    """As ``PATCH /schedules/{id}`` does with the fields that were changed."""
    typed = request.form.to_dict()
    found = side.find(schedule_id)
    try:
        fields = parse_form(typed).model_dump()
        given = {name: fields[name] for name in fields.keys() & changed_names(typed)}
        change = partial(change_of, current_services(), tenant_of(found), given)
        with write_state() as engine:
            changed = schedules.change(engine, found.tenant_id, found.id, change)
        schedule = own(changed, found.tenant_id)
    except NotFound:
        raise
    except FairlineError as error:
        return refusal(side, ONE[side], typed, error, schedule_id=schedule_id)
    return done(f"{side.path}/{found.id}", f"{schedule.name} of {found.tenant} was changed.")


def post_remove(side: ScheduleSide, schedule_id: str) -> AnyResponse:
    """There are no further ticks. Jobs that it created remain."""
    found = side.find(schedule_id)
    name = read_whole(found).name
    with write_state() as engine:
        if not schedules.remove(engine, found.tenant_id, found.id):
            raise NotFound
    return done(side.path, f"{name} of {found.tenant} was removed. Its jobs remain.")


def post_run(side: ScheduleSide, schedule_id: str) -> AnyResponse:
    """Submit its job now, without a tick."""
    services, found = current_services(), side.find(schedule_id)
    tenant = tenant_of(found)
    try:
        services.gate.pass_rate(tenant)
        schedule = read_whole(found)
        job_id = run_now(services, tenant, schedule)
    except FairlineError as error:
        return back(side, f"Not run: {error.explain()}")
    return back(side, f"{schedule.name} of {tenant.name} was submitted as job {job_id}.")


def set_paused(side: ScheduleSide, schedule_id: str, *, paused: bool) -> AnyResponse:
    """As ``PATCH /schedules/{id}`` does; ticks missed during a pause are not made up for."""
    found = side.find(schedule_id)
    change = partial(change_of, current_services(), tenant_of(found), {"paused": paused})
    try:
        with write_state() as engine:
            changed = schedules.change(engine, found.tenant_id, found.id, change)
        schedule = own(changed, found.tenant_id)
    except FairlineError as error:
        return back(side, f"Not changed: {error.explain()}")
    state = "paused" if paused else "active again"
    return back(side, f"{schedule.name} of {found.tenant} is {state}.")


for _side in SIDES:
    _one = f"{_side.path}/<schedule_id>"
    for _rule, _act, _view in (
        (_side.path, Act.SCHEDULE_CREATE, partial(post_new, _side)),
        (_one, Act.SCHEDULE_CHANGE, partial(post_change, _side)),
        (f"{_one}/remove", Act.SCHEDULE_REMOVE, partial(post_remove, _side)),
        (f"{_one}/run", Act.SCHEDULE_RUN, partial(post_run, _side)),
        (f"{_one}/pause", Act.SCHEDULE_CHANGE, partial(set_paused, _side, paused=True)),
        (f"{_one}/resume", Act.SCHEDULE_CHANGE, partial(set_paused, _side, paused=False)),
    ):
        route("POST", _rule, _side.access, (_act,))(_view)


def tenant_of(found: Row[Any]) -> TenantProfile:
    """The tenant of a schedule."""
    tenant = current_services().visitors.tenant_named(found.tenant)
    if tenant is None:
        raise NotFound
    return tenant


def named_tenant(typed: Mapping[str, str]) -> TenantProfile:
    """The tenant that an operator typed."""
    tenant = current_services().visitors.tenant_named(typed.get("tenant", "").strip())
    if tenant is None:
        raise invalid_field("tenant", "is unknown")
    return tenant


def refusal(
    side: ScheduleSide,
    page: LivePage,
    typed: Mapping[str, str],
    error: FairlineError,
    **values: str,
) -> Response:
    """The page again, with the errors."""
    tenant = None if side.of_operators else current_tenant()
    asked = PageRequest(request.full_path.rstrip("?"), values, request.args, tenant)
    context = page.read(asked) | {"form": refused_form(typed, error)}
    shown = render_template(page.template, **context, asked=asked)
    return Response(shown, problem_of(error).status_code)


def back(side: ScheduleSide, notice: str) -> AnyResponse:
    """To the page that the form was on."""
    target = request.form.get("back_to", "")
    path = urlsplit(target).path
    here = path == side.path or path.startswith(f"{side.path}/")
    return done(target if here else side.path, notice)
