"""``/dead-letters``: jobs that failed for good, newest first, and their replay or discard.

A page may be short, as in :mod:`app.api.routes.job_list`. Of concurrent replays of the same job one
succeeds; the others count it as skipped. What the tenant's limits have no room for is replayed in
the background.
"""

from __future__ import annotations

from flask import Blueprint, Response

from app.admission.replays import replay
from app.api.http.body import parse_body
from app.api.http.query import (
    known_id,
    next_link,
    parse_choice,
    parse_cursor,
    parse_limit,
    parse_name,
    parse_partial,
)
from app.api.http.reply import POLL_SECONDS, Reply, fields_of
from app.api.http.state import note_waited, read_standby, write_state
from app.api.http.sub_request import current_part
from app.api.http.turns import in_turns, long_read
from app.api.openapi.declared import (
    ASK_AFTER,
    ASK_AGAIN_AFTER,
    LAG,
    LINK,
    LOCATION,
    MISSING,
    PARTIAL,
    TYPE,
    Returns,
    choice,
    for_tenants,
    paging,
)
from app.api.routes.job_list import PAGE
from app.api.schemas import answers
from app.api.schemas.requests import Discard, Replay, ReplayFilter
from app.api.services import current_services, current_tenant
from app.errors import Conflict, FieldError, ValidationFailed, invalid_field
from app.reads.job_pages import read_page
from app.reads.job_views import job_document, more_of
from app.reads.search import Wanted
from app.tenants.ownership import own
from app.tenants.scopes import Scope
from models.audit import Act
from models.jobs import replay_requests
from models.jobs.discard import discard_dead
from models.jobs.ids import parse_id
from models.jobs.replay_requests import ReplayRequest
from models.jobs.states import FailureClass
from tasks.errors_of_schema import MOST_ERRORS

dead_letters = Blueprint("dead_letters", __name__)

MOST_DEAD_LETTERS = 200
#: Newest attempts shown for each dead letter of a page.
MOST_ATTEMPTS = 10
CLASSES = tuple(failure.value for failure in FailureClass)
ERROR_CLASS = choice("error_class", "Only jobs that failed with this class of error.", CLASSES)


@dead_letters.get("/dead-letters")
@for_tenants(
    Scope.READ,
    "Jobs that failed for good",
    Returns(200, answers.DeadLetters, (LINK, LAG, MISSING)),
    query=(TYPE, ERROR_CLASS, PARTIAL, *paging(PAGE, MOST_DEAD_LETTERS)),
)
@long_read
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
    parse_partial()
    with read_standby() as connection:
        page = read_page(connection, wanted, limit, before, attempts=MOST_ATTEMPTS)
    letters = [job_document(row) | more_of(row) for row in in_turns(page.rows)]
    return Reply({"dead_letters": letters}, 200, next_link(limit, page.cursor))


@dead_letters.post("/dead-letters/replay")
@for_tenants(
    Scope.SUBMIT,
    "Replay dead letters",
    Returns(200, answers.Replayed),
    also=(Returns(202, answers.ReplayProgress, (LOCATION, ASK_AFTER)),),
    body=Replay,
    errors=(Conflict,),
    acts=(Act.JOB_REPLAY, Act.REPLAY_REQUEST),
)
def post_replay() -> Response:
    """Queues dead letters again, selected by id or by a filter: at once if your rate and queue
    depth have room for all of them, else in the background (202). A request that is equal to a
    running one returns that; 409 if ten others are running."""
    return replay_in_turn(parse_body(Replay))  # which may take its time to arrive


@long_read
def replay_in_turn(body: Replay) -> Response:
    """Replay what was asked for."""
    note_waited(0.0)  # for its turn: it has as long as any other change
    services = current_services()
    ids, request = chosen(body)
    replayed = replay(services.engine, services.tenant_limits, request, write_state)
    if isinstance(replayed, list):
        skipped = len(ids) - len(replayed) if ids else 0
        return Reply({"replayed": len(replayed), "skipped": skipped, "ids": replayed})
    headers = {"Location": f"/dead-letters/replays/{replayed.id}", "Retry-After": POLL_SECONDS}
    return Reply(fields_of(answers.ReplayProgress, replayed), 202, headers)


