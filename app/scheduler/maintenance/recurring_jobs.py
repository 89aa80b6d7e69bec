"""Recurring jobs: each tick of a schedule becomes one job.

A turn is one transaction: it locks a bounded number of due schedules, decides for each by
:mod:`app.tenants.ticks`, moves them to their next tick and admits the jobs. A crash before the
commit changes nothing, and a second leader skips what is locked: every tick is made once.

The jobs are those that ``POST /jobs`` would make, with ``execute_at`` the time of the tick. A tick
that the tenant's rate or queue depth has no room for stays due: it is made when there is room, or
given up by the rules for an outage (``catch_up``), with the reason in the event. A tick that cannot
become a job (an unknown or forbidden type, a payload that no longer fits) is skipped. A schedule
that fails otherwise is paused; the others go on. Events: ``schedule_run`` with the job of a tick,
``schedule_skipped``, ``schedule_missed``, ``schedule_paused``.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import orjson
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError

from app.admission.depth import TenantQueue
from app.admission.intake import job_submission
from app.admission.pool_of_type import placed, read_moved
from app.admission.tenant_limits import TenantLimits
from app.errors import Forbidden, ValidationFailed
from app.reads.times import rfc3339
from app.scheduler.role import RoleQueries
from app.telemetry.hooks import carrying_traces
from app.tenants.allowed_types import AllowedTypes, require_types
from app.tenants.cron import BadCron, UnknownZone, read_rule
from app.tenants.schedules import COLUMNS, FIELDS, RecurringSchedule, payload_of, stored_reason
from app.tenants.ticks import (
    LATE_SECONDS,
    MOST_A_TURN,
    CatchUp,
    Overlap,
    TickDecision,
    TickPolicy,
    decide,
)
from models.jobs.admit import JobsOfAwayTenants, insert_jobs
from models.jobs.held_back import AWAY
from models.jobs.submission import Submission
from models.leadership import STILL_LEADER, Leader
from models.store.arrays import moment_array, plain_array, text_array
from models.store.errors import StateStoreError
from models.store.prepared import PreparedStatement
from models.store.session import fetch, transaction
from models.tallies import ADD, TallyKind, added
from tasks.registry import JobType

logger = logging.getLogger(__name__)

#: Schedules of one turn, and jobs of all of them together if they catch up after an outage.
BATCH = 200
JOBS_A_TURN = 400
#: Pause between two turns.
TICK_SECONDS = 0.25
#: A turn ends after this time; the dispatcher waits meanwhile.
TURN_SECONDS = 0.1

#: One step along the index.
ANY_DUE = """
    SELECT first.next_at <= now() AS due FROM (
        SELECT next_at FROM schedules WHERE NOT paused ORDER BY next_at LIMIT 1) AS first
"""
PREPARED = PreparedStatement("any_due", ANY_DUE)
#: The oldest ticks first, or the youngest. The previous job is read by key: an EXISTS may be
#: planned as a scan of the whole table.
FIND_OLDEST, FIND_YOUNGEST = (
    f"""
    SELECT now() AS moment, schedule.overlap = 'skip' AND coalesce((
               SELECT job.status::text IN ('scheduled', 'queued', 'dispatched', 'running')
               FROM jobs AS job WHERE job.id = schedule.last_job_id), false) AS busy,
           (SELECT types FROM tenants WHERE tenants.id = schedule.tenant_id) AS allowed,
           coalesce((SELECT number FROM cell_identity), 0) AS cell, {COLUMNS}
    FROM schedules AS schedule
    WHERE NOT schedule.paused AND schedule.next_at <= now()
      AND schedule.tenant_id <> ALL (%(held)s::bigint[])
      AND schedule.tenant_id NOT IN ({AWAY}) AND {STILL_LEADER}
    ORDER BY schedule.next_at {order} LIMIT {BATCH}
    FOR UPDATE OF schedule SKIP LOCKED
"""
    for order in ("ASC", "DESC")
)
#: The rows are locked; the conditions repeat what the locks ensure.
MOVE = f"""
    WITH moved AS (
        UPDATE schedules AS schedule
        SET next_at = move.next_at, paused = move.stopped,
            last_at = coalesce(move.last_at, schedule.last_at),
            last_job_id = coalesce(move.last_job_id, schedule.last_job_id),
            made = schedule.made + move.made, skipped = schedule.skipped + move.skipped
        FROM unnest(%(ids)s::uuid[], %(expected)s::timestamptz[], %(next_at)s::timestamptz[],
                    %(stopped)s::bool[], %(last_at)s::timestamptz[], %(last_jobs)s::uuid[],
                    %(made)s::int[], %(skipped)s::int[])
            AS move (id, expected, next_at, stopped, last_at, last_job_id, made, skipped)
        WHERE schedule.id = move.id AND schedule.next_at = move.expected
          AND NOT schedule.paused AND {STILL_LEADER}
        RETURNING schedule.id
    ), reported AS (
        INSERT INTO events (tenant_id, kind, detail)
        SELECT tenant_id, kind, detail::json
        FROM unnest(%(event_tenants)s::bigint[], %(event_kinds)s::text[],
                    %(event_details)s::text[]) AS event (tenant_id, kind, detail)
        WHERE {STILL_LEADER}
    )
    SELECT count(*) FROM moved
