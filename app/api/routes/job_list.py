"""``GET /jobs``: pages of a tenant's jobs, newest first.

Each request examines a bounded number of jobs: a page may be short, or empty, and still have a
next one.
"""

from __future__ import annotations

from flask import Blueprint, Response, request

from app.api.http.query import (
    next_link,
    parse_choice,
    parse_cursor,
    parse_limit,
    parse_name,
    parse_partial,
)
from app.api.http.reply import Reply
from app.api.http.state import read_standby
from app.api.http.turns import in_turns, long_read
from app.api.openapi.declared import (
    LAG,
    LINK,
    MISSING,
    PARTIAL,
    POOL,
    TYPE,
    Parameter,
    Returns,
    choice,
    for_tenants,
    paging,
)
from app.api.schemas import answers
from app.api.services import current_tenant
from app.errors import invalid_field
from app.reads.job_pages import read_page
from app.reads.job_views import job_document
from app.reads.search import MOST_FIELD, PayloadField, Wanted, parse_payload_field, why_unsearchable
from app.tenants.scopes import Scope
from models.jobs.ids import parse_id
from models.jobs.states import JobStatus

job_list = Blueprint("job_list", __name__)

PAGE = 50
MOST = 500
STATUSES = tuple(status.value for status in JobStatus)
STATUS = choice("status", "Only jobs with this status.", STATUSES)
PAYLOAD = Parameter(
    "payload",
    "Only jobs whose payload has this value: `candidate=alice`, or `address.city=Rome` of nested"
    " objects. Payloads above 64 KiB are not searched; encrypted ones cannot be: 422.",
    {"type": "string", "pattern": "=", "maxLength": MOST_FIELD},
)


@job_list.get("/jobs")
@for_tenants(
    Scope.READ,
    "Your jobs, newest first",
    Returns(200, answers.Jobs, (LINK, LAG, MISSING)),
    query=(STATUS, TYPE, POOL, PAYLOAD, PARTIAL, *paging(PAGE, MOST)),
)
@long_read
def get_jobs() -> Response:
    """Without results and attempts, which may be large. A page with filters may be short."""
    tenant_id = current_tenant().id
    status = parse_choice("status", STATUSES)
    wanted = Wanted(
        statuses=(status,) if status else (),
        type=parse_name("type"),
        pool=parse_name("pool"),
        payload=parse_payload(),
        tenant_id=tenant_id,
    )
    limit, before = parse_limit(PAGE, MOST), parse_cursor(parse_id)
    parse_partial()
    with read_standby() as connection:
        page = read_page(connection, wanted, limit, before)
    entries = [job_document(row) for row in in_turns(page.rows)]
    return Reply({"jobs": entries}, 200, next_link(limit, page.cursor))


def parse_payload() -> PayloadField | None:
    """``payload``: a field and its value."""
    text = request.args.get("payload")
    if text is not None and (why_not := why_unsearchable()):
        raise invalid_field("payload", why_not)
    found = None if text is None else parse_payload_field(text)
    if text is not None and found is None:
        raise invalid_field("payload", "must be a field and its value, such as candidate=alice")
    return found
