"""``/schedules``: recurring jobs."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import orjson
from flask import Blueprint, Response
from pydantic_core import from_json

from app.admission import Submission
from app.admission.intake import is_large, job_submission, take_in
from app.api.http.body import parse_body
from app.api.http.query import known_id, next_link, parse_cursor, parse_limit
from app.api.http.reply import Reply, fields_of, submission_headers
from app.api.http.state import read_standby, write_state
from app.api.http.sub_request import current_part
from app.api.openapi import declared
from app.api.openapi.declared import LAG, LINK, LOCATION, Returns, for_tenants, paging
from app.api.schemas import answers
from app.api.schemas.requests import ChangeSchedule, CreateSchedule
from app.api.services import Services, current_services, current_tenant
from app.errors import Conflict, ContentUnreadable, NotFound, PayloadTooLarge, invalid_field
from app.tenants import schedules as store
from app.tenants.allowed_types import require_types
from app.tenants.cron import BadCron, Rule, UnknownZone, read_rule
from app.tenants.ownership import own
from app.tenants.schedules import RecurringSchedule
from app.tenants.scopes import Scope
from app.tenants.tenant import TenantProfile
from app.tenants.ticks import CatchUp, Overlap, TickPolicy
from models.audit import Act, record_first
from models.blobs import INLINE_BYTES
from models.jobs.ids import new_id
from models.store.errors import StateStoreError
from models.store.session import connect

logger = logging.getLogger(__name__)

schedules = Blueprint("schedules", __name__)

PAGE = 50
MOST = 200


@schedules.post("/schedules")
@for_tenants(
    Scope.SUBMIT,
    "Create a schedule",
    Returns(201, answers.Schedule, (LOCATION,)),
    body=CreateSchedule,
    errors=(Conflict,),
    acts=(Act.SCHEDULE_CREATE,),
)
def post_schedule() -> Response:
    """Names are unique, so repeating the request is harmless: 409."""
    body, tenant = parse_body(CreateSchedule), current_tenant()
    if current_part().only_name:
        return check_name_only(tenant, body.name, new_id())
    made = create_schedule(current_services(), tenant, body)
    return Reply(document_of(made, full=True), 201, {"Location": f"/schedules/{made.id}"})


@schedules.get("/schedules")
@for_tenants(
    Scope.READ,
    "Your schedules",
    Returns(200, answers.Schedules, (LINK, LAG)),
    query=paging(PAGE, MOST),
)
def get_schedules() -> Response:
    """By name, without their payloads."""
    tenant, limit = current_tenant(), parse_limit(PAGE, MOST)
    after = parse_cursor(lambda name: None if "\x00" in name else name) or ""
    with read_standby() as connection:
        found = store.read_page(connection, tenant.id, after, limit + 1)
    listed = [document_of(schedule) for schedule in found[:limit]]
    last = found[limit - 1].name if len(found) > limit else None
    return Reply({"schedules": listed}, 200, next_link(limit, last))


@schedules.get("/schedules/<schedule_id>")
@for_tenants(
    Scope.READ,
    "A schedule, its next tick and its last job",
    Returns(200, answers.Schedule),
    errors=(ContentUnreadable,),
)
def get_schedule(schedule_id: str) -> Response:
    return Reply(document_of(find(schedule_id), full=True))


@schedules.patch("/schedules/<schedule_id>")
@for_tenants(
    Scope.SUBMIT,
    "Pause, resume or change a schedule",
    Returns(200, answers.Schedule),
    body=ChangeSchedule,
    errors=(Conflict, ContentUnreadable),
    acts=(Act.SCHEDULE_CHANGE,),
)
def patch_schedule(schedule_id: str) -> Response:
    """After a change of its time, or when resumed, ticks count from now on.

    The same cron and time zone are no change. Ticks that were due and are dropped by a change
    or a pause are counted in `skipped` and reported as the event `schedule_missed`.
    """
    services, tenant = current_services(), current_tenant()
    body = parse_body(ChangeSchedule)
    if current_part().only_name:
        return check_name_only(tenant, body.name, known_id(schedule_id))
    change = partial(change_of, services, tenant, body.model_dump(include=body.model_fields_set))
    with write_state() as engine:
        found = store.change(engine, tenant.id, known_id(schedule_id), change)
    return Reply(document_of(own(found, tenant.id), full=True))


@schedules.delete("/schedules/<schedule_id>")
@for_tenants(Scope.SUBMIT, "Remove a schedule", Returns(204), acts=(Act.SCHEDULE_REMOVE,))
def delete_schedule(schedule_id: str) -> Response:
    """There are no further ticks. Jobs that it created remain."""
    tenant = current_tenant()
    with write_state() as engine:
        if not store.remove(engine, tenant.id, known_id(schedule_id)):
            raise NotFound
    return Response(status=204)


@schedules.post("/schedules/<schedule_id>/run")
@for_tenants(
    Scope.SUBMIT,
    "Run a schedule's job now",
    Returns(
        202,
        answers.AcceptedJob,
        (LOCATION, declared.STATUS_OF_JOB, declared.ASK_AFTER, *declared.RATE_LIMIT),
    ),
    errors=(*declared.SUBMISSION_ERRORS, PayloadTooLarge, ContentUnreadable),
    acts=(Act.SCHEDULE_RUN,),
)
def post_run(schedule_id: str) -> Response:
    """Submits one of its jobs, in addition to its ticks."""
    services, tenant = current_services(), current_tenant()
    allowance = services.gate.pass_rate(tenant)
    job_id = run_now(services, tenant, find(schedule_id))
    headers = submission_headers(f"/jobs/{job_id}", "queued", allowance)
    return Reply({"id": job_id, "status": "queued"}, 202, headers)


def check_name_only(tenant: TenantProfile, name: str, schedule_id: str) -> Response:
    """Conflict if another schedule here has this name; it is created or changed in another cell."""
    with write_state() as engine:
        store.require_free_name(engine, tenant.id, name, schedule_id)
    return Response(status=204)


def find(text: str) -> RecurringSchedule:
    """The caller's schedule of this id, or 404."""
    tenant = current_tenant()
    with write_state() as engine:
        return own(store.read(engine, tenant.id, known_id(text)), tenant.id)


