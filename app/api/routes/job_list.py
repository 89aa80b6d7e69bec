"""``GET /jobs``: a tenant's jobs, newest first.

Entries omit what may be large, results and attempts; ``GET /jobs/{id}`` has them. Each request
examines a bounded number of jobs: a page may be short, or empty, and still have a next one.
"""

from __future__ import annotations

from flask import Blueprint, Response

from app.api.auth.access import Access
from app.api.http.query import next_link, parse_choice, parse_cursor, parse_limit, parse_name
from app.api.http.reply import Reply
from app.api.http.state import read_state
from app.api.openapi.declared import Operation, Returns
from app.api.openapi.parts import CURSOR, LINK, POOL, TYPE, choice, page_limit
from app.api.schemas import answers
from app.api.services import current_tenant
from app.reads.job_pages import Filter, page_statement, read_page
from app.reads.job_views import JOB_COLUMNS, job_document
from models.jobs.ids import parse_id
from models.jobs.states import JobStatus

job_list = Blueprint("job_list", __name__)

PAGE = 50
MOST = 500
STATUSES = tuple(status.value for status in JobStatus)

LIST_JOBS = page_statement(JOB_COLUMNS)
LIST_DEAD_JOBS = page_statement(JOB_COLUMNS, dead=True)


@job_list.get("/jobs")
@Operation(
    Access.TENANT,
    "Your jobs, newest first",
    Returns(200, "A page; with filters it may be short.", answers.Jobs, (LINK,)),
    query=(
        choice("status", "Only jobs with this status.", STATUSES),
        TYPE,
        POOL,
        page_limit(PAGE, MOST),
        CURSOR,
    ),
)
def get_jobs() -> Response:
    tenant_id = current_tenant().id
    wanted = Filter(
        status=parse_choice("status", STATUSES), type=parse_name("type"), pool=parse_name("pool")
    )
    limit, before = parse_limit(PAGE, MOST), parse_cursor(parse_id)
    statement = LIST_DEAD_JOBS if wanted.status == "dead" else LIST_JOBS
    with read_state() as connection:
        page = read_page(connection, statement, tenant_id, wanted, limit, before)
    entries = [job_document(row) for row in page.rows]
    return Reply({"jobs": entries}, 200, next_link(limit, page.cursor))
