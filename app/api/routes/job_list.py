"""``GET /jobs`` and ``/dead-letters``: pages of a tenant's jobs, newest first, and replay.

Each request examines a bounded number of jobs: a page may be short, or empty, and still have a
next one. Of concurrent replays of the same job one succeeds; the others count it as skipped.
"""

from __future__ import annotations

from flask import Blueprint, Response

from app.api.http.body import parse_body
from app.api.http.query import next_link, parse_choice, parse_cursor, parse_limit, parse_name
from app.api.http.reply import Reply
from app.api.http.state import read_state, write_state
from app.api.openapi.declared import LINK, POOL, TYPE, Returns, choice, for_tenants, paging
from app.api.schemas import answers
from app.api.schemas.requests import Replay
from app.api.services import current_services, current_tenant
from app.errors import FieldError, ValidationFailed, invalid_field
from app.reads.job_pages import read_page
from app.reads.job_views import job_document, more_of
from app.reads.search import Wanted
from models.jobs.ids import parse_id
from models.jobs.replay import replay_ids, replay_matching
from models.jobs.states import FailureClass, JobStatus
from tasks.registry import MOST_ERRORS

job_list = Blueprint("job_list", __name__)
dead_letters = Blueprint("dead_letters", __name__)

PAGE = 50
MOST = 500
MOST_DEAD_LETTERS = 200
#: Newest attempts shown for each dead letter of a page.
MOST_ATTEMPTS = 10
STATUSES = tuple(status.value for status in JobStatus)
CLASSES = tuple(failure.value for failure in FailureClass)
STATUS = choice("status", "Only jobs with this status.", STATUSES)
ERROR_CLASS = choice("error_class", "Only jobs that failed with this class of error.", CLASSES)


@job_list.get("/jobs")
@for_tenants(
    "Your jobs, newest first",
    Returns(200, answers.Jobs, (LINK,)),
    query=(STATUS, TYPE, POOL, *paging(PAGE, MOST)),
)
def get_jobs() -> Response:
    """Without results and attempts, which may be large. A page with filters may be short."""
    tenant_id = current_tenant().id
    status = parse_choice("status", STATUSES)
    wanted = Wanted(
        statuses=(status,) if status else (),
        type=parse_name("type"),
        pool=parse_name("pool"),
        tenant_id=tenant_id,
    )
    limit, before = parse_limit(PAGE, MOST), parse_cursor(parse_id)
    with read_state() as connection:
        page = read_page(connection, wanted, limit, before)
    entries = [job_document(row) for row in page.rows]
    return Reply({"jobs": entries}, 200, next_link(limit, page.cursor))


@dead_letters.get("/dead-letters")
@for_tenants(
    "Jobs that failed for good",
    Returns(200, answers.DeadLetters, (LINK,)),
    query=(TYPE, ERROR_CLASS, *paging(PAGE, MOST_DEAD_LETTERS)),
)
def get_dead_letters() -> Response:
    """Newest job first, each with its error and its latest attempts."""
    tenant_id = current_tenant().id
    wanted = Wanted(
        statuses=("dead",),
        type=parse_name("type"),
        error_class=parse_choice("error_class", CLASSES),
        tenant_id=tenant_id,
    )
    limit, before = parse_limit(PAGE, MOST_DEAD_LETTERS), parse_cursor(parse_id)
    with read_state() as connection:
        page = read_page(connection, wanted, limit, before, attempts=MOST_ATTEMPTS)
    letters = [job_document(row) | more_of(row) for row in page.rows]
    return Reply({"dead_letters": letters}, 200, next_link(limit, page.cursor))


@dead_letters.post("/dead-letters/replay")
@for_tenants("Replay dead letters", Returns(200, answers.Replayed), body=Replay)
def post_replay() -> Response:
    """Queues dead letters again, selected by id or by a filter."""
    services, tenant_id = current_services(), current_tenant().id
    body = parse_body(Replay)
    if (body.ids is None) == (body.filter is None):
        raise invalid_field("(body)", "must have either ids or filter")
    skipped = 0
    if body.filter is not None:
        replayed = replay_matching(
            services.engine,
            tenant_id,
            before=body.filter.before,
            limit=body.limit,
            job_type=body.filter.type,
            error_class=body.filter.error_class,
            bounded=write_state,
        )
    else:
        wanted = canonical(body.ids or [])
        with write_state() as engine:
            replayed = replay_ids(engine, tenant_id, wanted[: body.limit])
        skipped = len(wanted) - len(replayed)
    return Reply({"replayed": len(replayed), "skipped": skipped, "ids": replayed})


def canonical(ids: list[str]) -> list[str]:
    """The ids as rows have them, without duplicates."""
    known = {place: parse_id(text) for place, text in enumerate(ids)}
    wrong = [place for place, job_id in known.items() if job_id is None]
    if wrong:
        raise ValidationFailed(
            errors=tuple(FieldError(f"ids.{n}", "is not an id") for n in wrong[:MOST_ERRORS])
        )
    return list(dict.fromkeys(job_id for job_id in known.values() if job_id is not None))
