"""``/tenant`` for browsers: how a tenant's own work does, and nobody else's.

Rates, line, share, times by type, why the oldest job waits, dead letters, use and cost, refusals,
keys and the latest jobs. Programs that ask the same address get its JSON document instead; see
:mod:`app.api.tenant`. Every statement has the tenant's id in it and a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from app.admission.refusals import read_refusals
from app.api.access import Access
from app.api.job_list import LIST_DEAD_JOBS, LIST_JOBS
from app.api.services import services
from app.api.state import read_state
from app.api.tenant import standing_document, terms_document
from app.api.waits import wait_document
from app.console.page import Asked, LivePage
from app.console.tenant_page.flow import read_flow
from app.console.tenants.one import DAYS, read_days, read_keys, read_pools
from app.console.tenants.use import read_held
from app.jobs.pages import ABOVE_ALL, Filter, read_page
from app.tenants.tenant import Tenant
from app.waits.facts import read_facts
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
    SELECT type, error_class, count(*)::int, max(finished_at), sum(count(*)) OVER ()::int
    FROM (SELECT type, error_class, finished_at FROM jobs
          WHERE tenant_id >= %(tenant)s AND (tenant_id, id) < (%(tenant)s, %(above)s::uuid)
            AND status = 'dead'
          ORDER BY tenant_id DESC, id DESC LIMIT {MOST_DEAD}) AS dead
    GROUP BY type, error_class ORDER BY 3 DESC, 1, 2 LIMIT {MOST_GROUPS}
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
class DeadLetters:
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


def read(asked: Asked) -> dict[str, Any]:
    """What the page shows."""
    tenant = current(asked.own)
    house = services()
    with read_state() as taken:
        context = {
            "effective": standing_document(taken, tenant)["effective"],
            "pools": read_pools(taken, tenant),
            "flow": read_flow(taken, tenant.id),
            "waiting": read_waiting_job(taken, tenant.id),
            "dead": read_dead(taken, tenant.id),
            "usage": read_days(taken, tenant.id, house.prices),
            "refusals": read_refusals(taken, tenant.id, DAYS),
            "jobs": read_latest(taken, tenant.id),
            "held": read_held(taken).get(tenant.id, []),
        }
    return {
        **context,
        "tenant": tenant,
        "terms": terms_document(tenant),
        "prices": house.prices,
        # Of the whole page only: what lives does not need it.
        "read_keys": lambda: read_keys(tenant),
    }


def current(tenant: Tenant) -> Tenant:
    """The tenant by its terms of now: a page may be watched while they change."""
    return services().visitors.tenant_named(tenant.name) or tenant


def read_waiting_job(taken: Connection, tenant_id: int) -> dict[str, Any] | None:
    """The tenant's oldest job in line and what holds it; None if nothing is in line."""
    asked = {"tenant": tenant_id, "pools": list(POOLS)}
    job_id: str | None = taken.exec_driver_sql(READ_OLDEST, asked).scalar()
    found = None if job_id is None else read_facts(taken, job_id)
    if found is None or found.tenant_id != tenant_id:
        return None
    document = wait_document(found)
    start = document["predicted_start"]
    if isinstance(start, str):  # to the second: it is a guess
        document["predicted_start"] = datetime.fromisoformat(start).replace(microsecond=0)
    return {"id": job_id, **document}


def read_dead(taken: Connection, tenant_id: int) -> DeadLetters:
    """Dead letters by what they have in common, and the latest of them."""
    rows = taken.exec_driver_sql(GROUP_DEAD, {"tenant": tenant_id, "above": ABOVE_ALL}).all()
    if not rows:
        return DeadLetters((), 0, ())
    latest = read_page(taken, LIST_DEAD_JOBS, tenant_id, Filter(status="dead"), LATEST_DEAD, None)
    return DeadLetters(
        [DeadGroup(*row[:4]) for row in rows], rows[0][4], [shown(row) for row in latest.rows]
    )


def read_latest(taken: Connection, tenant_id: int) -> list[ShownJob]:
    """The jobs that it submitted last."""
    page = read_page(taken, LIST_JOBS, tenant_id, Filter(), LATEST, None)
    return [shown(row) for row in page.rows]


def shown(row: Sequence[Any]) -> ShownJob:
    """A row of a list of jobs: see JOB_COLUMNS of :mod:`app.api.job_views`."""
    return ShownJob(row[0], row[3], row[4], row[6], row[9], row[14], row[16], row[17])


TENANT_PAGE = LivePage(
    "/tenant",
    "console/tenant-page.html",
    read,
    access=Access.TENANT_PAGE,
    every_seconds=5.0,
    beside="tenant_terms.get_tenant",
)
