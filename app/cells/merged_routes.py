"""Answers to a tenant that lives in several cells, also while it moves from one to another.

What is about one job is asked of one cell after the other, first of the one that the job's id
names. Lists, sums and rankings are asked of all cells and merged: the same as one cell with all
rows would answer. Schedules are in the tenant's first cell, and while they are moved in others too.

A cell that does not answer is missing: lists and sums are a 503 then, which names it, or with
``partial=true`` contain what the others have. Jobs of the others are read and changed as ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import orjson

from app.api.auth.visitors import asks_for_page
from app.api.http.query import link_to, pack_cursor, unpack_cursor
from app.api.http.reply import QuickReply, Reply
from app.api.routes import job_list, leaderboard
from app.api.routes import schedules as schedule_routes
from app.api.routes.tenant import effective_terms
from app.api.services import Services
from app.cells.events import merged_feed
from app.cells.fan_out import CellAnswer, ServedApps, each, query_of
from app.cells.merge import (
    Document,
    ListPage,
    RankedPlace,
    best_first,
    id_at,
    merge_pages,
    newest_first,
    rank_among,
    rank_entries,
    sum_tenants,
)
from app.cells.merged_replays import discard_letters, replay_letters, replay_progress
from app.cells.merged_schedules import (
    change_schedule,
    create_schedule,
    holders,
    one_schedule,
    remove_schedule,
)
from app.cells.merged_usage import sum_usage
from app.cells.tenant_pages import form_in_all, page_events
from app.cells.tenant_request import (
    MISSING_HEADER,
    Gathered,
    TenantRequest,
    answer_by,
    services_of,
)
from app.reads.job_views import etag_of
from app.reads.ranks import ScoreRank, read_ranks
from models.jobs.ids import ABOVE_ALL, parse_id
from models.store.roles import tenant_scope
from models.store.session import connect

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from flask import Flask

    from app.policy.placement import Placement

#: Answers a request; the parts of its path that are not fixed follow.
Handler = Callable[..., "WSGIApplication"]

#: What is about one job, also of the tenant's pages.
OF_JOB = re.compile(r"/(?:tenant/)?(?:jobs|applications)/(?!batch$)([^/]+)(/.*)?")
#: What is about one schedule, also of the tenant's pages.
OF_SCHEDULE = re.compile(r"/(?:tenant/)?schedules/[^/]+(/[a-z]+)?")
OF_REPLAY = re.compile(r"/dead-letters/replays/[^/]+|/tenant/replays/[^/]+/cancel")


def answer(
    router: ServedApps,
    placement: Placement,
    environ: WSGIEnvironment,
    start_response: StartResponse,
) -> Iterable[bytes]:
    """Answer a request of a tenant with this placement; submissions are the router's."""

    def handle(asked: TenantRequest) -> WSGIApplication:
        handler, values = handler_of(asked.method, environ["PATH_INFO"])
        return handler(asked, *values)

    return answer_by(handle, router, placement, environ, start_response)


def handler_of(method: str, path: str) -> tuple[Handler, tuple[str, ...]]:
    """What answers a request, and the parts of its path that it needs."""
    if (found := MERGED.get((method, path))) is not None:
        return found, ()
    if OF_REPLAY.fullmatch(path) is not None:
        return form_in_all if path.startswith("/tenant") else replay_progress, ()
    if (schedule := OF_SCHEDULE.fullmatch(path)) is not None:
        return ON_SCHEDULE.get((method, schedule[1]), one_schedule), ()
    if (job := OF_JOB.fullmatch(path)) is not None:
        is_application = method == "GET" and path.startswith("/applications/") and not job[2]
        return application if is_application else one_job, (job[1],)
    return first_cell, ()


def one_job(asked: TenantRequest, job_id: str) -> WSGIApplication:
    """Read, follow or change one job."""
    return asked.one(parse_id(job_id))


def first_cell(asked: TenantRequest) -> WSGIApplication:
    """Paths that do not exist."""
    return asked.first()


