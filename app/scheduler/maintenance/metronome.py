"""Metronome: each tick of a schedule becomes one job.

A turn is one transaction: it locks a bounded number of due schedules, decides for each by
:mod:`app.tenants.ticks`, moves them to their next tick and admits the jobs. Dying before its
commit changes nothing. A second leader passes over what is locked, and afterwards finds the
schedules moved: every tick is made once, however many lead.

The jobs are what ``POST /jobs`` would have made of the same type and payload, queued at once,
with ``execute_at`` the time of the tick. Limits of rate and depth are for submissions and do not
hold them back; turns do: 10,000 ticks at midnight join the line over some seconds.

What cannot become a job (a type that is gone, a payload that no longer fits) is skipped. A
schedule that fails in any other way is paused, whatever the error: the others go on. Events:
``schedule_skipped``, ``schedule_missed``, ``schedule_paused``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime

import orjson
from pydantic_core import from_json
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError

from app.admission.intake import job_submission
from app.admission.placement import placed, read_moved
from app.errors import ValidationFailed
from app.reads.times import rfc3339
from app.telemetry import carrying_traces
from app.tenants.cron import BadCron, UnknownZone, read_rule
from app.tenants.schedules import COLUMNS, RecurringSchedule
from app.tenants.ticks import MOST_A_TURN, CatchUp, Overlap, TickDecision, TickPolicy, decide
from models.jobs.admit import insert_jobs
from models.jobs.submission import Submission
from models.leadership import STILL_LEADER, Leader
from models.store.arrays import moment_array, plain_array, text_array
from models.store.errors import StateStoreError
from models.store.session import connect, transaction
from tasks.registry import JobType

logger = logging.getLogger(__name__)

#: Schedules of one turn, and jobs of all of them together if they make up for an outage.
BATCH = 200
JOBS_A_TURN = 400
#: Rest between two turns.
TICK_SECONDS = 0.25
#: No further schedule is looked at after this time; the dispatcher waits meanwhile.
TURN_SECONDS = 0.1

#: One step along the index.
ANY_DUE = """
    SELECT first.next_at <= now() FROM (
        SELECT next_at FROM schedules WHERE NOT paused ORDER BY next_at LIMIT 1) AS first
"""


def find_due(order: str) -> str:
    """The statement; ``order`` says whether the oldest or the youngest ticks come first.

    The job before is asked for by key: an EXISTS may be answered by reading the whole table.
    """
    return f"""
    SELECT now() AS moment, schedule.overlap = 'skip' AND coalesce((
               SELECT job.status::text IN ('scheduled', 'queued', 'dispatched', 'running')
               FROM jobs AS job WHERE job.id = schedule.last_job_id), false) AS busy,
           {COLUMNS}
    FROM schedules AS schedule
    WHERE NOT schedule.paused AND schedule.next_at <= now() AND {STILL_LEADER}
    ORDER BY schedule.next_at {order} LIMIT {BATCH}
    FOR UPDATE OF schedule SKIP LOCKED
"""


FIND_OLDEST = find_due("ASC")
FIND_YOUNGEST = find_due("DESC")
#: What a schedule is made of, as COLUMNS names it.
FIELDS = [each.name for each in fields(RecurringSchedule)]
#: Of locked rows. The conditions say once more what the locks are for.
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
    ), told AS (
        INSERT INTO events (tenant_id, kind, detail)
        SELECT tenant_id, kind, detail::json
        FROM unnest(%(told_tenants)s::bigint[], %(told_kinds)s::text[], %(told_details)s::text[])
            AS told (tenant_id, kind, detail)
        WHERE {STILL_LEADER}
    )
    SELECT count(*) FROM moved
"""


class NotLeading(Exception):
    """Another one leads: nothing of the turn counts."""


@dataclass(frozen=True, slots=True)
class ScheduleMove:
    """What a turn makes of one schedule."""

    schedule: RecurringSchedule
    next_at: datetime | None
    jobs: tuple[Submission, ...] = ()
    skipped: int = 0
    #: It can have no further ticks before somebody changes it.
    stopped: bool = False
    #: Kinds and details.
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def tell(self, kind: str, **detail: object) -> None:
        """Add an event of the schedule."""
        named = {"schedule": self.schedule.id, "name": self.schedule.name}
        self.events.append((kind, {**named, **detail}))


def stopped(schedule: RecurringSchedule, error: Exception) -> ScheduleMove:
    """The end of a schedule that failed, until somebody changes or resumes it."""
    move = ScheduleMove(schedule, schedule.next_at, stopped=True)
    move.tell("schedule_paused", reason=f"it failed: {type(error).__name__}")
    return move


def is_nobodys_fault(error: Exception) -> bool:
    """Another one leads, or the state store is away."""
    if isinstance(error, DBAPIError):
        return not isinstance(error, (DataError, IntegrityError, ProgrammingError))
    return isinstance(error, (NotLeading, StateStoreError))


