"""Jobs of all tenants by what they have in common, newest first, at a bounded cost.

States that few jobs are in have an index of their own: it is read whole and sorted. Everything
else is a walk along the ids, a chunk at a time, until there is a page of jobs or the time is
spent. Then the walk says how far it has come, and may be taken up again from there.

Not guaranteed: that a job is still in the state it was found in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from models.jobs.ids import ABOVE_ALL, BELOW_ALL
from models.store.arrays import plain_array

#: A state with more jobs is walked along the ids: then one does not have to walk far.
FEW = 20_000
FEW_TEXTS = 2_000
#: Rows of the first step of a walk, and of its longest.
FIRST_STEP = 1_000
LONGEST_STEP = 16_000
#: A step that took longer is not followed by a longer one: the rows are far apart.
STEP_SECONDS = 0.02
#: How long a walk goes on.
WALK_SECONDS = 0.18
#: Error class of those that have none.
NO_CLASS = "none"

PASSES = """
    (%(statuses)s::job_status[] IS NULL OR status = ANY (%(statuses)s::job_status[]))
    AND (%(type)s::text IS NULL OR type = %(type)s::text)
    AND (%(pool)s::text IS NULL OR pool = %(pool)s::text)
    AND (%(error_class)s::text IS NULL OR coalesce(error_class, 'none') = %(error_class)s::text)
    AND (%(text)s::text IS NULL OR strpos(
            lower(concat_ws(' ', error_class, error_message)), lower(%(text)s::text)) > 0)"""
#: Whole states along their indexes; one of them is two states.
SOURCES = {
    "queued": "status = 'queued' ORDER BY pool, tenant_id, dependency, priority DESC, id",
    "scheduled": "status = 'scheduled' ORDER BY pool, execute_at",
    "in_flight": "status IN ('dispatched', 'running') ORDER BY pool",
    "dead": "status = 'dead' ORDER BY tenant_id, id",
}
SOURCE_OF = {
    "queued": "queued",
    "scheduled": "scheduled",
    "dispatched": "in_flight",
    "running": "in_flight",
    "dead": "dead",
}
#: Jobs by source. Ends are counted for ever, so of the dead there are no more than this.
COUNT_SOURCES = """
    SELECT coalesce(sum(queued), 0) AS queued, coalesce(sum(scheduled), 0) AS scheduled,
           coalesce(sum(dispatched + running), 0) AS in_flight, coalesce(sum(dead), 0) AS dead
    FROM job_counts WHERE tenant_id = 0
"""
COUNT_DEAD = """
    SELECT count(*) FROM (
        SELECT FROM jobs WHERE status = 'dead' ORDER BY tenant_id, id LIMIT %(most)s) AS dead
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs; what is None or empty lets all pass."""

    statuses: tuple[str, ...] = ()
    type: str | None = None
    pool: str | None = None
    error_class: str | None = None
    #: Somewhere in the error, in whatever case.
    text: str | None = None
    tenant_id: int | None = None
    #: Submitted at or after, and before.
    since: datetime | None = None
    until: datetime | None = None

    @property
    def dead_of_tenant(self) -> bool:
        """Whether the index of a tenant's dead letters has them in order."""
        return self.tenant_id is not None and self.statuses == ("dead",)

    @property
    def narrow(self) -> bool:
        """Whether some of those that a walk looks at may not pass."""
        status = bool(self.statuses) and not self.dead_of_tenant
        return any((status, self.type, self.pool, self.error_class, self.text))


@dataclass(frozen=True, slots=True)
class SearchPage:
    """What a search has come upon."""

    #: Newest first.
    ids: Sequence[str]
    #: Where to go on in the same direction; None at the end.
    cursor: str | None
    #: Whether the time was spent before there was a page of them.
    cut: bool = False
    #: Jobs that were looked at.
    looked: int = 0


def id_before(moment: datetime) -> str:
    """An id that is lower than all made at or after the moment, higher than all before."""
    milliseconds = int(moment.astimezone(UTC).timestamp() * 1000)
    value = max(0, min(milliseconds, 2**48 - 1) << 80)
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def walk_statement(wanted: Wanted, newer: bool = False) -> str:
    """One step along the ids, or along those of the tenant.

    The tenant is a range of one: see :mod:`app.reads.job_pages`.
    """
    order = "ASC" if newer else "DESC"
    if wanted.tenant_id is None:
        where, along = "id > %(bottom)s::uuid AND id < %(top)s::uuid", f"id {order}"
    else:
        where = """(tenant_id, id) > (%(tenant)s, %(bottom)s::uuid)
            AND (tenant_id, id) < (%(tenant)s, %(top)s::uuid)"""
        along = f"tenant_id {order}, id {order}"
    if wanted.dead_of_tenant:
        where += " AND status = 'dead'"
    last = "DESC" if newer else "ASC"
    return f"""
    WITH looked AS MATERIALIZED (
        SELECT id, ({PASSES}) AS passes FROM jobs WHERE {where} ORDER BY {along} LIMIT %(step)s
    )
    SELECT count(*), (SELECT id::text FROM looked ORDER BY id {last} LIMIT 1),
           array(SELECT id::text FROM looked WHERE passes ORDER BY id {order} LIMIT %(limit)s)
    FROM looked
"""