def application(asked: TenantRequest, application_id: str) -> WSGIApplication:
    """An application, with its rank among those of all cells."""
    known = asked.environ.get("HTTP_IF_NONE_MATCH")
    # The tag depends on the rank too.
    changes: dict[str, Any] = {"REQUEST_METHOD": "GET", "HTTP_IF_NONE_MATCH": None}
    found = asked.one(parse_id(application_id), **changes)
    if isinstance(found, CellAnswer) or found.status != HTTPStatus.OK:
        return found
    given = CellAnswer("", found.status, found.headers, found.read())
    document, headers = given.document, dict(given.headers)
    if document["rank"] is not None:
        document["rank"], missing = rank_in_all(asked, document)
        headers["ETag"] = etag_of(f"{headers['ETag']}|{document['rank']}")
        if missing:
            headers[MISSING_HEADER] = ", ".join(missing)
    for name in ("Content-Type", "Content-Length"):
        headers.pop(name, None)
    if known is not None and (headers["ETag"] in known or known.strip() == "*"):
        return QuickReply(b"", HTTPStatus.NOT_MODIFIED, headers)
    return QuickReply(orjson.dumps(document), HTTPStatus.OK, headers)


def rank_in_all(asked: TenantRequest, document: Document) -> tuple[int | None, list[str]]:
    """The rank of a score in all cells, None if some are missing; and which."""
    role, score = document["role"], Decimal(f"{document['score']:.2f}")

    def rank(_: str, app: Flask) -> int:
        services: Services = app.extensions["fairline"]
        caller = services.tenants.directory.keyless(document["tenant"])
        if caller is None or caller.tenant is None:
            return 1  # it has nothing there yet, or no longer
        one = ScoreRank(caller.tenant.id, role, score)
        with tenant_scope(one.tenant_id), connect(services.engine) as connection:
            return read_ranks(connection, {one})[one]

    ranks = each(asked.apps, asked.cells, rank)
    missing = [cell for cell in asked.cells if cell not in ranks]
    return (None if missing else rank_among(ranks.values())), missing


# Lists.


def jobs(asked: TenantRequest) -> WSGIApplication:
    return newest_jobs(asked, "jobs")


def dead_letters(asked: TenantRequest) -> WSGIApplication:
    return newest_jobs(asked, "dead_letters")


def newest_jobs(asked: TenantRequest, field: str) -> WSGIApplication:
    """A page of jobs, newest first."""
    gathered, limit = asked.gather(), limit_of(asked, job_list.PAGE)
    pages = []
    for one in gathered.answers:
        cursor = next_cursor(one)
        entries = [(newest_first(entry["id"]), entry) for entry in one.document[field]]
        pages.append(ListPage(entries, None if cursor is None else newest_first(cursor)))
    page = merge_pages(pages, limit)
    link = next_page(asked, limit, None if page.end is None else id_at(page.end))
    return Reply({field: page.documents}, 200, gathered.headers() | link)


def schedules(asked: TenantRequest) -> WSGIApplication:
    """A page of schedules, by name. Cells that admit jobs, other than the first, may be missing."""
    gathered = asked.gather(optional=holders(asked).optional)
    limit = limit_of(asked, schedule_routes.PAGE)
    pages = []
    for one in gathered.answers:
        cursor = next_cursor(one)
        # Two of a name may have been made while the placement changed.
        entries = [((entry["name"], entry["id"]), entry) for entry in one.document["schedules"]]
        pages.append(ListPage(entries, None if cursor is None else (cursor, ABOVE_ALL)))
    page = merge_pages(pages, limit)
    link = next_page(asked, limit, None if page.end is None else page.end[0])
    return Reply({"schedules": page.documents}, 200, gathered.headers() | link)