class Metronome:
    """Makes the jobs of schedules."""

    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        types: Mapping[str, JobType],
        served_pools: Collection[str],
    ) -> None:
        self._engine = engine
        self._leader = leader
        self._types = types
        self._served_pools = served_pools
        self._turns = 0

    def run_once(self, now: float) -> int:
        """Make what is due; how many schedules were moved."""
        with connect(self._engine) as connection:
            if not connection.exec_driver_sql(ANY_DUE).scalar():
                return 0
        try:
            with transaction(self._engine) as connection:
                return self._turn(connection)
        except NotLeading:
            return 0

    def _turn(self, connection: Connection) -> int:
        # Every other turn begins with the youngest: ticks that are on time do not wait until
        # others have made up for an outage.
        self._turns += 1
        find = FIND_OLDEST if self._turns % 2 else FIND_YOUNGEST
        due = connection.exec_driver_sql(find, {"epoch": self._leader.epoch})
        rows = due.columns("moment", "busy", *FIELDS).all()
        if not rows:
            return 0
        most = max(1, min(MOST_A_TURN, JOBS_A_TURN // len(rows)))
        enough = time.monotonic() + TURN_SECONDS
        moves: list[ScheduleMove] = []
        for moment, busy, *values in rows:
            schedule = RecurringSchedule(*values)
            try:
                moves.append(self._move(schedule, moment, busy, most))
            except Exception as error:  # its own affair: the others' ticks are due as well
                logger.exception("schedule %s stops", schedule.id)
                moves.append(stopped(schedule, error))
            if time.monotonic() > enough:
                break
        self._keep(connection, moves)
        return len(moves)

    def _keep(self, connection: Connection, moves: Sequence[ScheduleMove]) -> None:
        """Write the moves and their jobs; one by one if that fails, and who fails is stopped."""
        try:
            with connection.begin_nested():
                self._write(connection, moves)
                jobs = [job for move in moves for job in move.jobs]
                if jobs:
                    placed_jobs = placed(jobs, read_moved(connection, self._served_pools))
                    insert_jobs(connection, carrying_traces(placed_jobs))
        except Exception as error:
            # A move without jobs has nothing in it that could be at fault.
            if is_nobodys_fault(error) or not any(move.jobs for move in moves):
                raise
            if len(moves) == 1:
                logger.exception("schedule %s stops", moves[0].schedule.id)
                self._keep(connection, [stopped(moves[0].schedule, error)])
                return
            for move in moves:
                self._keep(connection, [move])

    def _move(
        self, schedule: RecurringSchedule, now: datetime, busy: bool, most: int
    ) -> ScheduleMove:
        """What becomes of one schedule. Whatever is wrong with it is its own affair."""
        assert schedule.next_at is not None, "it is due"
        policy = TickPolicy(Overlap(schedule.overlap), CatchUp(schedule.catch_up))
        try:
            rule = read_rule(schedule.cron, schedule.timezone)
        except (BadCron, UnknownZone) as error:
            # Read by another version, or where zones are older: waiting would not help.
            logger.warning("schedule %s stops: %s", schedule.id, error)
            move = ScheduleMove(schedule, schedule.next_at, stopped=True)
            move.tell("schedule_paused", reason=f"its cron or time zone {error}")
            return move
        decision = decide(rule, policy, next_at=schedule.next_at, now=now, busy=busy, most=most)
        try:
            jobs = self._jobs(schedule, decision)
        except ValidationFailed as refused:
            reason = "; ".join(f"{error.field} {error.message}" for error in refused.errors)
            move = ScheduleMove(schedule, decision.next_at, skipped=len(decision.made))
            for tick in decision.made:
                move.tell("schedule_skipped", at=rfc3339(tick), reason=reason)
        else:
            skipped = int(decision.skipped is not None)
            move = ScheduleMove(schedule, decision.next_at, jobs, skipped)
        if decision.skipped is not None:
            at, running = rfc3339(decision.skipped), schedule.last_job_id
            move.tell("schedule_skipped", at=at, reason="overlap", job_id=running)
        if decision.missed is not None:
            first, last = (rfc3339(tick) for tick in decision.missed)
            move.tell("schedule_missed", first=first, last=last)
        return move

    def _jobs(self, schedule: RecurringSchedule, decision: TickDecision) -> tuple[Submission, ...]:
        if not decision.made:
            return ()
        payload = from_json(schedule.payload)
        return tuple(
            job_submission(
                self._types,
                schedule.tenant_id,
                schedule.type,
                payload,
                priority=schedule.priority,
                execute_at=tick,
                jitter=False,
            )
            for tick in decision.made
        )

    def _write(self, connection: Connection, moves: Sequence[ScheduleMove]) -> None:
        last = [move.jobs[-1] if move.jobs else None for move in moves]
        told = [(move.schedule.tenant_id, *event) for move in moves for event in move.events]
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
                "told_tenants": plain_array(tenant for tenant, _, _ in told),
                "told_kinds": text_array(kind for _, kind, _ in told),
                "told_details": text_array(orjson.dumps(detail).decode() for _, _, detail in told),
                "epoch": self._leader.epoch,
            },
        ).scalar_one()
        if moved != len(moves):
            raise NotLeading
