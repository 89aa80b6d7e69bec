"""Reaper: runs whose lease ran out are judged, lost messages go back to the line.

A dispatched job nobody claimed lost its message. A running job without heartbeats lost its
worker: that costs no try, but a job that has lost five is dead, for it probably kills them.
If it showed a sign of life past its time limit, the limit is what took the worker: TIMEOUT. The
time of the reaping says nothing: the scheduler may have been away.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from random import Random

from sqlalchemy import Engine

from app.telemetry import note_reaped
from models.jobs.reap import Lost, Reaping, find_lost, reap
from models.jobs.states import FailureClass, JobStatus
from models.leadership import Leader
from models.pools import POOLS
from models.presence import FORGET_LOST
from models.store.session import connect, transaction
from models.tallies import TallyKind, add_tallies, crash_name
from tasks.registry import JobType
from tasks.retry import History, RetryLimits, Verdict, decide_retry

logger = logging.getLogger(__name__)

#: From its third lost worker on a job is suspected to be the cause.
SUSPECT_CRASHES = 3


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
    limits = job_type.limits if job_type else RetryLimits(pool.tries if pool else 1)
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
        with transaction(self._engine) as connection:
            found = find_lost(connection, self._leader.epoch)
            verdicts = [judge(lost, self._types.get(lost.type), self._chance) for lost in found]
            if found:
                reap(connection, found, verdicts)
        with connect(self._engine) as connection:
            connection.exec_driver_sql(FORGET_LOST)
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

    def _tally(self, crashed: list[Lost]) -> None:
        """Count against the tenant what took several workers: one that dies may take fifty
        innocent jobs with it, but seldom the same job three times."""
        counts = Counter(
            (TallyKind.CRASH, crash_name(lost.tenant_id, lost.pool))
            for lost in crashed
            if lost.crashes + 1 >= SUSPECT_CRASHES
        )
        add_tallies(self._engine, ((key, (jobs, jobs)) for key, jobs in counts.items()))