def few_statement(sources: Sequence[str], newer: bool = False) -> str:
    """All jobs of some states, and of them those that pass, in order."""
    whole = " UNION ALL ".join(
        f"""(SELECT id, tenant_id, ({PASSES}) AS passes FROM jobs
         WHERE {SOURCES[source]} LIMIT {2 * FEW})"""
        for source in sources
    )
    return f"""
    WITH looked AS MATERIALIZED ({whole})
    SELECT (SELECT count(*) FROM looked), array(
        SELECT id::text FROM looked
        WHERE passes AND id > %(bottom)s::uuid AND id < %(top)s::uuid
          AND (%(tenant)s::bigint IS NULL OR tenant_id = %(tenant)s::bigint)
        ORDER BY id {"ASC" if newer else "DESC"} LIMIT %(limit)s)
"""


def search(
    connection: Connection,
    wanted: Wanted,
    limit: int,
    *,
    before: str | None = None,
    after: str | None = None,
    seconds: float = WALK_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> SearchPage:
    """At most ``limit`` jobs: the newest, those older than ``before`` or newer than ``after``.

    ``after`` gives those next to it, and goes on towards the newest.
    """
    bottom = BELOW_ALL if wanted.since is None else id_before(wanted.since)
    top = ABOVE_ALL if wanted.until is None else id_before(wanted.until)
    asked: dict[str, Any] = {
        "bottom": max(bottom, after or bottom),
        "top": min(top, before or top),
        "statuses": plain_array(wanted.statuses) if wanted.statuses else None,
        "type": wanted.type,
        "pool": wanted.pool,
        "error_class": wanted.error_class,
        "text": wanted.text,
        "tenant": wanted.tenant_id,
    }
    newer = after is not None
    sources = few_sources(connection, wanted)
    if sources:
        found = read_few(connection, sources, asked, limit, newer)
    else:
        found = walk(connection, wanted, asked, limit, newer, clock() + seconds, clock)
    return SearchPage(found.ids[::-1], found.cursor, found.cut, found.looked) if newer else found


def few_sources(connection: Connection, wanted: Wanted) -> list[str]:
    """The indexes that hold all that is wanted and little else; empty if there are none."""
    if not wanted.statuses or wanted.dead_of_tenant:
        return []
    names = {SOURCE_OF.get(status) for status in wanted.statuses}
    if None in names:
        return []
    counted = connection.exec_driver_sql(COUNT_SOURCES).one()
    counts = {source: int(getattr(counted, source)) for source in SOURCES}
    if "dead" in names and counts["dead"] > FEW:
        counts["dead"] = connection.exec_driver_sql(COUNT_DEAD, {"most": FEW + 1}).scalar_one()
    # A text is looked for in every message, however long: that takes the walk with its deadline.
    most = FEW if wanted.text is None else FEW_TEXTS
    few = sum(counts[name] for name in SOURCES if name in names) <= most
    return [name for name in SOURCES if name in names] if few else []


def read_few(
    connection: Connection, sources: Sequence[str], asked: dict[str, Any], limit: int, newer: bool
) -> SearchPage:
    """A page out of indexes that are read whole."""
    statement = few_statement(sources, newer)
    looked, ids = connection.exec_driver_sql(statement, {**asked, "limit": limit + 1}).one()
    more = len(ids) > limit
    return SearchPage(ids[:limit], ids[limit - 1] if more else None, looked=looked)


def walk(
    connection: Connection,
    wanted: Wanted,
    asked: dict[str, Any],
    limit: int,
    newer: bool,
    deadline: float,
    clock: Callable[[], float],
) -> SearchPage:
    """A page by steps that grow, until the deadline."""
    statement = walk_statement(wanted, newer)
    # Without a filter every job that is looked at is shown, but for one that says there is more.
    step = FIRST_STEP if wanted.narrow else limit + 1
    ids: list[str] = []
    looked = 0
    while True:
        room = {"step": step, "limit": limit + 1 - len(ids)}
        began = clock()
        count, last, passing = connection.exec_driver_sql(statement, {**asked, **room}).one()
        ids += passing
        looked += count
        if len(ids) > limit:
            return SearchPage(ids[:limit], ids[limit - 1], looked=looked)
        if count < step:
            return SearchPage(ids, None, looked=looked)
        if clock() >= deadline:
            return SearchPage(ids, last, cut=True, looked=looked)
        asked["bottom" if newer else "top"] = last
        if clock() - began < STEP_SECONDS:
            step = min(2 * step, LONGEST_STEP)
