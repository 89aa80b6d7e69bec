"""``/schedules``: work that comes again and again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson
from flask import Blueprint, Response, request
from pydantic_core import from_json

from app.admission import Submission
from app.admission.intake import is_large, job_submission, take_in
from app.api.auth.access import Access, open_to
from app.api.http.body import parse_body
from app.api.http.query import (
    bad_cursor,
    next_link,
    pack_cursor,
    parse_limit,
    unpack_cursor,
)
from app.api.http.reply import FIRST_POLL_SECONDS, STATUS_HEADER, Reply, limit_headers
from app.api.http.state import patience, read_state
from app.api.openapi.declared import DeclaredResponse, described
from app.api.openapi.parts import (
    ASK_AFTER,
    CURSOR,
    LINK,
    LOCATION,
    RATE_LIMIT,
    STATUS_OF_JOB,
    SUBMISSION_ERRORS,
    page_limit,
)
from app.api.schemas import answers, operator_answers
from app.api.schemas.schedules import ChangeSchedule, CreateSchedule
from app.api.services import Services, current_services
from app.errors import Conflict, FieldError, NotFound, PayloadTooLarge, ValidationFailed
from app.reads.times import rfc3339
from app.tenants import schedules as store
from app.tenants.cron import BadCron, Rule, UnknownZone, read_rule
from app.tenants.schedules import RecurringSchedule
from app.tenants.ticks import CatchUp, Overlap, TickPolicy
from models.blobs import INLINE_BYTES
from models.jobs.ids import new_id, parse_id
from models.store.session import connect

schedules = Blueprint("schedules", __name__)

PAGE = 50
MOST = 200


@schedules.post("/schedules")
@open_to(Access.TENANT)
@described(
    "Keep a schedule",
    DeclaredResponse(201, "It is kept.", operator_answers.Schedule, (LOCATION,)),
    body=CreateSchedule,
    errors=(Conflict,),
)
def post_schedule() -> Response:
    """Keep a schedule; its name makes a repetition harmless: 409."""
    services = current_services()
    tenant = services.tenants.current(request.environ)
    body = parse_body(request.environ, CreateSchedule, services.body_limits)
    rule = rule_of(body.cron, body.timezone)
    check_policy(body.overlap, body.catch_up)
    job = job_of(services, tenant.id, body.type, body.payload, body.priority)
    schedule = RecurringSchedule(
        id=new_id(),
        tenant_id=tenant.id,
        name=body.name,
        cron=rule.cron,
        timezone=body.timezone,
        overlap=body.overlap,
        catch_up=body.catch_up,
        type=job.type,
        payload=job.payload,
        priority=job.priority,
        paused=body.paused,
    )
    with patience(services.read_seconds):
        with connect(services.engine) as connection:
            now = store.read_clock(connection)
        made = store.create(
            services.engine, replace(schedule, next_at=first_tick(rule, schedule, now))
        )
    headers = {"Location": f"/schedules/{made.id}"}
    return Reply(orjson.dumps(document_of(made, full=True)), 201, headers)


@schedules.get("/schedules")
@open_to(Access.TENANT)
@described(
    "Your schedules",
    DeclaredResponse(200, "A page of them.", operator_answers.Schedules, (LINK,)),
    query=(page_limit(PAGE, MOST), CURSOR),
)
def get_schedules() -> Response:
    """By name, without their payloads."""
    tenant = current_services().tenants.current(request.environ)
    limit, after = parse_limit(PAGE, MOST), name_cursor()
    with read_state() as connection:
        found = store.read_page(connection, tenant.id, after, limit + 1)
    headers = {}
    if len(found) > limit:
        cursor = pack_cursor(found[limit - 1].name)
        headers = next_link("/schedules", {"limit": limit, "cursor": cursor})
    listed = [document_of(schedule) for schedule in found[:limit]]
    return Reply(orjson.dumps({"schedules": listed}), 200, headers)


@schedules.get("/schedules/<schedule_id>")
@open_to(Access.TENANT)
@described(
    "A schedule, its next tick and its last job",
    DeclaredResponse(200, "The schedule.", operator_answers.Schedule),
)
def get_schedule(schedule_id: str) -> Response:
    return Reply(
        orjson.dumps(document_of(find(current_services(), schedule_id), full=True)), 200, {}
    )


@schedules.patch("/schedules/<schedule_id>")
@open_to(Access.TENANT)
@described(
    "Pause, resume or change a schedule",
    DeclaredResponse(200, "The schedule as it is now.", operator_answers.Schedule),
    body=ChangeSchedule,
    errors=(Conflict,),
)
def patch_schedule(schedule_id: str) -> Response:
    """Pause, resume or change it. Another time, or a resumption, counts from now on."""
    services = current_services()
    tenant = services.tenants.current(request.environ)
    body = parse_body(request.environ, ChangeSchedule, services.body_limits)
    given = body.model_dump(include=body.model_fields_set)

    def changed(schedule: RecurringSchedule, now: datetime) -> RecurringSchedule:
        return change_of(services, schedule, given, now)

    with patience(services.read_seconds):
        found = store.change(services.engine, tenant.id, known_id(schedule_id), changed)
    if found is None:
        raise NotFound
    return Reply(orjson.dumps(document_of(found, full=True)), 200, {})


@schedules.delete("/schedules/<schedule_id>")
@open_to(Access.TENANT)
@described("Remove a schedule", DeclaredResponse(204, "It is gone."))
def delete_schedule(schedule_id: str) -> Response:
    """No further ticks. Jobs that it made stay."""
    services = current_services()
    tenant = services.tenants.current(request.environ)
    with patience(services.read_seconds):
        if not store.remove(services.engine, tenant.id, known_id(schedule_id)):
            raise NotFound
    return Response(status=204)


@schedules.post("/schedules/<schedule_id>/run")
@open_to(Access.TENANT)
@described(
    "Run a schedule's job now",
    DeclaredResponse(
        202,
        "A job of it is kept and will run.",
        answers.AcceptedJob,
        (LOCATION, STATUS_OF_JOB, ASK_AFTER, *RATE_LIMIT),
    ),
    errors=(*SUBMISSION_ERRORS, PayloadTooLarge),
)
def post_run(schedule_id: str) -> Response:
    """One job of it now: a submission like any other, and no tick."""
    services = current_services()
    tenant = services.tenants.current(request.environ)
    allowance = services.gate.pass_rate(tenant)
    schedule = find(services, schedule_id)
    payload = from_json(schedule.payload)
    job = job_of(services, schedule.tenant_id, schedule.type, payload, schedule.priority)
    (job_id,) = take_in(services, tenant, (job,), None).ids
    headers = {
        "Location": f"/jobs/{job_id}",
        "Retry-After": FIRST_POLL_SECONDS,
        STATUS_HEADER: "queued",
        **limit_headers(allowance),
    }
    return Reply(orjson.dumps({"id": job_id, "status": "queued"}), 202, headers)


def find(services: Services, text: str) -> RecurringSchedule:
    """The caller's schedule of this id."""
    tenant = services.tenants.current(request.environ)
    with patience(services.read_seconds):
        found = store.read(services.engine, tenant.id, known_id(text))
    if found is None:
        raise NotFound
    return found


