"""Reaper: finds jobs whose lease expired; lost messages are queued again, lost runs are decided.

A dispatched job that nobody claimed lost its message. A running job without heartbeats lost its
worker: that counts as no attempt, but after five it is dead, for it probably kills them. If its
last heartbeat was past its time limit, the limit stopped the worker: TIMEOUT. The time of the
reaping says nothing: the scheduler may have been away.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

from sqlalchemy import Engine, Row

from app.scheduler.role import LeaderQueries
from app.telemetry.hooks import note_reaped
from models.jobs.reap import FIND_LOST, Reaping, reap
from models.jobs.states import FailureClass, JobStatus
from models.leadership import Leader
from models.pools import POOLS
from models.presence import FORGET_LOST
from models.store.session import transaction
from models.tallies import TallyKind, add_tallies, crash_name
from tasks.registry import JobType
from tasks.retry.decision import History, RetryLimits, Verdict, decide_retry

logger = logging.getLogger(__name__)

#: From its third lost worker on a job is suspected to be the cause.
SUSPECT_CRASHES = 3


def judge(lost: Row[Any], job_type: JobType | None, chance: Random) -> Reaping:
    """What becomes of a row of FIND_LOST: a lost message is queued again, a lost run is decided."""
    if lost.status == JobStatus.DISPATCHED:
        return Reaping(JobStatus.QUEUED)
    pool = POOLS.get(lost.pool)  # None if it was removed from the configuration
    lease_seconds = pool.lease_seconds if pool else 30.0
    timeout = job_type.timeout_seconds if job_type else math.inf
    timed_out = (lost.leased_seconds or 0.0) > timeout + lease_seconds
    failure = FailureClass.TIMEOUT if timed_out else FailureClass.WORKER_CRASH
    message = f"The worker {lost.worker or '?'} was lost while running it."
    if timed_out:
        message = f"The run took longer than {timeout:g} s, and its worker is gone."
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


class Reaper(LeaderQueries):
    def __init__(self, engine: Engine, leader: Leader, types: Mapping[str, JobType]) -> None:
        super().__init__(engine, leader)
        self._types = types
        self._chance = Random()

    def run_once(self, now: float) -> int:
        """Reap one batch; how many."""
        with transaction(self._engine) as connection:
            epoch = {"epoch": self._leader.epoch}
            found = connection.exec_driver_sql(FIND_LOST, epoch).all()
            endings = [judge(lost, self._types.get(lost.type), self._chance) for lost in found]
            if found:
                reap(connection, found, endings)
        self._write(FORGET_LOST)
        if found:
            reaped = list(zip(found, endings, strict=True))
            crashed = [lost for lost, ending in reaped if ending.crashed]
            self._tally(crashed)
            note_reaped([(lost.pool, ending.status.value) for lost, ending in reaped])
            logger.warning(
                "reaped %d jobs: %d lost their worker, %d their message, %d are dead",
                *(len(found), len(crashed)),
                sum(lost.status == JobStatus.DISPATCHED for lost in found),
                sum(ending.status is JobStatus.DEAD for ending in endings),
            )
        return len(found)

    def _tally(self, crashed: list[Row[Any]]) -> None:
        """Count against the tenant jobs that lost several workers: a worker that dies may take
        fifty innocent jobs with it, but seldom the same job three times."""
        counts = Counter(
            (TallyKind.CRASH, crash_name(lost.tenant_id, lost.pool))
            for lost in crashed
            if lost.crashes + 1 >= SUSPECT_CRASHES
        )
        add_tallies(self._engine, ((key, (jobs, jobs)) for key, jobs in counts.items()))
