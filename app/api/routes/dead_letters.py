"""``/dead-letters``: jobs that failed for good, and their replay.

Of concurrent replays of the same job one succeeds; the others count it as skipped.
"""

from __future__ import annotations

from flask import Blueprint, Response

from app.api.auth.access import Access
from app.api.http.body import parse_body
from app.api.http.query import next_link, parse_choice, parse_cursor, parse_limit, parse_name
from app.api.http.reply import Reply
from app.api.http.state import patience, read_state, write_state
from app.api.openapi.declared import Operation, Returns
from app.api.openapi.parts import CURSOR, LINK, TYPE, choice, page_limit
from app.api.schemas import answers
from app.api.schemas.requests import Replay
from app.api.services import current_services, current_tenant
from app.errors import FieldError, ValidationFailed, invalid_field
from app.field_errors import MOST_ERRORS
from app.reads.job_pages import Filter, page_statement, read_page
from app.reads.job_views import JOB_COLUMNS, MORE_COLUMNS, attempts_join, job_document, more_of
from models.jobs.ids import parse_id
from models.jobs.replay import replay_ids, replay_matching
from models.jobs.states import FailureClass

dead_letters = Blueprint("dead_letters", __name__)

PAGE = 50
MOST = 200
#: Newest attempts shown for each entry of a page.
MOST_ATTEMPTS = 10
CLASSES = tuple(failure.value for failure in FailureClass)

LIST_DEAD_LETTERS = page_statement(
    f"{JOB_COLUMNS}, {MORE_COLUMNS}", attempts_join(MOST_ATTEMPTS), dead=True
)


@dead_letters.get("/dead-letters")
@Operation(
    Access.TENANT,
    "Jobs that failed for good",
    Returns(200, "A page; with filters it may be short.", answers.DeadLetters, (LINK,)),
    query=(
        TYPE,
        choice("error_class", "Only jobs that failed with this class of error.", CLASSES),
        page_limit(PAGE, MOST),
        CURSOR,
    ),
)
def get_dead_letters() -> Response:
    """Newest job first, each with its error and its latest attempts."""
    tenant_id = current_tenant().id
    wanted = Filter(type=parse_name("type"), error_class=parse_choice("error_class", CLASSES))
    limit, before = parse_limit(PAGE, MOST), parse_cursor(parse_id)
    with read_state() as connection:
        page = read_page(connection, LIST_DEAD_LETTERS, tenant_id, wanted, limit, before)
    letters = [job_document(row) | more_of(row) for row in page.rows]
    return Reply({"dead_letters": letters}, 200, next_link(limit, page.cursor))


@dead_letters.post("/dead-letters/replay")
@Operation(
    Access.TENANT,
    "Replay dead letters",
    Returns(200, "The jobs that are queued again.", answers.Replayed),
    body=Replay,
)
def post_replay() -> Response:
    """Queues dead letters again, selected by id or by a filter."""
    services, tenant_id = current_services(), current_tenant().id
    body = parse_body(Replay)
    if (body.ids is None) == (body.filter is None):
        raise invalid_field("(body)", "must have either ids or filter")
    if body.ids is not None:
        wanted = canonical(body.ids)
        with write_state() as engine:
            replayed = replay_ids(engine, tenant_id, wanted[: body.limit])
        skipped = len(wanted) - len(replayed)
    else:
        assert body.filter is not None
        replayed = replay_matching(
            services.engine,
            tenant_id,
            before=body.filter.before,
            limit=body.limit,
            job_type=body.filter.type,
            error_class=body.filter.error_class,
            patience=lambda: patience(services.read_seconds),
        )
        skipped = 0
    return Reply({"replayed": len(replayed), "skipped": skipped, "ids": replayed})


def canonical(ids: list[str]) -> list[str]:
    """The ids as rows have them, without duplicates."""
    known = [parse_id(text) for text in ids]
    wrong = [place for place, job_id in enumerate(known) if job_id is None]
    if wrong:
        raise ValidationFailed(
            errors=tuple(
                FieldError(f"ids.{place}", "is not an id") for place in wrong[:MOST_ERRORS]
            )
        )
    return list(dict.fromkeys(job_id for job_id in known if job_id is not None))
