"""``/tenant`` for browsers: a tenant's own jobs, usage and keys, and no one else's.

Programs that request the same address get a JSON document instead; see
:mod:`app.api.routes.tenant`. Every statement is limited to the tenant and bounded.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from app.api.auth.access import Access
from app.api.http.state import read_state
from app.api.services import current_services
from app.console.jobs.job import shown_wait
from app.console.page import PageRequest, live_page
from app.console.tenant_page.flow import flow_of, read_flow
from app.console.tenants.one import read_tenant
from app.reads.contents import readable_error
from app.reads.job_pages import read_page
from app.reads.search import Wanted
from app.reads.waits import read_facts
from models.jobs.ids import ABOVE_ALL
from models.jobs.lane_walk import head_walk
from models.jobs.replay_requests import list_running
from models.pools import POOLS

#: Latest jobs, and latest dead letters, that are listed.
LATEST = 20
LATEST_DEAD = 10
#: Dead letters that are counted, and groups of them.
MOST_DEAD = 5_000
MOST_GROUPS = 50
#: Replays in progress that are listed.
MOST_REPLAYS = 10
#: Parts of a queue, by dependency and priority, whose oldest job is read, in each pool.
MOST_HEADS = 50

#: The first job of each part of the queue in which jobs are ordered by age.
READ_OLDEST = f"""{head_walk(tenant="%(tenant)s", most=MOST_HEADS)}
    SELECT id::text FROM head ORDER BY id LIMIT 1
"""

#: The tenant is a range of one, or the planner might walk the ids of all tenants.
GROUP_DEAD = f"""
    SELECT type, error_class, count(*)::int AS jobs, max(finished_at) AS newest,
           sum(count(*)) OVER ()::int AS total
    FROM (SELECT type, error_class, finished_at FROM jobs
          WHERE tenant_id >= %(tenant)s AND (tenant_id, id) < (%(tenant)s, %(above)s::uuid)
            AND status = 'dead'
          ORDER BY tenant_id DESC, id DESC LIMIT {MOST_DEAD}) AS dead
    GROUP BY type, error_class ORDER BY jobs DESC, type, error_class LIMIT {MOST_GROUPS}
"""


def read(asked: PageRequest) -> dict[str, Any]:
    return shown(read_parts(asked))


def shown(parts: dict[str, Any]) -> dict[str, Any]:
    """The parts as the template needs them."""
    return parts | {"flow": flow_of(*parts["flow"])}


def read_parts(asked: PageRequest) -> dict[str, Any]:
    """What the page is made of, so that it can be merged with the same of other cells."""
    # By its terms of now: they may change while the page is viewed.
    tenant = current_services().visitors.tenant_named(asked.own.name) or asked.own
    with read_state() as connection:
        return {
            **read_tenant(connection, tenant),
            "flow": read_flow(connection, tenant.id),
            "waiting": read_waiting_job(connection, tenant.id),
            "dead": read_dead(connection, tenant.id),
            "jobs": read_page(connection, Wanted(tenant_id=tenant.id), LATEST, None).rows,
        }


def read_waiting_job(connection: Connection, tenant_id: int) -> dict[str, Any] | None:
    """The tenant's oldest queued job and what delays it; None if nothing is queued."""
    asked = {"tenant": tenant_id, "pools": list(POOLS)}
    job_id: str | None = connection.exec_driver_sql(READ_OLDEST, asked).scalar()
    found = None if job_id is None else read_facts(connection, job_id)
    if found is None or found.tenant_id != tenant_id:
        return None
    return {"id": job_id, **shown_wait(found)}


def read_dead(connection: Connection, tenant_id: int) -> dict[str, Any]:
    """Dead letters by type and class, how many, and the latest of them."""
    rows = connection.exec_driver_sql(GROUP_DEAD, {"tenant": tenant_id, "above": ABOVE_ALL}).all()
    replays = list_running(connection, tenant_id, MOST_REPLAYS)
    if not rows:
        return {"groups": (), "count": 0, "replays": replays}
    dead = Wanted(statuses=("dead",), tenant_id=tenant_id)
    page = read_page(connection, dead, LATEST_DEAD, None)
    latest = [
        {**row, "error_message": readable_error(row["error_message"], tenant_id, row["id"])}
        for row in page.rows
    ]
    total = rows[0].total
    return {
        "groups": rows,
        "count": total,
        "more": total >= MOST_DEAD,
        "latest": latest,
        "replays": replays,
    }


TENANT_PAGE = live_page(
    "/tenant",
    "console/tenant-page.html",
    read,
    access=Access.TENANT_PAGE,
    every_seconds=5.0,
    beside="tenant_terms.get_tenant",
)