def known_id(text: str) -> str:
    """The id in a path; what is none names nothing."""
    found = parse_id(text)
    if found is None:
        raise NotFound
    return found


def name_cursor() -> str:
    """``cursor``: the name that the page before ended with."""
    after = unpack_cursor(request.args.get("cursor", ""))
    if "\x00" in after:
        raise bad_cursor()
    return after


def change_of(
    services: Services, schedule: RecurringSchedule, given: dict[str, Any], now: datetime
) -> RecurringSchedule:
    """The schedule with what was given, if it can be so."""
    changed = replace(schedule, **{k: given[k] for k in given if k != "payload"})
    check_policy(Overlap(changed.overlap), CatchUp(changed.catch_up))
    if given.keys() & {"type", "payload"}:
        payload = given["payload"] if "payload" in given else from_json(schedule.payload)
        job = job_of(services, schedule.tenant_id, changed.type, payload, changed.priority)
        changed = replace(changed, payload=job.payload)
    resumed = schedule.paused and not changed.paused
    if resumed or given.keys() & {"cron", "timezone"}:
        rule = rule_of(changed.cron, changed.timezone)
        changed = replace(changed, cron=rule.cron, next_at=first_tick(rule, schedule, now))
    return changed


def rule_of(cron: str, timezone: str) -> Rule:
    """When its ticks come."""
    try:
        return read_rule(cron, timezone)
    except BadCron as error:
        raise refused("cron", str(error)) from None
    except UnknownZone as error:
        raise refused("timezone", str(error)) from None


def first_tick(rule: Rule, schedule: RecurringSchedule, now: datetime) -> datetime:
    """The first tick from now on; a schedule without any is a mistake."""
    tick = store.first_tick(rule, schedule, now)
    if tick is None:
        raise refused("cron", "no such time ever comes")
    return tick


def check_policy(overlap: Overlap, catch_up: CatchUp) -> None:
    """Refuse what cannot be had together."""
    if TickPolicy(overlap, catch_up).contradicts_itself:
        raise refused("catch_up", "makes jobs that overlap if it is all; take one, or allow that")


def job_of(
    services: Services, tenant_id: int, name: str, payload: Any, priority: int
) -> Submission:
    """A job as each tick makes one, if its type takes the payload."""
    job = job_submission(services.types, tenant_id, name, payload, priority=priority)
    if is_large(job.payload):
        raise PayloadTooLarge(f"The payload of a schedule may have at most {INLINE_BYTES:,} bytes.")
    return job


def refused(field: str, message: str) -> ValidationFailed:
    """The error of one field."""
    return ValidationFailed(errors=(FieldError(field, message),))


def document_of(schedule: RecurringSchedule, *, full: bool = False) -> dict[str, Any]:
    """A schedule as its tenant sees it; ``full`` with what may be large."""
    document = {
        "id": schedule.id,
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "overlap": schedule.overlap,
        "catch_up": schedule.catch_up,
        "type": schedule.type,
        "priority": schedule.priority,
        "paused": schedule.paused,
        "next_at": None if schedule.paused else rfc3339(schedule.next_at),
        "last_at": rfc3339(schedule.last_at),
        "last_job_id": schedule.last_job_id,
        "made": schedule.made,
        "skipped": schedule.skipped,
        "created_at": rfc3339(schedule.created_at),
    }
    return document | {"payload": orjson.Fragment(schedule.payload)} if full else document
