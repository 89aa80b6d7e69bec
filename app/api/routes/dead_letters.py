"""``/dead-letters``: jobs that are given up on, and the way back.

A dead letter is replayed by whoever is first: of concurrent calls each job is brought back by
one. The others count it as skipped.
"""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, request

from app.api.auth.access import Access, open_to
from app.api.http.body import parse_body
from app.api.http.query import (
    next_link,
    pack_cursor,
    parse_choice,
    parse_id_cursor,
    parse_limit,
    parse_name,
)
from app.api.http.reply import Reply
from app.api.http.state import patience, read_state
from app.api.openapi.declared import DeclaredResponse, described
from app.api.openapi.parts import CURSOR, LINK, TYPE, choice, page_limit
from app.api.schemas import answers
from app.api.schemas.requests import Replay
from app.api.services import current_services
from app.errors import FieldError, ValidationFailed
from app.reads.job_pages import read_page
from app.reads.job_views import job_document, more_of
from app.reads.search import Wanted
from models.jobs.ids import parse_id
from models.jobs.replay import replay_ids, replay_matching
from models.jobs.states import FailureClass

dead_letters = Blueprint("dead_letters", __name__)

PAGE = 50
MOST = 200
#: The newest attempts of each, on a page of many.
MOST_ATTEMPTS = 10
CLASSES = tuple(failure.value for failure in FailureClass)


@dead_letters.get("/dead-letters")
@open_to(Access.TENANT)
@described(
    "Jobs that failed for good",
    DeclaredResponse(
        200, "A page of them; with filters it may be short.", answers.DeadLetters, (LINK,)
    ),
    query=(
        TYPE,
        choice("error_class", "Those that died of this only.", CLASSES),
        page_limit(PAGE, MOST),
        CURSOR,
    ),
)
def get_dead_letters() -> Response:
    """Newest job first, each with its error and its latest attempts."""
    tenant_id = current_services().tenants.current(request.environ).id
    wanted = Wanted(
        statuses=("dead",),
        type=parse_name("type"),
        error_class=parse_choice("error_class", CLASSES),
        tenant_id=tenant_id,
    )
    limit, before = parse_limit(PAGE, MOST), parse_id_cursor()
    with read_state() as connection:
        page = read_page(connection, wanted, limit, before, attempts=MOST_ATTEMPTS)
    headers = {}
    if page.cursor is not None:
        following = {**request.args, "limit": limit, "cursor": pack_cursor(page.cursor)}
        headers = next_link("/dead-letters", following)
    letters = [job_document(row) | more_of(row) for row in page.rows]
    return Reply(orjson.dumps({"dead_letters": letters}), 200, headers)


@dead_letters.post("/dead-letters/replay")
@open_to(Access.TENANT)
@described(
    "Replay dead letters",
    DeclaredResponse(200, "What is in the line again.", answers.Replayed),
    body=Replay,
)
def post_replay() -> Response:
    """Bring dead letters back to the line, by their ids or by what they have in common."""
    services = current_services()
    tenant_id = services.tenants.current(request.environ).id
    body = parse_body(request.environ, Replay, services.body_limits)
    if (body.ids is None) == (body.filter is None):
        raise ValidationFailed(errors=(FieldError("(body)", "needs either ids or filter"),))
    if body.ids is not None:
        wanted = canonical(body.ids)
        with patience(services.read_seconds):
            replayed = replay_ids(services.engine, tenant_id, wanted[: body.limit])
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
    document = {"replayed": len(replayed), "skipped": skipped, "ids": replayed}
    return Reply(orjson.dumps(document), 200, {})


def canonical(ids: list[str]) -> list[str]:
    """The ids as rows have them, each once."""
    known = [parse_id(text) for text in ids]
    wrong = [place for place, job_id in enumerate(known) if job_id is None]
    if wrong:
        raise ValidationFailed(
            errors=tuple(FieldError(f"ids.{place}", "is not an id") for place in wrong[:20])
        )
    return list(dict.fromkeys(job_id for job_id in known if job_id is not None))
