"""``/console/dead-letters``: what failed for good, by type and error class.

Up to 100,000 dead letters are looked at. That many take a while, so what was found is kept for a
hundred times as long as it took: a page that somebody leaves open costs a percent of a core at
most, and shows when it was counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection, RowMapping

from app.api.http.state import read_state
from app.console.jobs.actions import ALL
from app.console.jobs.filter import FIND_TENANT, LIST
from app.console.jobs.page import offer_tenants
from app.console.page import LivePage, PageRequest
from app.reads.search import NO_CLASS

COUNTED = 100_000
GROUPS_SHOWN = 200
SHOWN_MESSAGE = 300
#: Of its own duration, how long a look is kept.
KEEP_TIMES = 100.0
#: Looks that are kept: of everybody and of some tenants.
KEEP_MOST = 50

#: The message is that of the newest job; ids as text, for they have no maximum everywhere.
#: First by tenant too: that is one pass without a sort, over what may be many.
READ_GROUPS = f"""
    WITH by_tenant AS (
        SELECT type, error_class, tenant_id, count(*) AS jobs, min(finished_at) AS oldest,
               max(finished_at) AS newest, max(id::text COLLATE "C") AS latest
        FROM (
            SELECT id, tenant_id, type, coalesce(error_class, '{NO_CLASS}') AS error_class,
                   finished_at
            FROM jobs WHERE status = 'dead'
              AND (%(tenant)s::bigint IS NULL OR tenant_id = %(tenant)s::bigint)
            ORDER BY tenant_id, id LIMIT %(most)s) AS dead
        GROUP BY type, error_class, tenant_id
    ), grouped AS (
        SELECT type, error_class, sum(jobs)::bigint AS jobs, count(*) AS tenants,
               min(oldest) AS oldest, max(newest) AS newest, max(latest) AS latest,
               sum(sum(jobs)) OVER () AS total, count(*) OVER () AS groups
        FROM by_tenant GROUP BY type, error_class
        ORDER BY jobs DESC, type, error_class LIMIT {GROUPS_SHOWN}
    )
    SELECT grouped.*, left(job.error_message, {SHOWN_MESSAGE}) AS message, now() AS counted_at
    FROM grouped LEFT JOIN jobs AS job ON job.id = grouped.latest::uuid
    ORDER BY grouped.jobs DESC, grouped.type, grouped.error_class
"""


@dataclass(frozen=True, slots=True)
class Look:
    """The dead letters at one moment."""

    groups: tuple[RowMapping, ...]
    #: None: nothing was found, or it is so quick that it is always fresh.
    counted_at: datetime | None
    #: On the clock of this process.
    kept_until: float

    @property
    def total(self) -> int:
        """All that were counted."""
        return int(self.groups[0]["total"]) if self.groups else 0


#: By tenant, None for everybody.
_kept: dict[int | None, Look] = {}


def look(
    connection: Connection, tenant_id: int | None, clock: Callable[[], float] = time.monotonic
) -> Look:
    """The dead letters by type and class; a moment old where there are very many."""
    began = clock()
    known = _kept.get(tenant_id)
    if known is not None and began < known.kept_until:
        return known
    asked = {"tenant": tenant_id, "most": COUNTED + 1}
    groups = tuple(connection.exec_driver_sql(READ_GROUPS, asked).mappings())
    took = clock() - began
    old = took * KEEP_TIMES > DEAD_LETTERS.every_seconds
    made = Look(
        groups, groups[0]["counted_at"] if old and groups else None, clock() + took * KEEP_TIMES
    )
    if not old:  # it is looked at anew each time
        _kept.pop(tenant_id, None)
        return made
    if len(_kept) >= KEEP_MOST:
        _kept.clear()
    _kept[tenant_id] = made
    return made


def read_dead_letters(asked: PageRequest) -> dict[str, Any]:
    """Groups of dead letters, of everybody or of one tenant."""
    tenant = asked.args.get("tenant", "").strip()
    tenant_id, missing = None, False
    found: Look | None = None
    with read_state() as connection:
        if tenant:
            row = connection.exec_driver_sql(FIND_TENANT, {"name": tenant}).first()
            tenant_id, missing = (row.id, False) if row else (None, True)
        if not missing:
            found = look(connection, tenant_id)
    groups = found.groups if found else ()
    return {
        "groups": [(group, links_of(group, tenant)) for group in groups],
        "tenant": tenant,
        "missing": missing,
        "total": min(found.total, COUNTED) if found else 0,
        "more": bool(found and found.total > COUNTED),
        "counted_at": found.counted_at if found else None,
        "hidden_groups": max(0, groups[0]["groups"] - len(groups)) if groups else 0,
        "offer_tenants": offer_tenants,
    }


def links_of(group: RowMapping, tenant: str) -> dict[str, str]:
    """Where its jobs are listed, and where they are replayed."""
    chosen = {"status": "dead", "type": group["type"], "error_class": group["error_class"]}
    if tenant:
        chosen["tenant"] = tenant
    return {
        "list": f"{LIST}?{urlencode(chosen)}",
        "replay": f"{ALL}?{urlencode({'action': 'replay', **chosen})}",
    }


DEAD_LETTERS = LivePage(
    "/console/dead-letters", "console/dead-letters.html", read_dead_letters, every_seconds=5.0
)
