"""``GET /jobs``: pages of a tenant's jobs, newest first.

Each request examines a bounded number of jobs: a page may be short, or empty, and still have a
next one.
"""

from __future__ import annotations

from flask import Blueprint, Response

from app.api.http.query import next_link, parse_choice, parse_cursor, parse_limit, parse_name
from app.api.http.reply import Reply
from app.api.http.state import read_state
from app.api.openapi.declared import LINK, POOL, TYPE, Returns, choice, for_tenants, paging
from app.api.schemas import answers
from app.api.services import current_tenant
from app.reads.job_pages import read_page
from app.reads.job_views import job_document
from app.reads.search import Wanted
from models.jobs.ids import parse_id
from models.jobs.states import JobStatus

job_list = Blueprint("job_list", __name__)

PAGE = 50
MOST = 500
STATUSES = tuple(status.value for status in JobStatus)
STATUS = choice("status", "Only jobs with this status.", STATUSES)


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
