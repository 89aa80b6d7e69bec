"""``/schedules``: work that comes again and again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson
from flask import Blueprint, Response, request
from pydantic_core import from_json

from app.admission import Submission
from app.api import answers, house_answers
from app.api.access import Access, open_to
from app.api.body import parse_body
from app.api.intake import is_large, job_submission, take_in
from app.api.openapi.declared import Answer, described
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
from app.api.query import (
    bad_cursor,
    next_link,
    pack_cursor,
    parse_limit,
    unpack_cursor,
)
from app.api.reply import FIRST_POLL_SECONDS, STATUS_HEADER, Reply, limit_headers
from app.api.schedule_bodies import ChangeSchedule, CreateSchedule
from app.api.schemas import SubmitJob
from app.api.services import Services, services
from app.api.state import patience, read_state
from app.api.times import rfc3339
from app.errors import Conflict, FieldError, NotFound, PayloadTooLarge, ValidationFailed
from app.schedules import store
from app.schedules.cron import BadCron, Rule, UnknownZone, read_rule
from app.schedules.store import Schedule
from app.schedules.ticks import CatchUp, Overlap, Policy
from models.blobs import INLINE_BYTES
from models.ids import new_id, parse_id
from models.session import connection

schedules = Blueprint("schedules", __name__)

PAGE = 50
MOST = 200


@schedules.post("/schedules")
@open_to(Access.TENANT)
@described(
    "Keep a schedule",
    Answer(201, "It is kept.", house_answers.Schedule, (LOCATION,)),
    body=CreateSchedule,
    errors=(Conflict,),
)
def post_schedule() -> Response:
    """Keep a schedule; its name makes a repetition harmless: 409."""
    house = services()
    tenant = house.tenants.current(request.environ)
    body = parse_body(request.environ, CreateSchedule, house.body_limits)
    rule = rule_of(body.cron, body.timezone)
    check_policy(body.overlap, body.catch_up)
    job = job_of(house, tenant.id, body.type, body.payload, body.priority)
    schedule = Schedule(
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
    with patience(house.read_seconds):
        with connection(house.engine) as taken:
            now = store.read_clock(taken)
        made = store.create(
            house.engine, replace(schedule, next_at=first_tick(rule, schedule, now))
        )
    headers = {"Location": f"/schedules/{made.id}"}
    return Reply(orjson.dumps(document_of(made, full=True)), 201, headers)


@schedules.get("/schedules")
@open_to(Access.TENANT)
@described(
    "Your schedules",
    Answer(200, "A page of them.", house_answers.Schedules, (LINK,)),
    query=(page_limit(PAGE, MOST), CURSOR),
)
def get_schedules() -> Response:
    """By name, without their payloads."""
    tenant = services().tenants.current(request.environ)
    limit, after = parse_limit(PAGE, MOST), name_cursor()
    with read_state() as taken:
        found = store.read_page(taken, tenant.id, after, limit + 1)
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
    Answer(200, "The schedule.", house_answers.Schedule),
)
def get_schedule(schedule_id: str) -> Response:
    return Reply(orjson.dumps(document_of(find(services(), schedule_id), full=True)), 200, {})


@schedules.patch("/schedules/<schedule_id>")
@open_to(Access.TENANT)
@described(
    "Pause, resume or change a schedule",
    Answer(200, "The schedule as it is now.", house_answers.Schedule),
    body=ChangeSchedule,
    errors=(Conflict,),
)
def patch_schedule(schedule_id: str) -> Response:
    """Pause, resume or change it. Another time, or a resumption, counts from now on."""
    house = services()
    tenant = house.tenants.current(request.environ)
    body = parse_body(request.environ, ChangeSchedule, house.body_limits)
    given = body.model_dump(include=body.model_fields_set)

    def changed(schedule: Schedule, now: datetime) -> Schedule:
        return change_of(house, schedule, given, now)

    with patience(house.read_seconds):
        found = store.change(house.engine, tenant.id, known_id(schedule_id), changed)
    if found is None:
        raise NotFound
    return Reply(orjson.dumps(document_of(found, full=True)), 200, {})


@schedules.delete("/schedules/<schedule_id>")
@open_to(Access.TENANT)
@described("Remove a schedule", Answer(204, "It is gone."))
def delete_schedule(schedule_id: str) -> Response:
    """No further ticks. Jobs that it made stay."""
    house = services()
    tenant = house.tenants.current(request.environ)
    with patience(house.read_seconds):
        if not store.remove(house.engine, tenant.id, known_id(schedule_id)):
            raise NotFound
    return Response(status=204)


@schedules.post("/schedules/<schedule_id>/run")
@open_to(Access.TENANT)
@described(
    "Run a schedule's job now",
    Answer(
        202,
        "A job of it is kept and will run.",
        answers.AcceptedJob,
        (LOCATION, STATUS_OF_JOB, ASK_AFTER, *RATE_LIMIT),
    ),
    errors=(*SUBMISSION_ERRORS, PayloadTooLarge),
)
def post_run(schedule_id: str) -> Response:
    """One job of it now: a submission like any other, and no tick."""
    house = services()
    tenant = house.tenants.current(request.environ)
    allowance = house.gate.pass_rate(tenant)
    schedule = find(house, schedule_id)
    payload = from_json(schedule.payload)
    job = job_of(house, schedule.tenant_id, schedule.type, payload, schedule.priority)
    (job_id,) = take_in(house, tenant, (job,), None).ids
    headers = {
        "Location": f"/jobs/{job_id}",
        "Retry-After": FIRST_POLL_SECONDS,
        STATUS_HEADER: "queued",
        **limit_headers(allowance),
    }
    return Reply(orjson.dumps({"id": job_id, "status": "queued"}), 202, headers)


def find(house: Services, text: str) -> Schedule:
    """The caller's schedule of this id."""
    tenant = house.tenants.current(request.environ)
    with patience(house.read_seconds):
        found = store.read(house.engine, tenant.id, known_id(text))
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
    house: Services, schedule: Schedule, given: dict[str, Any], now: datetime
) -> Schedule:
    """The schedule with what was given, if it can be so."""
    changed = replace(schedule, **{k: given[k] for k in given if k != "payload"})
    check_policy(Overlap(changed.overlap), CatchUp(changed.catch_up))
    if given.keys() & {"type", "payload"}:
        payload = given["payload"] if "payload" in given else from_json(schedule.payload)
        job = job_of(house, schedule.tenant_id, changed.type, payload, changed.priority)
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


def first_tick(rule: Rule, schedule: Schedule, now: datetime) -> datetime:
    """The first tick from now on; a schedule without any is a mistake."""
    tick = store.first_tick(rule, schedule, now)
    if tick is None:
        raise refused("cron", "no such time ever comes")
    return tick


def check_policy(overlap: Overlap, catch_up: CatchUp) -> None:
    """Refuse what cannot be had together."""
    if Policy(overlap, catch_up).contradicts_itself:
        raise refused("catch_up", "makes jobs that overlap if it is all; take one, or allow that")


def job_of(house: Services, tenant_id: int, name: str, payload: Any, priority: int) -> Submission:
    """A job as each tick makes one, if its type takes the payload."""
    body = SubmitJob.model_construct(type=name, payload=payload, priority=priority)
    job = job_submission(house.types, tenant_id, body)
    if is_large(job.payload):
        raise PayloadTooLarge(f"The payload of a schedule may have at most {INLINE_BYTES:,} bytes.")
    return job


def refused(field: str, message: str) -> ValidationFailed:
    """The error of one field."""
    return ValidationFailed(errors=(FieldError(field, message),))


def document_of(schedule: Schedule, *, full: bool = False) -> dict[str, Any]:
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
