"""Reaper: runs whose lease ran out are judged, lost messages go back to the line.

A dispatched job nobody claimed lost its message. A running job without heartbeats lost its
worker: that costs no try, but a job that has lost five is dead, for it probably kills them.
If it showed a sign of life past its time limit, the limit is what took the worker: TIMEOUT. The
time of the reaping says nothing: the scheduler may have been away.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from sqlalchemy import Connection, Engine

from app.scheduler.leader import STILL_LEADER, Leader
from app.telemetry import note_reaped
from models.pools import POOLS
from models.presence import FORGET_LOST
from models.session import connection, transaction
from models.states import FailureClass, JobStatus
from tasks.registry import JobType
from tasks.retry import History, Limits, Verdict, decide_retry
from tasks.runtime.tallies import add_tallies

logger = logging.getLogger(__name__)

BATCH = 1000
#: From its third lost worker on a job is suspected to be the cause.
SUSPECT_CRASHES = 3

FIND_LOST = f"""
    SELECT id::text, lease, status::text, type, pool, tenant_id, attempt, deferrals, crashes,
           worker, cancel_requested_at IS NOT NULL,
           extract(epoch FROM lease_expires_at - started_at)::float8
    FROM jobs
    WHERE status IN ('dispatched', 'running') AND lease_expires_at < now() AND {STILL_LEADER}
    LIMIT {BATCH}
    FOR UPDATE SKIP LOCKED
"""
#: The rows are locked by FIND_LOST; the lease is compared all the same.
REAP = """
    WITH reaped AS (
        UPDATE jobs AS job
        SET status = verdict.status,
            attempt = job.attempt + verdict.tries_spent,
            crashes = job.crashes + verdict.crashed::int,
            execute_at = CASE verdict.status WHEN 'scheduled'
                THEN now() + make_interval(secs => verdict.delay_seconds) ELSE job.execute_at END,
            lease_expires_at = NULL,
            finished_at = CASE WHEN verdict.status IN ('dead', 'cancelled') THEN now() END,
            error_class = coalesce(verdict.error_class, job.error_class),
            error_message = coalesce(verdict.error_message, job.error_message)
        FROM unnest(%(ids)s::uuid[], %(leases)s::int[], %(statuses)s::job_status[],
                    %(tries_spent)s::int[], %(crashed)s::bool[], %(delays)s::float8[],
                    %(error_classes)s::text[], %(error_messages)s::text[])
            AS verdict (id, lease, status, tries_spent, crashed, delay_seconds, error_class,
                        error_message)
        WHERE job.id = verdict.id AND job.lease = verdict.lease
        RETURNING job.id, job.lease, job.worker, job.started_at, job.status,
                  verdict.error_class, verdict.error_message
    )
    INSERT INTO attempts (job_id, lease, worker, started_at, status, error_class, error_message)
    SELECT id, lease, worker, started_at, status, error_class, error_message
    FROM reaped WHERE error_class IS NOT NULL
    ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class Lost:
    """A row whose lease ran out."""

    id: str
    lease: int
    status: JobStatus
    type: str
    pool: str
    tenant_id: int
    attempt: int
    deferrals: int
    crashes: int
    worker: str | None
    cancelled: bool
    #: From the claim to the end of the lease; None if there was no claim.
    leased_seconds: float | None


@dataclass(frozen=True, slots=True)
class Reaping:
    """What becomes of it."""

    status: JobStatus
    tries_spent: int = 0
    crashed: bool = False
    delay_seconds: float = 0.0
    error_class: FailureClass | None = None
    error_message: str | None = None


