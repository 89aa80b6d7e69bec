"""``/tenant`` for browsers: how a tenant's own work does, and nobody else's.

Rates, line, share, times by type, why the oldest job waits, dead letters, use and cost, refusals,
keys and the latest jobs. Programs that ask the same address get its JSON document instead; see
:mod:`app.api.routes.tenant`. Every statement has the tenant's id in it and a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping

from app.admission.refusals import read_refusals
from app.api.auth.access import Access
from app.api.http.state import read_state
from app.api.routes.jobs import wait_document
from app.api.routes.tenant import standing_document, terms_document
from app.api.services import current_services
from app.console.page import LivePage, PageRequest
from app.console.tenant_page.flow import read_flow
from app.console.tenants.one import DAYS, read_days, read_keys, read_pools
from app.console.tenants.use import read_held
from app.reads.job_pages import read_page
from app.reads.search import Wanted
from app.reads.waits import read_facts
from app.tenants.tenant import TenantProfile
from models.jobs.ids import ABOVE_ALL
from models.pools import POOLS

#: Latest jobs, and latest dead letters, that are listed.
LATEST = 20
LATEST_DEAD = 10
#: Dead letters that are counted, and groups of them that are told apart.
MOST_DEAD = 5_000
MOST_GROUPS = 50
#: Parts of a line, by dependency and priority, whose oldest job is looked at, in each pool.
MOST_HEADS = 50

#: The first job of each stretch of the line in which jobs stand by age.
READ_OLDEST = f"""
    WITH RECURSIVE head AS (
        SELECT served.pool, first.dependency, first.priority, first.id, 1 AS place
        FROM unnest(%(pools)s::text[]) AS served (pool), LATERAL (
            SELECT dependency, priority, id FROM jobs
            WHERE status = 'queued' AND pool = served.pool AND tenant_id = %(tenant)s
            ORDER BY dependency, priority DESC, id LIMIT 1) AS first
        UNION ALL
        SELECT head.pool, next.dependency, next.priority, next.id, head.place + 1
        FROM head, LATERAL (
            (SELECT dependency, priority, id FROM jobs
             WHERE status = 'queued' AND pool = head.pool AND tenant_id = %(tenant)s
               AND dependency = head.dependency AND priority < head.priority
             ORDER BY priority DESC, id LIMIT 1)
            UNION ALL
            (SELECT dependency, priority, id FROM jobs
             WHERE status = 'queued' AND pool = head.pool AND tenant_id = %(tenant)s
               AND dependency > head.dependency
             ORDER BY dependency, priority DESC, id LIMIT 1)
            LIMIT 1) AS next
        WHERE head.place < {MOST_HEADS}
    )
    SELECT id::text FROM head ORDER BY id LIMIT 1
"""

#: The tenant is a range of one, or the planner might walk everybody's ids.
GROUP_DEAD = f"""
    SELECT type, error_class, count(*)::int AS jobs, max(finished_at) AS newest,
           sum(count(*)) OVER ()::int AS total
    FROM (SELECT type, error_class, finished_at FROM jobs
          WHERE tenant_id >= %(tenant)s AND (tenant_id, id) < (%(tenant)s, %(above)s::uuid)
            AND status = 'dead'
          ORDER BY tenant_id DESC, id DESC LIMIT {MOST_DEAD}) AS dead
    GROUP BY type, error_class ORDER BY jobs DESC, type, error_class LIMIT {MOST_GROUPS}
"""


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters that have type and class in common."""

    type: str
    #: None if nobody said what they died of.
    error_class: str | None
    count: int
    newest: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """What a tenant could replay."""

    groups: Sequence[DeadGroup]
    count: int
    latest: Sequence[ShownJob]

    @property
    def more(self) -> bool:
        """Whether not all of them were counted."""
        return self.count >= MOST_DEAD


@dataclass(frozen=True, slots=True)
class ShownJob:
    """A job in a list."""

    id: str
    type: str
    pool: str
    status: str
    created_at: datetime
    finished_at: datetime | None
    error_class: str | None
    error_message: str | None


def read(asked: PageRequest) -> dict[str, Any]:
    """What the page shows."""
    tenant = current(asked.own)
    services = current_services()
    with read_state() as connection:
        context = {
            "effective": standing_document(connection, tenant)["effective"],
            "pools": read_pools(connection, tenant),
            "flow": read_flow(connection, tenant.id),
            "waiting": read_waiting_job(connection, tenant.id),
            "dead": read_dead(connection, tenant.id),
            "usage": read_days(connection, tenant.id, services.prices),
            "refusals": read_refusals(connection, tenant.id, DAYS),
            "jobs": read_latest(connection, tenant.id),
            "held": read_held(connection).get(tenant.id, []),
        }
    return {
        **context,
        "tenant": tenant,
        "terms": terms_document(tenant),
        "prices": services.prices,
        # Of the whole page only: what lives does not need it.
        "read_keys": lambda: read_keys(tenant),
    }


def current(tenant: TenantProfile) -> TenantProfile:
    """The tenant by its terms of now: a page may be watched while they change."""
    return current_services().visitors.tenant_named(tenant.name) or tenant


def read_waiting_job(connection: Connection, tenant_id: int) -> dict[str, Any] | None:
    """The tenant's oldest job in line and what holds it; None if nothing is in line."""
    asked = {"tenant": tenant_id, "pools": list(POOLS)}
    job_id: str | None = connection.exec_driver_sql(READ_OLDEST, asked).scalar()
    found = None if job_id is None else read_facts(connection, job_id)
    if found is None or found.tenant_id != tenant_id:
        return None
    document = wait_document(found)
    start = document["predicted_start"]
    if isinstance(start, str):  # to the second: it is a guess
        document["predicted_start"] = datetime.fromisoformat(start).replace(microsecond=0)
    return {"id": job_id, **document}


def read_dead(connection: Connection, tenant_id: int) -> DeadLetterSummary:
    """Dead letters by what they have in common, and the latest of them."""
    rows = connection.exec_driver_sql(GROUP_DEAD, {"tenant": tenant_id, "above": ABOVE_ALL}).all()
    if not rows:
        return DeadLetterSummary((), 0, ())
    dead = Wanted(statuses=("dead",), tenant_id=tenant_id)
    latest = read_page(connection, dead, LATEST_DEAD, None)
    return DeadLetterSummary(
        [DeadGroup(row.type, row.error_class, row.jobs, row.newest) for row in rows],
        rows[0].total,
        [shown(row) for row in latest.rows],
    )


def read_latest(connection: Connection, tenant_id: int) -> list[ShownJob]:
    """The jobs that it submitted last."""
    page = read_page(connection, Wanted(tenant_id=tenant_id), LATEST, None)
    return [shown(row) for row in page.rows]


def shown(row: RowMapping) -> ShownJob:
    """A row of a list of jobs: see JOB_COLUMNS of :mod:`app.reads.job_views`."""
    return ShownJob(
        id=row["id"],
        type=row["type"],
        pool=row["pool"],
        status=row["status"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        error_class=row["error_class"],
        error_message=row["error_message"],
    )


TENANT_PAGE = LivePage(
    "/tenant",
    "console/tenant-page.html",
    read,
    access=Access.TENANT_PAGE,
    every_seconds=5.0,
    beside="tenant_terms.get_tenant",
)
