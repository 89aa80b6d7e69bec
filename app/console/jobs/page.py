"""``/console/jobs``: all jobs that match a filter, newest first or sorted by a column.

A search is bounded in jobs and time: the page says how far it got and links to where it continues.
Which columns can be sorted by depends on the filter: see :mod:`app.reads.ordered`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping

from app.api.http.state import read_standby
from app.api.services import current_services
from app.console.jobs.filter import CLASSES, GROUPS, STATUSES, JobFilter, parse_filter, resolve
from app.console.jobs.order import ListedJobs, list_jobs
from app.console.page import PageRequest, live_page
from app.reads.contents import readable_error
from app.reads.job_counts import count_dead, count_states
from app.reads.search import Wanted
from models.encryption.values import cut_text_sql
from models.pools import POOLS
from models.store.arrays import plain_array

#: A page whose search read more jobs is not live.
LIVE_LOOKS = 50_000
#: More dead letters than this are not counted.
DEAD_COUNTED = 10_000
#: Names that the form offers.
OFFERED = 200
SHOWN_ERROR = 200

READ_ROWS = f"""
    SELECT job.id::text, job.status::text, job.type, job.pool, job.attempt, job.created_at,
           job.execute_at, job.started_at, job.finished_at, job.cancel_requested_at,
           job.crashes, job.replays, job.tenant_id, tenant.name AS tenant,
           job.error_class, {cut_text_sql("job.error_message", SHOWN_ERROR)} AS error_message
    FROM jobs AS job LEFT JOIN tenants AS tenant ON tenant.id = job.tenant_id
    WHERE job.id = ANY (%(ids)s::uuid[])
"""
READ_SUBMITTED = "SELECT created_at FROM jobs WHERE id = %(id)s::uuid"
OFFER_TENANTS = f"SELECT name FROM tenants ORDER BY name LIMIT {OFFERED}"


def read_jobs(asked: PageRequest) -> dict[str, Any]:
    """A page of jobs, and how many there are in each state."""
    chosen = parse_filter(asked.args)
    rows: Sequence[Mapping[str, Any]] = ()
    page, looked_to, counts = ListedJobs(), None, None
    with read_standby() as connection:
        wanted = resolve(connection, chosen)
        if wanted is not None:
            counts = read_counts(connection, wanted)
            page = list_jobs(connection, wanted, chosen, asked.args)
            rows = read_rows(connection, page.ids)
            if page.found.cut and page.found.cursor:
                cursor = {"id": page.found.cursor}
                looked_to = connection.exec_driver_sql(READ_SUBMITTED, cursor).scalar()
    found = page.found
    return {
        "jobs": rows,
        "filter": chosen,
        "counts": counts,
        "chips": chips(chosen, counts),
        "page": page,
        "found": found,
        "looked_to": looked_to,
        "live": page.is_first
        and wanted is not None
        and not found.cut
        and found.looked <= LIVE_LOOKS,
        "missing": wanted is None and not chosen.errors,
        "groups": GROUPS,
        "statuses": STATUSES,
        "classes": CLASSES,
        "pools": sorted({*POOLS, *current_services().served_pools}),
        "types": sorted(current_services().types),
        # Called by the form, which is not live.
        "offer_tenants": offer_tenants,
    }


def read_rows(connection: Connection, ids: Sequence[str]) -> list[dict[str, Any]]:
    """What the table shows of these jobs, in their order; those retired since are left out."""
    if not ids:
        return []
    asked = {"ids": plain_array(ids)}
    found = connection.exec_driver_sql(READ_ROWS, asked).mappings()
    rows = {row["id"]: {**row, "error_message": error_of(row)} for row in found}
    return [rows[one] for one in ids if one in rows]


def error_of(row: RowMapping) -> str | None:
    """Its error as far as the table shows it."""
    message = readable_error(row["error_message"], row["tenant_id"], row["id"])
    return message and message[:SHOWN_ERROR]


def read_counts(connection: Connection, wanted: Wanted) -> dict[str, int]:
    """Jobs by state; of the dead only those not retired, up to one above DEAD_COUNTED."""
    counts = count_states(connection, wanted.tenant_id, wanted.pool)
    if counts["dead"]:
        counts["dead"] = count_dead(connection, DEAD_COUNTED + 1, wanted.tenant_id, wanted.pool)
    return counts


def chips(chosen: JobFilter, counts: Mapping[str, int] | None) -> list[dict[str, Any]]:
    """A link for each state, with its count; the rest of the filter stays."""
    status = chosen.given.get("status")
    made: list[dict[str, Any]] = [
        {"name": "all", "url": chosen.url(status=None), "here": status is None, "count": None}
    ]
    for name in STATUSES:
        total = (counts or {}).get(name, 0)
        more = name == "dead" and total > DEAD_COUNTED
        made.append(
            {
                "name": name,
                "url": chosen.url(status=name),
                "here": status == name or name in GROUPS.get(status or "", ()),
                "count": DEAD_COUNTED if more else total,
                "more": more,
                "ever": name in ("succeeded", "cancelled", "expired"),
            }
        )
    return made


def offer_tenants() -> list[str]:
    """Names that the form suggests: the first ones if there are many."""
    with read_standby() as connection:
        return [row.name for row in connection.exec_driver_sql(OFFER_TENANTS)]


JOBS = live_page("/console/jobs", "console/jobs.html", read_jobs, every_seconds=5.0)