def judge(lost: Lost, job_type: JobType | None, chance: Random) -> Reaping:
    """A lost message goes back to the line; a lost run is a crash or a time limit."""
    if lost.status is JobStatus.DISPATCHED:
        return Reaping(JobStatus.QUEUED)
    pool = POOLS.get(lost.pool)  # none if the pool was taken out of the configuration
    lease_seconds = pool.lease_seconds if pool else 30.0
    timed_out = (
        job_type is not None
        and lost.leased_seconds is not None
        and lost.leased_seconds > job_type.timeout_seconds + lease_seconds
    )
    failure = FailureClass.TIMEOUT if timed_out else FailureClass.WORKER_CRASH
    message = f"The worker {lost.worker or '?'} was lost while running it."
    if timed_out and job_type is not None:
        message = (
            f"The run took longer than {job_type.timeout_seconds:g} s, and its worker is gone."
        )
    if lost.cancelled:
        return Reaping(JobStatus.CANCELLED, crashed=not timed_out, error_class=failure)
    limits = job_type.limits if job_type else Limits(pool.tries if pool else 1)
    history = History(lost.attempt, lost.deferrals, lost.crashes)
    decision = decide_retry(failure, history, limits, chance)
    if decision.verdict is Verdict.DEAD:
        status = JobStatus.DEAD
    else:
        status = JobStatus.SCHEDULED if decision.delay_seconds > 0 else JobStatus.QUEUED
    return Reaping(
        status, int(decision.spends_try), not timed_out, decision.delay_seconds, failure, message
    )


class Reaper:
    """Finds lost leases and lost messages."""

    def __init__(self, engine: Engine, leader: Leader, types: Mapping[str, JobType]) -> None:
        self._engine = engine
        self._leader = leader
        self._types = types
        self._chance = Random()

    def run_once(self, now: float) -> int:
        """Reap one batch; how many."""
        with transaction(self._engine) as taken:
            rows = taken.exec_driver_sql(FIND_LOST, {"epoch": self._leader.epoch}).all()
            found = [Lost(row[0], row[1], JobStatus(row[2]), *row[3:]) for row in rows]
            verdicts = [judge(lost, self._types.get(lost.type), self._chance) for lost in found]
            if found:
                self._reap(taken, found, verdicts)
        with connection(self._engine) as taken:
            taken.exec_driver_sql(FORGET_LOST)
        if found:
            crashed = [
                lost for lost, verdict in zip(found, verdicts, strict=True) if verdict.crashed
            ]
            self._tally(crashed)
            ends = zip(found, verdicts, strict=True)
            note_reaped([(lost.pool, verdict.status.value) for lost, verdict in ends])
            logger.warning(
                "reaped %d jobs: %d lost their worker, %d their message, %d are dead",
                len(found),
                len(crashed),
                sum(lost.status is JobStatus.DISPATCHED for lost in found),
                sum(verdict.status is JobStatus.DEAD for verdict in verdicts),
            )
        return len(found)

    def _reap(self, taken: Connection, found: list[Lost], verdicts: list[Reaping]) -> None:
        taken.exec_driver_sql(
            REAP,
            {
                "ids": [lost.id for lost in found],
                "leases": [lost.lease for lost in found],
                "statuses": [verdict.status.value for verdict in verdicts],
                "tries_spent": [verdict.tries_spent for verdict in verdicts],
                "crashed": [verdict.crashed for verdict in verdicts],
                "delays": [verdict.delay_seconds for verdict in verdicts],
                "error_classes": [verdict.error_class for verdict in verdicts],
                "error_messages": [verdict.error_message for verdict in verdicts],
            },
        )

    def _tally(self, crashed: list[Lost]) -> None:
        """Count against the tenant what took several workers: one that dies may take fifty
        innocent jobs with it, but seldom the same job three times."""
        counts: dict[tuple[str, str], tuple[int, int]] = {}
        for lost in crashed:
            if lost.crashes + 1 < SUSPECT_CRASHES:
                continue
            key = ("crash", f"{lost.tenant_id}:{lost.pool}")
            total, bad = counts.get(key, (0, 0))
            counts[key] = (total + 1, bad + 1)
        add_tallies(self._engine, counts.items())
