"""``GET /jobs``: a tenant's jobs, newest first.

Entries leave out what may be large, results and attempts; ``GET /jobs/{id}`` has them. A
page looks at a bounded number of jobs: it may be short, or empty, and still have a next.
"""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, request

from app.api.auth.access import Access, open_to
from app.api.http.query import (
    next_link,
    pack_cursor,
    parse_choice,
    parse_id_cursor,
    parse_limit,
    parse_name,
)
from app.api.http.reply import Reply
from app.api.http.state import read_state
from app.api.openapi.declared import DeclaredResponse, described
from app.api.openapi.parts import CURSOR, LINK, POOL, TYPE, choice, page_limit
from app.api.schemas import answers
from app.api.services import current_services
from app.reads.job_pages import read_page
from app.reads.job_views import job_document
from app.reads.search import Wanted
from models.jobs.states import JobStatus

job_list = Blueprint("job_list", __name__)

PAGE = 50
MOST = 500
STATUSES = tuple(status.value for status in JobStatus)


@job_list.get("/jobs")
@open_to(Access.TENANT)
@described(
    "Your jobs, newest first",
    DeclaredResponse(200, "A page of them; with filters it may be short.", answers.Jobs, (LINK,)),
    query=(
        choice("status", "Jobs of this status only.", STATUSES),
        TYPE,
        POOL,
        page_limit(PAGE, MOST),
        CURSOR,
    ),
)
def get_jobs() -> Response:
    tenant_id = current_services().tenants.current(request.environ).id
    status = parse_choice("status", STATUSES)
    wanted = Wanted(
        statuses=(status,) if status else (),
        type=parse_name("type"),
        pool=parse_name("pool"),
        tenant_id=tenant_id,
    )
    limit, before = parse_limit(PAGE, MOST), parse_id_cursor()
    with read_state() as connection:
        page = read_page(connection, wanted, limit, before)
    headers = {}
    if page.cursor is not None:
        following = {**request.args, "limit": limit, "cursor": pack_cursor(page.cursor)}
        headers = next_link("/jobs", following)
    return Reply(orjson.dumps({"jobs": [job_document(row) for row in page.rows]}), 200, headers)
