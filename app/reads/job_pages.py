"""Pages of a tenant's jobs, newest first, at a cost that does not grow with the table.

A page walks the tenant's jobs in order of their ids and looks at a bounded number of them.
A filter that few pass gives short pages, even empty ones, that still have a next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping

from models.jobs.ids import ABOVE_ALL

#: Rows that one page looks at.
SCAN_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs; None lets all pass."""

    status: str | None = None
    type: str | None = None
    pool: str | None = None
    error_class: str | None = None

    @property
    def narrow(self) -> bool:
        """Whether some may not pass. Dead jobs have an index of their own."""
        return any((self.status not in (None, "dead"), self.type, self.pool, self.error_class))


@dataclass(frozen=True, slots=True)
class JobPage:
    """Rows as the statement gives them."""

    rows: Sequence[RowMapping]
    #: Where the next page begins; None after the last.
    cursor: str | None


def page_statement(columns: str, joins: str = "", *, dead: bool = False) -> str:
    """The statement; ``dead`` walks the index of the dead letters.

    The tenant is a range of one: were it an equality, the order would be that of the ids alone,
    and the planner might walk the primary key through millions of rows of other tenants.
    """
    return f"""
    WITH scanned AS MATERIALIZED (
        SELECT id, status, type, pool, error_class FROM jobs
        WHERE tenant_id >= %(tenant)s AND (tenant_id, id) < (%(tenant)s, %(before)s::uuid)
        {"AND status = 'dead'" if dead else ""}
        ORDER BY tenant_id DESC, id DESC LIMIT %(scan)s
    ), matching AS MATERIALIZED (
        SELECT id FROM scanned
        WHERE (%(status)s::job_status IS NULL OR status = %(status)s::job_status)
          AND (%(type)s::text IS NULL OR type = %(type)s::text)
          AND (%(pool)s::text IS NULL OR pool = %(pool)s::text)
          AND (%(error_class)s::text IS NULL OR error_class = %(error_class)s::text)
        ORDER BY id DESC LIMIT %(limit)s
    ), seen AS (
        SELECT count(*) AS rows, (SELECT id FROM scanned ORDER BY id LIMIT 1) AS last FROM scanned
    )
    SELECT seen.rows AS seen_rows, seen.last::text AS seen_last, job.id::text, job.tenant_id,
           tenant.name AS tenant, {columns}
    FROM seen
    LEFT JOIN (matching
        JOIN jobs AS job ON job.id = matching.id
        JOIN tenants AS tenant ON tenant.id = job.tenant_id
        {joins}
    ) ON true
    ORDER BY job.id DESC
"""


def read_page(
    connection: Connection,
    statement: str,
    tenant_id: int,
    wanted: Filter,
    limit: int,
    before: str | None,
) -> JobPage:
    """A page of at most ``limit`` jobs older than ``before``."""
    # Without a filter every row that is looked at is shown, but for one that says there is more.
    scan = SCAN_ROWS if wanted.narrow else limit + 1
    asked = {
        "tenant": tenant_id,
        "before": before or ABOVE_ALL,
        "scan": scan,
        "limit": limit + 1,
        "status": wanted.status,
        "type": wanted.type,
        "pool": wanted.pool,
        "error_class": wanted.error_class,
    }
    rows = connection.exec_driver_sql(statement, asked).mappings().all()
    # Where nothing matches there is still one row, which says how far the page looked.
    seen = rows[0]
    found = [row for row in rows if row["id"] is not None]
    if len(found) > limit:
        return JobPage(found[:limit], found[limit - 1]["id"])
    return JobPage(found, seen["seen_last"] if seen["seen_rows"] == scan else None)