def ranking(asked: TenantRequest) -> WSGIApplication:
    """A page of the leaderboard."""
    gathered, limit = asked.gather(), limit_of(asked, leaderboard.PAGE)
    cursor = query_of(asked.environ).get("cursor")
    after = None if cursor is None else leaderboard.Cursor.decode(cursor)
    last = None if after is None else RankedPlace(float(after.score), after.rank, after.place)
    documents = gathered.documents
    pages = []
    for one, document in zip(gathered.answers, documents, strict=True):
        entries = [(best_first(entry), entry) for entry in document["entries"]]
        # It ends with the last entry that it shows.
        pages.append(ListPage(entries, entries[-1][0] if next_cursor(one) else None))
    page = merge_pages(pages, limit)
    ranked, last = rank_entries(page.documents, last)
    end = None
    if page.end is not None and last is not None:
        place = {"rank": last.rank, "place": last.place}
        score = Decimal(f"{last.score:.2f}")
        end = str(leaderboard.Cursor(score=score, id=ranked[-1]["id"], **place))
    role = documents[0]["role"]
    headers = gathered.headers() | next_page(asked, limit, end, role=role)
    return Reply({"role": role, "entries": ranked}, 200, headers)


def limit_of(asked: TenantRequest, usual: int) -> int:
    """The page size, which every cell has checked."""
    return int(query_of(asked.environ).get("limit", usual))


def next_cursor(one: CellAnswer) -> str | None:
    """The position of the next page of a cell; None after the last."""
    link = one.header("Link")
    if link is None:
        return None
    query = parse_qs(urlsplit(link[1 : link.index(">")]).query)
    return unpack_cursor(query["cursor"][0])


def next_page(
    asked: TenantRequest, limit: int, cursor: str | None, **parameters: str
) -> dict[str, str]:
    """The ``Link`` header to the next page, if there is one."""
    if cursor is None:
        return {}
    query = {**query_of(asked.environ), **parameters, "limit": limit, "cursor": pack_cursor(cursor)}
    return link_to(asked.environ["PATH_INFO"], query)


# Sums.


def overview(asked: TenantRequest) -> WSGIApplication:
    """The terms as they were agreed, and what waits and was refused in all cells."""
    if asks_for_page(asked.environ):
        return asked.first()
    gathered = asked.gather()
    document = sum_tenants(gathered.documents)
    document["effective"] = undivided_terms(asked, gathered, document)
    return Reply(document, 200, gathered.headers())


def undivided_terms(asked: TenantRequest, gathered: Gathered, document: Document) -> Document:
    """The terms in effect in all cells of a tenant together."""
    services = services_of(asked.apps, [gathered.answers[0].cell])
    profile = services.visitors.tenant_named(document["name"])
    if profile is None:  # it has just left
        return dict(document["effective"])
    return effective_terms(services.gate, replace(profile, share=1.0))


def usage(asked: TenantRequest) -> WSGIApplication:
    """What was used in all cells."""
    gathered = asked.gather()
    # Plain numbers, as they are added.
    reports = [orjson.loads(one.body) for one in gathered.answers]
    return Reply(sum_usage(reports), 200, gathered.headers())


MERGED: dict[tuple[str, str], Handler] = {
    ("GET", "/jobs"): jobs,
    ("GET", "/dead-letters"): dead_letters,
    ("GET", "/leaderboard"): ranking,
    ("GET", "/schedules"): schedules,
    ("POST", "/schedules"): create_schedule,
    ("GET", "/tenant"): overview,
    ("GET", "/tenant/usage"): usage,
    ("GET", "/events"): merged_feed,
    ("POST", "/dead-letters/replay"): replay_letters,
    ("POST", "/dead-letters/discard"): discard_letters,
    ("GET", "/tenant/events"): page_events,
    ("POST", "/tenant/dead-letters/replay"): form_in_all,
    ("POST", "/tenant/dead-letters/discard"): form_in_all,
}
ON_SCHEDULE: dict[tuple[str, str | None], Handler] = {
    ("PATCH", None): change_schedule,
    ("DELETE", None): remove_schedule,
    ("POST", "/remove"): remove_schedule,
}
