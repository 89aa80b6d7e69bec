"""``/console/dead-letters``: what failed for good, by type and error class.

Up to 100,000 dead letters are counted. That takes a while, so the result is cached for a hundred
times as long as it took: a page that somebody leaves open costs a percent of a core at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection, Row, RowMapping
from werkzeug.wrappers import Response

from app.api.http.query import known_id
from app.api.http.state import read_standby, write_state
from app.console.jobs.actions import ALL
from app.console.jobs.filter import FIND_TENANT, LIST
from app.console.jobs.page import offer_tenants
from app.console.page import PageRequest, done, live_page, route
from app.errors import NotFound
from app.reads.contents import readable_error
from app.reads.search import NO_CLASS
from models.audit import Act
from models.encryption.values import cut_text_sql
from models.jobs import replay_requests
from models.jobs.replay_requests import list_running

COUNTED = 100_000
GROUPS_SHOWN = 200
REPLAYS_SHOWN = 20
SHOWN_MESSAGE = 300
#: For how many times its duration a result is cached.
KEEP_TIMES = 100.0
#: Results that are cached: of all tenants and of some.
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
    SELECT grouped.*, {cut_text_sql("job.error_message", SHOWN_MESSAGE)} AS message,
           job.tenant_id AS latest_tenant, now() AS counted_at
    FROM grouped LEFT JOIN jobs AS job ON job.id = grouped.latest::uuid
    ORDER BY grouped.jobs DESC, grouped.type, grouped.error_class
"""


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """The dead letters at one moment."""

    groups: tuple[Mapping[str, Any], ...]
    #: None if nothing was found, or if it is quick enough to be counted each time.
    counted_at: datetime | None
    #: By the clock of this process.
    cached_until: float

    @property
    def total(self) -> int:
        return int(self.groups[0]["total"]) if self.groups else 0


#: By tenant, None for all of them.
_cached: dict[int | None, DeadLetterGroups] = {}


def read_groups(
    connection: Connection, tenant_id: int | None, clock: Callable[[], float] = time.monotonic
) -> DeadLetterGroups:
    """The dead letters by type and class; from the cache where there are very many."""
    began = clock()
    known = _cached.get(tenant_id)
    if known is not None and began < known.cached_until:
        return known
    asked = {"tenant": tenant_id, "most": COUNTED + 1}
    rows = connection.exec_driver_sql(READ_GROUPS, asked).mappings()
    groups = tuple({**row, "message": message_of(row)} for row in rows)
    took = clock() - began
    # That there are none is not kept: the page could not say when that was.
    keep = bool(groups) and took * KEEP_TIMES > DEAD_LETTERS.every_seconds
    counted_at = groups[0]["counted_at"] if keep else None
    found = DeadLetterGroups(groups, counted_at, clock() + took * KEEP_TIMES)
    _cached.pop(tenant_id, None)
    if keep:
        if len(_cached) >= KEEP_MOST:
            _cached.clear()
        _cached[tenant_id] = found
    return found


def message_of(group: RowMapping) -> str | None:
    """The error of its newest job, as far as it is shown."""
    message = readable_error(group["message"], group["latest_tenant"], group["latest"])
    return message and message[:SHOWN_MESSAGE]


def read_dead_letters(asked: PageRequest) -> dict[str, Any]:
    """Groups of dead letters, of all tenants or of one."""
    tenant = asked.args.get("tenant", "").strip()
    found = DeadLetterGroups((), None, 0.0)
    replays: Sequence[Row[Any]] = ()
    with read_standby() as connection:
        row = connection.exec_driver_sql(FIND_TENANT, {"name": tenant}).first() if tenant else None
        missing = bool(tenant) and row is None
        if not missing:
            found = read_groups(connection, row.id if row else None)
            replays = list_running(connection, row.id if row else None, REPLAYS_SHOWN)
    groups = found.groups
    return {
        "groups": [(group, links_of(group, tenant)) for group in groups],
        "tenant": tenant,
        "missing": missing,
        "replays": replays,
        "total": min(found.total, COUNTED),
        "more": found.total > COUNTED,
        "counted_at": found.counted_at,
        "hidden_groups": max(0, groups[0]["groups"] - len(groups)) if groups else 0,
        "offer_tenants": offer_tenants,
    }


def links_of(group: Mapping[str, Any], tenant: str) -> dict[str, str]:
    """Links that list, replay and discard its jobs."""
    chosen = {"status": "dead", "type": group["type"], "error_class": group["error_class"]}
    if tenant:
        chosen["tenant"] = tenant
    return {
        "list": f"{LIST}?{urlencode(chosen)}",
        "replay": f"{ALL}?{urlencode({'action': 'replay', **chosen})}",
        "discard": f"{ALL}?{urlencode({'action': 'discard', **chosen})}",
    }


@route("POST", "/console/replays/<replay_id>/cancel", acts=(Act.REPLAY_CANCEL,))
def post_cancel_replay(replay_id: str) -> Response:
    """What it has queued stays queued."""
    with write_state() as engine:
        if replay_requests.read(engine, known_id(replay_id)) is None:
            raise NotFound
        replay_requests.cancel(engine, known_id(replay_id))
    return done("/console/dead-letters", "The replay is cancelled.")


DEAD_LETTERS = live_page(
    "/console/dead-letters", "console/dead-letters.html", read_dead_letters, every_seconds=5.0
)