@dead_letters.post("/dead-letters/discard")
@for_tenants(
    Scope.SUBMIT,
    "Discard dead letters",
    Returns(200, answers.Discarded),
    body=Discard,
    acts=(Act.JOB_DISCARD,),
)
def post_discard() -> Response:
    """Selected by id or by a filter. They become `cancelled`, keep their error, and cannot be
    replayed. A filter may match more than the limit: repeat the request until it discards none.
    Each counts as one request for your rate."""
    return discard_in_turn(parse_body(Discard))


@long_read
def discard_in_turn(body: Discard) -> Response:
    """Discard what was asked for."""
    note_waited(0.0)
    ids, request = chosen(body)
    discarded = discard_dead(
        current_services().engine,
        request.tenant_id,
        request.ids,
        limit=len(request.ids) if request.ids else body.limit,
        before=request.before,
        job_type=request.type,
        error_class=request.error_class,
        bounded=write_state,
    )
    current_services().gate.charge_requests(current_tenant(), len(discarded))
    skipped = len(ids) - len(discarded) if ids else 0
    return Reply({"discarded": len(discarded), "skipped": skipped, "ids": discarded})


def chosen(body: Replay | Discard) -> tuple[list[str] | None, ReplayRequest]:
    """The ids that were given, if they were, and which dead letters of the tenant are meant."""
    if (body.ids is None) == (body.filter is None):
        raise invalid_field("(body)", "must have either ids or filter")
    asked = body.filter or ReplayFilter()
    ids = None if body.ids is None else canonical(body.ids)
    return ids, ReplayRequest(
        current_tenant().id,
        None if ids is None else tuple(ids[: body.limit]),
        asked.type,
        asked.error_class,
        asked.before,
        None if ids else body.limit,
        current_part().replay_id,
    )


@dead_letters.get("/dead-letters/replays/<replay_id>")
@for_tenants(
    Scope.READ, "The progress of a replay", Returns(200, answers.ReplayProgress, (ASK_AGAIN_AFTER,))
)
def get_replay(replay_id: str) -> Response:
    """`total` is what matched when it was requested, counted up to 200,000; `reason` is the code of
    the limit that slows it down."""
    return progress_of(replay_id)


@dead_letters.delete("/dead-letters/replays/<replay_id>")
@for_tenants(
    Scope.SUBMIT, "Cancel a replay", Returns(200, answers.ReplayProgress), acts=(Act.REPLAY_CANCEL,)
)
def delete_replay(replay_id: str) -> Response:
    """No further dead letters are queued; those that were stay queued. One that has ended is left
    as it is."""
    progress_of(replay_id)
    with write_state() as engine:
        replay_requests.cancel(engine, known_id(replay_id))
    return progress_of(replay_id)


def progress_of(replay_id: str) -> Response:
    """The tenant's replay; NotFound for any other."""
    with write_state() as engine:
        found = replay_requests.read(engine, known_id(replay_id))
    row = own(found, current_tenant().id)
    headers = {"Retry-After": POLL_SECONDS} if row.state == "running" else {}
    return Reply(fields_of(answers.ReplayProgress, row), 200, headers)


def canonical(ids: list[str]) -> list[str]:
    """The ids as rows have them, without duplicates."""
    known = {place: parse_id(text) for place, text in enumerate(ids)}
    wrong = [place for place, job_id in known.items() if job_id is None]
    if wrong:
        listed = tuple(FieldError(f"ids.{n}", "is not an id") for n in wrong[:MOST_ERRORS])
        raise ValidationFailed(errors=listed, total=len(wrong))
    return list(dict.fromkeys(job_id for job_id in known.values() if job_id is not None))
