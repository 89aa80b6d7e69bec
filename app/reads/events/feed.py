"""The tenant's feed: ends of its jobs and rows of ``events``, in one order, without a gap.

Order is by transaction number, and only transactions below the oldest one still open in this
database are shown. Numbers are given at the first write and rows appear at the commit, so that a
larger number may appear first: a client that read up to it would never see the smaller one. Below
the oldest open transaction nothing can appear any more. The price: a transaction that stays open
delays every feed.

A dead job that is replayed leaves the feed until it ends again: a client that was away
meanwhile gets the second end alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Engine, RowMapping

from app.reads.contents import readable_detail, readable_error
from app.reads.events.message import message
from app.reads.events.position import ALL_EVENTS, NO_JOB, START, Position, resumed
from app.reads.times import rfc3339
from models.feed import FeedGeneration, read_generations
from models.jobs.states import JobStatus
from models.store.session import connect

#: Entries a reader gets at a time.
PAGE = 100

#: What the end of a job is called.
END_NAMES = {
    JobStatus.SUCCEEDED: "job_succeeded",
    JobStatus.DEAD: "job_dead",
    JobStatus.CANCELLED: "job_cancelled",
    JobStatus.EXPIRED: "late_execution",
}

#: The oldest transaction that may still add to a feed: of those that were open when this
#: statement began, those are left out that are seen to write in another database. They are looked
#: at after the snapshot was taken: one that has ended meanwhile is not left out, and one that
#: began meanwhile is not below. Takes the parameter ``shift``.
HORIZON = """horizon AS MATERIALIZED (
        SELECT (coalesce(min(open.xid), CASE
                    -- The snapshot of a standby does not list them.
                    WHEN pg_is_in_recovery() THEN pg_snapshot_xmin(pg_current_snapshot())
                    ELSE pg_snapshot_xmax(pg_current_snapshot()) END
                )::text::bigint + %(shift)s)::text::xid8 AS xid
        FROM pg_snapshot_xip(pg_current_snapshot()) AS open (xid)
        WHERE NOT EXISTS (
            SELECT FROM pg_stat_get_activity(NULL) AS backend
            WHERE backend.backend_xid = open.xid::xid
              AND backend.datid <> (SELECT oid FROM pg_database
                                    WHERE datname = current_database())
        ) AND NOT EXISTS (
            SELECT FROM pg_prepared_xacts AS prepared
            WHERE prepared.transaction = open.xid::xid
              AND prepared.database <> current_database()
        )
    )"""
CLOSED = "(SELECT xid FROM horizon)"


def events_after(tenant: str) -> str:
    """A page of a tenant's rows of ``events`` behind a place, as the feed has its columns."""
    return f"""
        (SELECT xid, id, '{NO_JOB}', kind, NULL, NULL, NULL, NULL, NULL, at, job_id::text,
                detail::text
         FROM events
         WHERE tenant_id = {tenant}
           AND (xid, id) > (place.xid, place.event_id) AND xid < {CLOSED}
         ORDER BY xid, id LIMIT {PAGE})"""


READ_ENTRIES = f"""
    WITH {HORIZON}
    SELECT place.number, entry.*
    FROM unnest(%(tenants)s::bigint[], %(xids)s::xid8[], %(event_ids)s::bigint[],
                %(job_ids)s::uuid[])
        WITH ORDINALITY AS place (tenant_id, xid, event_id, job_id, number),
    LATERAL (
        (SELECT ended_xid AS xid, {ALL_EVENTS} AS event_id, id AS job_id, status::text AS name,
                type, attempt, crashes, error_class, error_message, finished_at AS at,
                NULL AS subject, NULL AS detail
         FROM jobs
         WHERE tenant_id = place.tenant_id AND ended_xid IS NOT NULL
           AND (ended_xid, id) > (place.xid, place.job_id) AND ended_xid < {CLOSED}
         ORDER BY ended_xid, id LIMIT {PAGE})
        UNION ALL {events_after("place.tenant_id")}
        UNION ALL {events_after("0")}
        ORDER BY xid, event_id, job_id LIMIT {PAGE}
    ) AS entry
    ORDER BY place.number, entry.xid, entry.event_id, entry.job_id
"""
#: The last entry of each feed; that of an empty one is before everything.
READ_ENDS = f"""
    WITH {HORIZON}
    SELECT place.tenant_id, last.xid::text, last.event_id, last.job_id::text,
           pg_snapshot_xmax(pg_current_snapshot())::text::bigint + %(shift)s AS next_xid
    FROM unnest(%(tenants)s::bigint[]) AS place (tenant_id)
    LEFT JOIN LATERAL (
        (SELECT ended_xid AS xid, {ALL_EVENTS} AS event_id, id AS job_id FROM jobs
         WHERE tenant_id = place.tenant_id AND ended_xid IS NOT NULL AND ended_xid < {CLOSED}
         ORDER BY ended_xid DESC, id DESC LIMIT 1)
        UNION ALL
        (SELECT xid, id, '{NO_JOB}' FROM events
         WHERE tenant_id = place.tenant_id AND xid < {CLOSED}
         ORDER BY xid DESC, id DESC LIMIT 1)
        UNION ALL
        (SELECT xid, id, '{NO_JOB}' FROM events WHERE tenant_id = 0 AND xid < {CLOSED}
         ORDER BY xid DESC, id DESC LIMIT 1)
        ORDER BY xid DESC, event_id DESC, job_id DESC LIMIT 1
    ) AS last ON true
"""


