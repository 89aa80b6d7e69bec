"""Operators' requests that are about several cells; all others go to the cell that is shown.

A tenant is found in its cells, whichever is shown. What is changed of one is changed in the first
of its cells and copied to the others. A key is revoked, and an application erased, wherever it is.
The lists of tenants and of acts are those of all cells, merged; acts say which cell they are of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from app.api.http.query import bad_cursor, pack_cursor, unpack_cursor
from app.api.http.reply import Reply
from app.api.http.sub_request import SUB_REQUEST, SubRequest
from app.api.routes import audit, operator
from app.cells.fan_out import CellAnswer, ServedApps, query_of, whole, with_query
from app.cells.merge import Document, ListPage, merge_pages, sum_tenants
from app.cells.merged_routes import limit_of, next_cursor, next_page, undivided_terms
from app.cells.metrics import answer_metrics
from app.cells.tenant_changes import copy_changes
from app.cells.tenant_request import (
    MISSING_HEADER,
    TenantRequest,
    answer_by,
    missing_cells,
)
from app.errors import CellUnavailable
from app.log_ids import CALLER
from app.policy.placement import Placement
from app.reads.audit import AuditPlace, parse_audit_place
from models.jobs.ids import parse_id

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: A tenant's own routes, and the forms of its page.
OF_TENANT = re.compile(r"/(operator|console)/tenants/([a-z0-9][a-z0-9_-]{0,62})(/.*)?")
OF_KEY = re.compile(r"/operator/keys/[^/]+")
ERASURE = re.compile(r"/operator/applications/([^/]+)/erase")

Handler = Callable[[TenantRequest], "WSGIApplication"]


def answer(
    router: ServedApps, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes] | None:
    """Answer an operator's request about several cells; None: it is about one."""
    if environ["PATH_INFO"] == "/metrics":
        return answer_metrics(router, environ, start_response)
    handler = handler_of(router, environ)
    if handler is None:
        return None
    everywhere = Placement(0, dict.fromkeys(router.cell_names(), 1.0))
    return answer_by(handler, router, everywhere, environ, start_response)


def handler_of(router: ServedApps, environ: WSGIEnvironment) -> Handler | None:
    """What answers a request about several cells; None: it is about one."""
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    reads = method in ("GET", "HEAD")
    if path == "/operator/tenants" and reads:
        return tenants
    if path == "/operator/audit" and reads:
        return acts
    if OF_KEY.fullmatch(path) and method == "DELETE":
        return revoked
    if (erased := ERASURE.fullmatch(path)) is not None:
        return lambda asked: asked.one(parse_id(erased[1]))
    found = OF_TENANT.fullmatch(path)
    placement = None if found is None else router.placement_of(found[2])
    if found is None or placement is None or (found[1] == "console" and reads):
        return None
    name = found[2]
    if not reads:
        return lambda asked: changed(replace(asked, placement=placement), name)
    if found[3]:  # its keys, which are the same in all cells
        return lambda asked: replace(asked, placement=placement).first()
    return lambda asked: tenant(replace(asked, placement=placement))


def tenants(asked: TenantRequest) -> WSGIApplication:
    """All tenants by name, each once."""
    gathered = asked.gather(changes=lambda _: {SUB_REQUEST: SubRequest(by_bytes=True)})
    limit = limit_of(asked, operator.PAGE)
    pages = []
    for one in gathered.answers:
        entries = [(entry["name"], entry) for entry in one.document["tenants"]]
        pages.append(ListPage(entries, next_cursor(one)))
    page = merge_pages(pages, limit)
    headers = gathered.headers() | next_page(asked, limit, page.end)
    return Reply({"tenants": page.documents}, 200, headers)


