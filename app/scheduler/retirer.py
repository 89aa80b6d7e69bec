"""Retirer: what has ended long ago is removed, a bounded batch at a time.

Jobs go with their attempts and checkpoints, and with their application unless it has a score:
the leaderboard outlives them. Counts of ended jobs do not fall, bills stay for ever.

Ids rise with time, so the oldest jobs are at the front of the primary key: they are walked in
that order with a cursor in memory, as far as a job can be old enough, and again a minute
later. An index by age would cost every end of a job something; this costs a reader now and
then. A job that was scheduled long ago and has not ended is passed on every walk.

Blobs go after the commit. Dying in between leaves blobs that nobody names, which the
Collector finds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import date

from sqlalchemy import Engine

from app.scheduler.leader import STILL_LEADER, Leader
from models.blobs import BlobError, BlobStore
from models.session import connection

logger = logging.getLogger(__name__)

#: Jobs looked at in one statement, and other rows removed in one.
BATCH = 500
#: Rest between two walks.
WALK_SECONDS = 60.0
#: Refusals are kept for so long, and looked through once an hour.
REFUSALS_DAYS = 400
REFUSALS_SECONDS = 3600.0
FIRST_REFUSAL = (0, date(1970, 1, 1), "")
FIRST_ID = "00000000-0000-0000-0000-000000000000"

#: An id made at the given time, as far as its time goes: see models/ids.py.
OLDEST_KEPT = """(rpad(lpad(to_hex((extract(epoch FROM
            now() - make_interval(secs => least(%(finished)s, %(dead)s))) * 1000)::bigint),
            12, '0'), 32, '0'))::uuid"""

#: A job that is replayed at this moment is no longer dead when its row is locked, and stays.
#: Status as text: see CLAIM.
RETIRE_JOBS = f"""
    WITH page AS (
        SELECT id FROM jobs
        WHERE id > %(cursor)s::uuid AND id < {OLDEST_KEPT} AND {STILL_LEADER}
        ORDER BY id LIMIT {BATCH}
    ), retired AS (
        DELETE FROM jobs AS job USING page
        WHERE job.id = page.id
          AND job.status::text IN ('succeeded', 'cancelled', 'expired', 'dead')
          AND job.finished_at < now() - make_interval(
                secs => CASE job.status WHEN 'dead' THEN %(dead)s ELSE %(finished)s END)
        RETURNING job.id, job.payload_blob
    ), attempted AS (
        DELETE FROM attempts USING retired WHERE job_id = retired.id
    ), checkpointed AS (
        DELETE FROM checkpoints USING retired WHERE job_id = retired.id RETURNING blob
    ), applied AS (
        DELETE FROM applications AS application USING retired
        WHERE application.id = retired.id AND application.score IS NULL
    )
    SELECT (SELECT count(*) FROM page), (SELECT id::text FROM page ORDER BY id DESC LIMIT 1),
           (SELECT count(*) FROM retired),
           array(SELECT payload_blob FROM retired WHERE payload_blob IS NOT NULL
                 UNION ALL SELECT blob FROM checkpointed WHERE blob IS NOT NULL)
"""
#: By their place in the table: whatever the planner thinks of it, nothing else is looked at.
#: Ids of events rise with time too, so the oldest are first.
RETIRE_EVENTS = f"""
    DELETE FROM events WHERE {STILL_LEADER} AND ctid = ANY (array(
        SELECT ctid FROM (SELECT ctid, at FROM events ORDER BY id LIMIT {BATCH}) AS oldest
        WHERE at < now() - make_interval(secs => %(seconds)s)))
"""
RETIRE_KEYS = f"""
    DELETE FROM idempotency_keys WHERE {STILL_LEADER} AND ctid = ANY (array(
        SELECT ctid FROM idempotency_keys
        WHERE created_at < now() - make_interval(secs => %(seconds)s)
        ORDER BY created_at LIMIT {BATCH}))