def create_schedule(
    services: Services, tenant: TenantProfile, body: CreateSchedule
) -> RecurringSchedule:
    """A new schedule of the tenant, if it is valid."""
    rule = rule_of(body.cron, body.timezone)
    check_policy(body.overlap, body.catch_up)
    job = job_of(services, tenant, body.type, body.payload, body.priority)
    given = body.model_dump() | {"cron": rule.cron, "payload": job.payload}
    schedule = RecurringSchedule(id=new_id(), tenant_id=tenant.id, **given)
    with write_state() as engine:
        with connect(engine) as connection:
            now = store.read_clock(connection)
        return store.create(engine, replace(schedule, next_at=first_tick(rule, schedule, now)))


def run_now(services: Services, tenant: TenantProfile, schedule: RecurringSchedule) -> str:
    """Submit the schedule's job; its id. A crash before it is noted leaves a job like any other."""
    payload = from_json(schedule.payload)
    job = job_of(services, tenant, schedule.type, payload, schedule.priority)
    with write_state() as engine:
        after = {"job_id": job.id}
        record_first(engine, Act.SCHEDULE_RUN, schedule.id, tenant=tenant.name, after=after)
    (job_id,) = take_in(services, tenant, (job,), None).ids
    try:
        with write_state() as engine:
            store.note_run(engine, schedule, job_id)
    except StateStoreError as error:  # it is accepted, which must not become an error
        logger.warning("job %s of a schedule is not in its history: %s", job_id, error)
    return job_id


def change_of(
    services: Services,
    tenant: TenantProfile,
    given: dict[str, Any],
    schedule: RecurringSchedule,
    now: datetime,
) -> RecurringSchedule:
    """The schedule with the given fields, if they are valid together."""
    changed = replace(schedule, **{k: given[k] for k in given if k != "payload"})
    check_policy(Overlap(changed.overlap), CatchUp(changed.catch_up))
    if given.keys() & {"type", "payload"}:
        payload = given["payload"] if "payload" in given else from_json(schedule.payload)
        job = job_of(services, tenant, changed.type, payload, changed.priority)
        changed = replace(changed, payload=job.payload)
    resumed = schedule.paused and not changed.paused
    if resumed or given.keys() & {"cron", "timezone"}:
        rule = rule_of(changed.cron, changed.timezone)
        changed = replace(changed, cron=rule.cron)
        # Sent again as they are, they change nothing: a tick that is due stays due.
        if resumed or (changed.cron, changed.timezone) != (schedule.cron, schedule.timezone):
            changed = replace(changed, next_at=first_tick(rule, schedule, now))
    return changed


def rule_of(cron: str, timezone: str) -> Rule:
    """The parsed rule of its ticks."""
    try:
        return read_rule(cron, timezone)
    except BadCron as error:
        raise invalid_field("cron", str(error)) from None
    except UnknownZone as error:
        raise invalid_field("timezone", str(error)) from None


def first_tick(rule: Rule, schedule: RecurringSchedule, now: datetime) -> datetime:
    """The first tick from now on; a schedule without ticks is an error."""
    tick = store.first_tick(rule, schedule, now)
    if tick is None:
        raise invalid_field("cron", "no such time ever comes")
    return tick


def check_policy(overlap: Overlap, catch_up: CatchUp) -> None:
    """Reject contradictory settings."""
    if TickPolicy(overlap, catch_up).contradicts_itself:
        raise invalid_field(
            "catch_up", "all would create overlapping jobs; use one, or allow overlap"
        )


def job_of(
    services: Services, tenant: TenantProfile, name: str, payload: Any, priority: int
) -> Submission:
    """The job of a tick, if the tenant may submit its type, which accepts the payload."""
    job = job_submission(services.types, tenant.id, name, payload, priority=priority)
    require_types(tenant.types, (name,))
    if is_large(job.payload):
        raise PayloadTooLarge(f"A schedule's payload must not exceed {INLINE_BYTES:,} bytes.")
    return job


def document_of(schedule: RecurringSchedule, *, full: bool = False) -> dict[str, Any]:
    """A schedule as its tenant sees it; ``full``: with its payload."""
    document = fields_of(answers.ScheduleEntry, schedule)
    if schedule.paused:
        document["next_at"] = None
    return document | {"payload": orjson.Fragment(schedule.payload)} if full else document