def acts(asked: TenantRequest) -> WSGIApplication:
    """What was done in all cells, newest first."""
    cursor = query_of(asked.environ).get("cursor")
    after = None if cursor is None else parse_place(unpack_cursor(cursor))

    def behind(cell: str) -> dict[str, Any]:
        place = None if after is None else pack_cursor(str(place_in(cell, *after)))
        query = with_query(asked.environ, cursor=place)
        return {SUB_REQUEST: SubRequest(with_places=True), **query}

    gathered = asked.gather(changes=behind)
    limit = limit_of(asked, audit.PAGE)  # now that they have found it to be a number
    pages = []
    for one in gathered.answers:
        entries = [(act_position(act, one.cell), act) for act in one.document["acts"]]
        # It ends with the last act that it shows.
        pages.append(ListPage(entries, entries[-1][0] if next_cursor(one) else None))
    page = merge_pages(pages, limit)
    last = None
    if page.end is not None:
        (_, last_act), cell = page.entries[-1], page.entries[-1][0][-1]
        last = f"{last_act['place']}|{cell}"
    shown = [
        {name: value for name, value in act.items() if name != "place"} | {"cell": position[-1]}
        for position, act in page.entries
    ]
    return Reply({"acts": shown}, 200, gathered.headers() | next_page(asked, limit, last))


def act_position(act: Document, cell: str) -> tuple[float, int, str]:
    """Newest first; numbers of two cells may be the same."""
    place = parse_audit_place(act["place"])
    assert place is not None
    return -exact_seconds(place.at), -place.id, cell


def exact_seconds(moment: datetime) -> int:
    """A time in microseconds, which a float does not hold exactly."""
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def parse_place(text: str) -> tuple[AuditPlace, str]:
    """The last act that was shown, and its cell; of a cursor from before there were cells, none."""
    parts = text.split("|")
    place = parse_audit_place("|".join(parts[:2]))
    if place is None or len(parts) > 3:
        raise bad_cursor()
    return place, parts[2] if len(parts) == 3 else ""


def place_in(cell: str, place: AuditPlace, shown: str) -> AuditPlace:
    """Behind which act a cell goes on; acts of the same time and number are in order of cells."""
    return place if cell <= shown else place._replace(id=place.id + 1)


def tenant(asked: TenantRequest) -> WSGIApplication:
    """A tenant's terms, and what waits and was refused in all of its cells."""
    gathered = asked.gather()
    document = sum_tenants(gathered.documents)
    document["effective"] = undivided_terms(asked, gathered, document)
    return Reply(document, 200, gathered.headers())


def changed(asked: TenantRequest, name: str) -> WSGIApplication:
    """A change in the first of the tenant's cells, copied to the others."""
    apps = {cell: asked.app(cell) for cell in asked.cells}
    away = [cell for cell, app in apps.items() if app is None]
    if away:
        raise missing_cells(away)
    engines = {cell: app.extensions["fairline"].engine for cell, app in apps.items() if app}
    first, *others = asked.cells
    app = apps[first]
    assert app is not None
    done = whole(first, app, asked.copy())
    # Whoever is asked to sign in is nobody yet.
    if done.status < HTTPStatus.BAD_REQUEST and CALLER in asked.environ:
        rest = {cell: engines[cell] for cell in others}
        try:
            copy_changes(name, engines[first], rest)
        except CellUnavailable:
            if done.status != HTTPStatus.CREATED:
                raise  # it can be repeated
            # A key is shown once. The next change of the tenant brings it to the other cells.
            return replace(done, headers=[*done.headers, (MISSING_HEADER, ", ".join(others))])
    return done


def revoked(asked: TenantRequest) -> WSGIApplication:
    """A key that is revoked in every cell that has it."""
    gathered = asked.gather(HTTPStatus.NOT_FOUND)
    found = [one for one in gathered.answers if one.status != HTTPStatus.NOT_FOUND]
    return first_revoked(found) if found else gathered.answers[0]


def first_revoked(answers: Iterable[CellAnswer]) -> CellAnswer:
    """The first revocation is the one that counts."""
    return min(answers, key=lambda one: str(one.document["revoked_at"]))