"""


class NotLeading(Exception):
    """Another scheduler leads: the turn is rolled back."""


@dataclass(frozen=True, slots=True)
class ScheduleMove:
    """What a turn does to one schedule."""

    schedule: RecurringSchedule
    next_at: datetime | None
    jobs: tuple[Submission, ...] = ()
    skipped: int = 0
    #: It has no further ticks until it is changed or resumed.
    stopped: bool = False
    #: Kinds and details.
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def add_event(self, kind: str, **detail: object) -> None:
        """Add an event about the schedule."""
        self.events.append((kind, {**named(self.schedule), **detail}))


def named(schedule: RecurringSchedule) -> dict[str, object]:
    return {"schedule": schedule.id, "name": schedule.name}


def stopped(schedule: RecurringSchedule, reason: str) -> ScheduleMove:
    """Pause a schedule until it is changed or resumed."""
    move = ScheduleMove(schedule, schedule.next_at, stopped=True)
    move.add_event("schedule_paused", reason=reason)
    return move


def within(move: ScheduleMove, left: dict[TenantQueue, int]) -> ScheduleMove | None:
    """As much of a move as there is room ``left`` for, and takes it; None if there is none.

    The first tick that does not fit is the schedule's next one again.
    """
    if not move.jobs:
        return move
    queue = move.schedule.tenant_id, move.jobs[0].pool  # one type, one pool
    fits = min(len(move.jobs), left[queue])
    left[queue] -= fits
    if fits == 0:
        return None
    if fits == len(move.jobs):
        return move
    return replace(move, jobs=move.jobs[:fits], next_at=move.jobs[fits].execute_at)


def is_external(error: Exception) -> bool:
    """Another scheduler leads, a tenant was sent away, or the state store is unavailable."""
    if isinstance(error, DBAPIError):
        return not isinstance(error, (DataError, IntegrityError, ProgrammingError))
    return isinstance(error, (NotLeading, JobsOfAwayTenants, StateStoreError))


class RecurringJobs(RoleQueries):
    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        types: Mapping[str, JobType],
        served_pools: Collection[str],
        tenant_limits: TenantLimits,
    ) -> None:
        super().__init__(engine, leader)
        self._types = types
        self._served_pools = served_pools
        self._tenant_limits = tenant_limits
        self._turns = 0
        #: The number of this cell, for ids.
        self._cell = 0
        #: Tenants whose limits had no room: which, and until when their schedules are left alone.
        self._held: dict[int, tuple[str, float]] = {}

    def run_once(self, now: float) -> int:
        """Create the jobs that are due; how many schedules were moved."""
        if not any(row.due for row in fetch(self._engine, PREPARED)):
            return 0
        try:
            with transaction(self._engine) as connection:
                return self._turn(connection, now)
        except (NotLeading, JobsOfAwayTenants):
            return 0  # the next turn finds no schedules of tenants that were just sent away

    def _turn(self, connection: Connection, now: float) -> int:
        # Every other turn begins with the youngest: ticks that are on time do not wait until
        # others have caught up after an outage.
        self._turns += 1
        find = FIND_OLDEST if self._turns % 2 else FIND_YOUNGEST
        self._held = {one: hold for one, hold in self._held.items() if hold[1] > now - LATE_SECONDS}
        held = [tenant_id for tenant_id, (_, until) in self._held.items() if until > now]
        due = connection.exec_driver_sql(find, {"epoch": self._leader.epoch, "held": held})
        rows = due.columns("moment", "busy", "allowed", "cell", *FIELDS).all()
        if not rows:
            return 0
        most = max(1, min(MOST_A_TURN, JOBS_A_TURN // len(rows)))
        enough = time.monotonic() + TURN_SECONDS
        moves: list[ScheduleMove] = []
        for moment, busy, allowed, self._cell, *values in rows:
            schedule = RecurringSchedule(*values)
            try:
                moves.append(self._move(schedule, moment, busy, allowed, most))
            except Exception as error:  # the ticks of the others are due as well
                logger.exception("schedule %s is paused", schedule.id)
                moves.append(stopped(schedule, f"it failed: {type(error).__name__}"))
            if time.monotonic() > enough:
                break
        moves = self._within_limits(self._placed(connection, moves), now)
        if moves:
            self._save(connection, moves)
        return len(moves)

    def _placed(
        self, connection: Connection, moves: Sequence[ScheduleMove]
    ) -> Sequence[ScheduleMove]:
        """The moves, with their jobs in the pools they belong to."""
        moved = read_moved(connection, self._served_pools)
        return [replace(move, jobs=tuple(placed(move.jobs, moved))) for move in moves]

    def _within_limits(self, moves: Sequence[ScheduleMove], now: float) -> list[ScheduleMove]:
        """The moves that their tenants' limits have room for, whole or in part.

        The others are left out: their schedules stay as they are, and due.
        """
        wanted = Counter((job.tenant_id, job.pool) for move in moves for job in move.jobs)
        if not wanted:
            return list(moves)
        allowance = self._tenant_limits.take(wanted)
        for tenant_id, _ in wanted:
            self._held.pop(tenant_id, None)
        for tenant_id, hold in allowance.held.items():
            self._held[tenant_id] = hold.code, now + hold.seconds
        return [part for move in moves if (part := within(move, allowance.jobs)) is not None]

    def _save(self, connection: Connection, moves: Sequence[ScheduleMove]) -> None:
        """Write the moves and their jobs; one by one if that fails, and pause those that fail."""
        try:
            with connection.begin_nested():
                self._write_moves(connection, moves)
                jobs = [job for move in moves for job in move.jobs]
                if jobs:
                    insert_jobs(connection, carrying_traces(jobs))
                    made = Counter(str(job.tenant_id) for job in jobs)
                    counts = (((TallyKind.SUBMISSION, name), (n, 0)) for name, n in made.items())
                    connection.exec_driver_sql(ADD, added(counts))
        except Exception as error:
            # A move without jobs cannot be the cause.
            if is_external(error) or not any(move.jobs for move in moves):
                raise
            if len(moves) == 1:
                logger.exception("schedule %s is paused", moves[0].schedule.id)
                moves = [stopped(moves[0].schedule, f"it failed: {type(error).__name__}")]
            for move in moves:
                self._save(connection, [move])

    def _move(
        self, schedule: RecurringSchedule, now: datetime, busy: bool, types: AllowedTypes, most: int
    ) -> ScheduleMove:
        """What to do about one schedule's ticks."""
        assert schedule.next_at is not None, "it is due"
        policy = TickPolicy(Overlap(schedule.overlap), CatchUp(schedule.catch_up))
        try:
            rule = read_rule(schedule.cron, schedule.timezone)
        except (BadCron, UnknownZone) as error:
            # Written by another version, or with newer time zones: waiting would not help.
            logger.warning("schedule %s is paused: %s", schedule.id, error)
            return stopped(schedule, f"its cron or time zone {error}")
        decision = decide(rule, policy, next_at=schedule.next_at, now=now, busy=busy, most=most)
        try:
            require_types(types, (schedule.type,))
            jobs = self._jobs(schedule, decision)
        except (ValidationFailed, Forbidden) as refused:
            reason = stored_reason(schedule, refused.explain())
            move = ScheduleMove(schedule, decision.next_at, skipped=len(decision.made))
            for tick in decision.made:
                move.add_event("schedule_skipped", at=rfc3339(tick), reason=reason)
        else:
            move = ScheduleMove(schedule, decision.next_at, jobs, int(decision.skipped is not None))
        if decision.skipped is not None:
            at, running = rfc3339(decision.skipped), schedule.last_job_id
            move.add_event("schedule_skipped", at=at, reason="overlap", job_id=running)
        if decision.missed is not None:
            first, last = (rfc3339(tick) for tick in decision.missed)
            limited, _ = self._held.get(schedule.tenant_id, ("", 0.0))
            why = {"reason": limited} if limited else {}
            move.add_event("schedule_missed", first=first, last=last, **why)
        return move

    def _jobs(self, schedule: RecurringSchedule, decision: TickDecision) -> tuple[Submission, ...]:
        payload = payload_of(schedule) if decision.made else None
        return tuple(
            job_submission(
                self._types,
                schedule.tenant_id,
                schedule.type,
                payload,
                priority=schedule.priority,
                execute_at=tick,
                jitter=False,
                cell=self._cell,
            )
            for tick in decision.made
        )

    def _write_moves(self, connection: Connection, moves: Sequence[ScheduleMove]) -> None:
        last = [move.jobs[-1] if move.jobs else None for move in moves]
        events = [(move.schedule.tenant_id, *event) for move in moves for event in move.events]
        for move in moves:
            for job in move.jobs:
                made = named(move.schedule) | {"at": rfc3339(job.execute_at), "job_id": job.id}
                events.append((job.tenant_id, "schedule_run", made))
        moved = connection.exec_driver_sql(
            MOVE,
            {
                "ids": plain_array(move.schedule.id for move in moves),
                "expected": moment_array(move.schedule.next_at for move in moves),
                "next_at": moment_array(move.next_at for move in moves),
                "stopped": plain_array(str(move.stopped) for move in moves),
                "last_at": moment_array(job.execute_at if job else None for job in last),
                "last_jobs": text_array(job.id if job else None for job in last),
                "made": plain_array(len(move.jobs) for move in moves),
                "skipped": plain_array(move.skipped for move in moves),
                "event_tenants": plain_array(tenant for tenant, _, _ in events),
                "event_kinds": text_array(kind for _, kind, _ in events),
                "event_details": text_array(orjson.dumps(each).decode() for _, _, each in events),
                "epoch": self._leader.epoch,
            },
        ).scalar_one()
        if moved != len(moves):
            raise NotLeading