"""
RETIRE_TALLIES = f"""
    DELETE FROM tallies WHERE {STILL_LEADER} AND ctid = ANY (array(
        SELECT tally.place
        FROM (VALUES ('dependency', 2), ('type', 2), ('retry', 2), ('violation', 2),
                     ('crash', 2), ('run', 2), ('forecast', 2), ('hour', 26))
            AS kept (kind, hours), LATERAL (
            SELECT ctid AS place FROM tallies
            WHERE tallies.kind = kept.kind
              AND bucket < now() - make_interval(hours => kept.hours)
            ORDER BY bucket LIMIT {BATCH}) AS tally))
"""
#: No index is by day, so the table is walked as that of the jobs is. Tenant 0 has the sums.
RETIRE_REFUSALS = f"""
    WITH page AS (
        SELECT ctid AS place, tenant_id, day, code FROM refusals
        WHERE (tenant_id, day, code) > (%(tenant_id)s, %(day)s::date, %(code)s) AND {STILL_LEADER}
        ORDER BY tenant_id, day, code LIMIT {BATCH}
    ), retired AS (
        DELETE FROM refusals WHERE ctid = ANY (array(
            SELECT place FROM page WHERE tenant_id <> 0 AND day < current_date - {REFUSALS_DAYS}))
    )
    SELECT tenant_id, day, code, count(*) OVER () FROM page
    ORDER BY tenant_id DESC, day DESC, code DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """How long each kind of row is kept, in seconds."""

    finished: float
    dead: float
    events: float
    keys: float


class Retirer:
    """Removes what is too old."""

    def __init__(self, engine: Engine, leader: Leader, blobs: BlobStore, kept: Kept) -> None:
        self._engine = engine
        self._leader = leader
        self._blobs = blobs
        self._kept = kept
        self._cursor = FIRST_ID
        self._walk_due = 0.0
        self._refusal: tuple[int, date, str] = FIRST_REFUSAL
        self._refusals_due = 0.0

    def run_once(self, now: float) -> int:
        """One batch of each kind; how many rows were looked at or removed."""
        touched = 0
        if now >= self._walk_due:
            looked = self._retire_jobs()
            touched += looked
            if looked < BATCH:
                self._walk_due = now + WALK_SECONDS
        if now >= self._refusals_due:
            looked = self._retire_refusals()
            touched += looked
            if looked < BATCH:
                self._refusals_due = now + REFUSALS_SECONDS
        return touched + self._retire_others()

    def _retire_jobs(self) -> int:
        with connection(self._engine) as taken:
            looked, last, retired, blobs = taken.exec_driver_sql(
                RETIRE_JOBS,
                {
                    "cursor": self._cursor,
                    "finished": self._kept.finished,
                    "dead": self._kept.dead,
                    "epoch": self._leader.epoch,
                },
            ).one()
        self._cursor = last if looked == BATCH else FIRST_ID
        if retired:
            logger.info("retired %d jobs", retired)
        for blob in blobs:
            try:
                self._blobs.delete(blob)
            except BlobError as error:
                logger.warning("left %s to the collector: %s", blob, error)
        return int(looked)

    def _retire_refusals(self) -> int:
        asked = dict(zip(("tenant_id", "day", "code"), self._refusal, strict=True))
        with connection(self._engine) as taken:
            last = taken.exec_driver_sql(
                RETIRE_REFUSALS, {**asked, "epoch": self._leader.epoch}
            ).first()
        looked = 0 if last is None else int(last[3])
        self._refusal = FIRST_REFUSAL if last is None or looked < BATCH else tuple(last[:3])
        return looked

    def _retire_others(self) -> int:
        epoch = self._leader.epoch
        removed = 0
        with connection(self._engine) as taken:
            for statement, seconds in (
                (RETIRE_EVENTS, self._kept.events),
                (RETIRE_KEYS, self._kept.keys),
                (RETIRE_TALLIES, 0.0),
            ):
                removed += taken.exec_driver_sql(
                    statement, {"seconds": seconds, "epoch": epoch}
                ).rowcount
        return removed
