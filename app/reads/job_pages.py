"""Pages of a tenant's jobs, newest first, at a cost that does not grow with the table.

A page walks the tenant's jobs in order of their ids and looks at a bounded number of them.
A filter that few pass gives short pages, even empty ones, that still have a next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Text,
    any_,
    cast,
    select,
    text,
    true,
)

from app.reads.job_views import JOB_COLUMNS, attempts_of_job
from app.reads.search import Wanted, values_of, walk_statement
from models.schema import Job, Tenant

#: Rows that one page looks at.
SCAN_ROWS = 5_000
#: … whose payloads it reads.
SCAN_PAYLOADS = 1_000


@dataclass(frozen=True, slots=True)
class JobPage:
    """Rows as the statement gives them."""

    rows: Sequence[RowMapping]
    #: Where the next page begins; None after the last.
    cursor: str | None


@cache
def page_statement(step: Select[Any], attempts: int) -> Select[Any]:
    """The jobs of a step of a walk, each with so many of its attempts."""
    found = step.subquery("found")
    job, tenant = Job.__table__.alias("job"), Tenant.__table__.alias("tenant")
    columns: list[ColumnElement[Any]] = [
        cast(job.c.progress, Text).label(name) if name == "progress" else job.c[name]
        for name in ("id", "tenant_id", *JOB_COLUMNS)
    ]
    # A step that found nothing still has one row, which says how far it looked.
    source = found.outerjoin(job, job.c.id == any_(cast(found.c.ids, ARRAY(job.c.id.type))))
    source = source.outerjoin(tenant, tenant.c.id == job.c.tenant_id)
    if attempts:
        tried = text(attempts_of_job(attempts)).columns(attempts=Text).lateral("tried")
        source = source.outerjoin(tried, true())
        columns += [job.c.replays, job.c.slot_seconds, job.c.resubmitted_from, tried.c.attempts]
    return (
        select(found.c.looked, found.c.last, tenant.c.name.label("tenant"), *columns)
        .select_from(source)
        .order_by(job.c.id.desc())
    )


def read_page(
    connection: Connection, wanted: Wanted, limit: int, before: str | None, *, attempts: int = 0
) -> JobPage:
    """A page of at most ``limit`` jobs of a tenant that are older than ``before``."""
    # Without a filter every row that is looked at is shown, but for one that says there is more.
    scan = SCAN_ROWS if wanted.payload is None else SCAN_PAYLOADS
    scan = scan if wanted.filters else limit + 1
    asked = {**values_of(wanted, before, None), "step": scan, "limit": limit + 1}
    statement = page_statement(walk_statement(wanted.shape), attempts)
    rows = connection.execute(statement, asked).mappings().all()
    found = [row for row in rows if row["id"] is not None]
    if len(found) > limit:
        return JobPage(found[:limit], found[limit - 1]["id"])
    return JobPage(found, rows[0]["last"] if rows[0]["looked"] == scan else None)