@dataclass(slots=True)
class FeedEntry:
    """One entry of a feed."""

    position: Position
    #: Type of the job that ended; None for what is not the end of a job.
    job_type: str | None
    _row: RowMapping
    _tenant_id: int
    _event: bytes = b""

    @property
    def event(self) -> bytes:
        """As it is sent; written when it is first asked for: filters drop many."""
        self._event = self._event or event_of(self._row, self.position, self._tenant_id)
        return self._event


@dataclass(frozen=True, slots=True)
class FeedEnd:
    """How far a feed goes now."""

    position: Position
    #: The next transaction; no position as high was ever given out. Not the oldest open one: that
    #: may be of another database, and be left out at one time and not the next.
    next_xid: int
    generations: Sequence[FeedGeneration]

    def resumed(self, position: Position) -> Position | None:
        """Where a reader that was there goes on; None if it was never there."""
        position = resumed(position, self.generations)
        return position if position.xid < self.next_xid else None


#: A reader's place: whose feed, and the last entry read.
Place = tuple[int, Position]


def read_entries(engine: Engine, places: Sequence[Place]) -> list[list[FeedEntry]]:
    """For each place the next entries, a page at most."""
    with connect(engine) as connection:
        generations = read_generations(connection)
        positions = [resumed(position, generations) for _, position in places]
        asked = {
            "shift": generations[-1].shift,
            "tenants": [tenant_id for tenant_id, _ in places],
            "xids": [str(position.xid) for position in positions],
            "event_ids": [position.event_id for position in positions],
            "job_ids": [position.job_id for position in positions],
        }
        rows = connection.exec_driver_sql(READ_ENTRIES, asked).mappings().all()
    pages: list[list[FeedEntry]] = [[] for _ in places]
    for row in rows:
        tenant_id, _ = places[row["number"] - 1]
        pages[row["number"] - 1].append(entry(row, generations[-1].tag, tenant_id))
    return pages


def read_ends(engine: Engine, tenant_ids: Sequence[int]) -> dict[int, FeedEnd]:
    """Where the feed of each tenant ends now."""
    with connect(engine) as connection:
        generations = read_generations(connection)
        asked = {"tenants": list(set(tenant_ids)), "shift": generations[-1].shift}
        rows = connection.exec_driver_sql(READ_ENDS, asked).mappings().all()
    ends = {}
    for row in rows:
        empty = row["xid"] is None
        last = START if empty else Position(int(row["xid"]), row["event_id"], row["job_id"])
        last = last._replace(generation=generations[-1].tag)
        ends[row["tenant_id"]] = FeedEnd(last, row["next_xid"], generations)
    return ends


def entry(row: RowMapping, generation: str, tenant_id: int) -> FeedEntry:
    """A row of READ_ENTRIES of this tenant's feed."""
    position = Position(int(row["xid"]), row["event_id"], str(row["job_id"]), generation)
    return FeedEntry(position, row["type"], row, tenant_id)


def event_of(row: RowMapping, position: Position, tenant_id: int) -> bytes:
    """The same as it is sent."""
    job_type, failure = row["type"], row["error_class"]
    document: dict[str, Any]
    if job_type is None:
        name = row["name"]
        detail = readable_detail(name, row["detail"], tenant_id, row["subject"])
        document = {"job_id": row["subject"], "detail": orjson.Fragment(detail)}
    else:
        name = END_NAMES[JobStatus(row["name"])]
        said = readable_error(row["error_message"], tenant_id, position.job_id)
        error = None if failure is None else {"class": failure, "message": said}
        document = {
            "id": position.job_id,
            "type": job_type,
            "status": row["name"],
            "attempt": row["attempt"],
            "crashes": row["crashes"],
            "error": error,
        }
    document = {"event": name, **document, "at": rfc3339(row["at"])}
    return message(name, orjson.dumps(document), str(position))
