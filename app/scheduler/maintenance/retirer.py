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

from models.blobs import BlobError, BlobStore
from models.jobs.ids import BELOW_ALL
from models.jobs.retire import BATCH, retire_jobs
from models.leadership import STILL_LEADER, Leader
from models.store.session import connect
from models.tallies import TallyKind

logger = logging.getLogger(__name__)

#: Rest between two walks.
WALK_SECONDS = 60.0
#: Refusals are kept for so long, and looked through once an hour.
REFUSALS_DAYS = 400
REFUSALS_SECONDS = 3600.0
FIRST_REFUSAL = (0, date(1970, 1, 1), "")

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
        FROM (VALUES {", ".join(f"('{kind}', {kind.kept_hours})" for kind in TallyKind)})
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
    SELECT tenant_id, day, code, count(*) OVER () AS looked FROM page
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
        self._cursor = BELOW_ALL
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
        step = retire_jobs(
            self._engine, self._cursor, self._kept.finished, self._kept.dead, self._leader.epoch
        )
        more = step.looked == BATCH
        self._cursor = step.last_id if more and step.last_id else BELOW_ALL
        if step.retired:
            logger.info("retired %d jobs", step.retired)
        for blob in step.blobs:
            try:
                self._blobs.delete(blob)
            except BlobError as error:
                logger.warning("left %s to the collector: %s", blob, error)
        return step.looked

    def _retire_refusals(self) -> int:
        asked = dict(zip(("tenant_id", "day", "code"), self._refusal, strict=True))
        with connect(self._engine) as connection:
            last = connection.exec_driver_sql(
                RETIRE_REFUSALS, {**asked, "epoch": self._leader.epoch}
            ).first()
        if last is None or last.looked < BATCH:
            self._refusal = FIRST_REFUSAL
        else:
            self._refusal = (last.tenant_id, last.day, last.code)
        return 0 if last is None else int(last.looked)

    def _retire_others(self) -> int:
        epoch = self._leader.epoch
        removed = 0
        with connect(self._engine) as connection:
            for statement, seconds in (
                (RETIRE_EVENTS, self._kept.events),
                (RETIRE_KEYS, self._kept.keys),
                (RETIRE_TALLIES, 0.0),
            ):
                removed += connection.exec_driver_sql(
                    statement, {"seconds": seconds, "epoch": epoch}
                ).rowcount
        return removed
