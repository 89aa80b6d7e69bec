"""Retirer: deletes what ended long ago, a bounded batch at a time.

Jobs are deleted with their attempts and checkpoints, and with their application unless it has a
score; scored ones are deleted only if there is a setting for it. Counts of ended jobs do not fall,
usage is kept for ever. Ids rise with time, so jobs are walked along the primary key with a cursor
in memory; an index by age would cost something at every end of a job. Blobs are deleted after the
commit; the Collector finds those a crash leaves.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import date

from sqlalchemy import Engine

from app.scheduler.maintenance.blob_deletes import BlobDeletes
from app.scheduler.role import RoleQueries
from models.blobs import BlobStore
from models.jobs.ids import BELOW_ALL
from models.jobs.replay_requests import RETIRE as RETIRE_REPLAYS
from models.jobs.retire import BATCH, RETIRE_JOBS, RETIRE_SCORED
from models.leadership import STILL_LEADER, Leader
from models.tallies import FOLD_TOTALS, TallyKind

logger = logging.getLogger(__name__)

#: Pause after a turn that found nothing old.
RETIRE_SECONDS = 30.0
#: Pause between two walks.
WALK_SECONDS = 60.0
#: Refusals are kept for so long, and walked once an hour.
REFUSALS_DAYS = 400
REFUSALS_SECONDS = 3600.0
#: Old acts are looked for this often.
AUDIT_SECONDS = 600.0
#: Totals are folded this often.
FOLD_SECONDS = 300.0
FIRST_REFUSAL = (0, date(1970, 1, 1), "")

#: By ctid: whatever the planner chooses, nothing else is read. Ids of events rise with time too.
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
#: Those of revoked keys are useless at once and deleted with the others, by their limits.
RETIRE_SESSIONS = f"""
    DELETE FROM sessions WHERE {STILL_LEADER} AND ctid = ANY (array(
        SELECT ctid FROM sessions WHERE ends_at < now() ORDER BY ends_at LIMIT {BATCH}))
"""
#: How long counts are kept, by kind; workers of the previous version still count runs by the
#: hour.
KEPT_HOURS = {"hour": 26} | {kind.value: kind.kept_hours for kind in TallyKind if kind.kept_hours}
#: Counts of idempotency keys are needed for as long as those are kept, to the hour.
RETIRE_TALLIES = f"""
    DELETE FROM tallies WHERE {STILL_LEADER} AND ctid = ANY (array(
        SELECT tally.place
        FROM (VALUES {", ".join(f"('{kind}', {hours})" for kind, hours in KEPT_HOURS.items())})
            AS kept (kind, hours), LATERAL (
            SELECT ctid AS place FROM tallies
            WHERE tallies.kind = kept.kind
              AND bucket < now() - make_interval(hours => kept.hours)
              AND (kept.kind <> '{TallyKind.IDEMPOTENCY_KEY}'
                   OR bucket < now() - make_interval(secs => %(keys)s, hours => 2))
            ORDER BY bucket LIMIT {BATCH}) AS tally))
"""
#: The database lets nothing else delete these: see migration 0021.
RETIRE_AUDIT = f"""
    SELECT retire_audit(%(seconds)s, {BATCH}) AS retired WHERE {STILL_LEADER}
"""
FOLD = FOLD_TOTALS.format(condition=STILL_LEADER)
#: There is no index by day, so the table is walked like that of jobs. Tenant 0 has the sums.
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
    #: Scored applications; 0: for ever.
    scored: float = 0.0
    audit: float = 365 * 86_400.0


class Retirer(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader, blobs: BlobStore, kept: Kept) -> None:
        super().__init__(engine, leader)
        self._deletes = BlobDeletes(blobs)
        self._kept = kept
        self._cursor = BELOW_ALL
        self._walk_due = 0.0
        self._scored_cursor = BELOW_ALL
        self._scored_due = 0.0
        self._refusal: tuple[int, date, str] = FIRST_REFUSAL
        self._refusals_due = 0.0
        self._fold_due = 0.0
        self._audit_due = 0.0

    def run_once(self, now: float) -> int:
        """One batch of each kind; how many rows were read or deleted."""
        touched = 0
        if now >= self._walk_due:
            looked = self._retire_jobs()
            touched += looked
            if looked < BATCH:
                self._walk_due = now + WALK_SECONDS
        if self._kept.scored and now >= self._scored_due:
            looked = self._retire_scored()
            touched += looked
            if looked < BATCH:
                self._scored_due = now + WALK_SECONDS
        if now >= self._refusals_due:
            looked = self._retire_refusals()
            touched += looked
            if looked < BATCH:
                self._refusals_due = now + REFUSALS_SECONDS
        if now >= self._audit_due:
            retired = self._retire_audit()
            touched += retired
            if retired < BATCH:
                self._audit_due = now + AUDIT_SECONDS
        if now >= self._fold_due:
            self._write(FOLD)
            self._fold_due = now + FOLD_SECONDS
        touched += self._write(RETIRE_EVENTS, seconds=self._kept.events)
        touched += self._write(RETIRE_KEYS, seconds=self._kept.keys)
        touched += self._write(RETIRE_REPLAYS, seconds=self._kept.events)
        touched += self._write(RETIRE_SESSIONS)
        return touched + self._write(RETIRE_TALLIES, keys=self._kept.keys)

    def _retire_jobs(self) -> int:
        kept = self._kept
        [step] = self._read(
            RETIRE_JOBS, cursor=self._cursor, finished=kept.finished, dead=kept.dead
        )
        self._cursor = step.last_id if step.looked == BATCH else BELOW_ALL
        if step.retired:
            logger.info("retired %d jobs", step.retired)
        self._deletes.delete(step.blobs)  # the collector finds the others
        return int(step.looked)

    def _retire_scored(self) -> int:
        [step] = self._read(RETIRE_SCORED, cursor=self._scored_cursor, scored=self._kept.scored)
        self._scored_cursor = step.last_id if step.looked == BATCH else BELOW_ALL
        if step.retired:
            logger.info("retired %d scored applications", step.retired)
        return int(step.looked)

    def _retire_refusals(self) -> int:
        tenant_id, day, code = self._refusal
        page = self._read(RETIRE_REFUSALS, tenant_id=tenant_id, day=day, code=code)
        looked = page[0].looked if page else 0
        more = looked == BATCH
        self._refusal = (page[0].tenant_id, page[0].day, page[0].code) if more else FIRST_REFUSAL
        return int(looked)

    def _retire_audit(self) -> int:
        rows = self._read(RETIRE_AUDIT, seconds=self._kept.audit)
        return int(rows[0].retired) if rows else 0
