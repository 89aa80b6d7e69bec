"""Reaper: finds lost jobs (see models.jobs.reap); messages are sent again, runs are decided.

A dispatched job that nobody claimed lost its message. A running job without heartbeats lost its
worker: that counts as no attempt, but after five it is dead, for it probably kills them. One that
still waited in its worker has nothing to do with that (:mod:`tasks.retry.lost`). If its last
heartbeat was past its time limit, the limit stopped the worker: TIMEOUT. The time of the reaping
says nothing: the scheduler may have been away.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from sqlalchemy import Connection, Engine, Row

from app.policy.silence import Silence
from app.scheduler.role import RoleQueries
from app.telemetry.hooks import note_reaped
from models.jobs.reap import FIND_LOST_IF, MOST_WAIT_SECONDS, Reaping, reap
from models.jobs.states import FailureClass, JobStatus
from models.leadership import RoleLease
from models.pools import POOLS, RUN_BOUNDS
from models.presence import ABLE_TO_REPORT, FORGET, PRESENCE_LOST_SECONDS, READ_HEARD
from models.store.session import transaction
from models.tallies import ADD, Count, Tallies, TallyKind, added, crash_name, joined, observed
from tasks.registry import JobType
from tasks.retry.decision import History, RetryLimits, Verdict, decide_retry
from tasks.retry.lost import ran_seconds_of

logger = logging.getLogger(__name__)

#: A process that is silent for so long is forgotten.
FORGET_SECONDS = 300.0
#: From its third lost worker on a job is suspected to be the cause.
SUSPECT_CRASHES = 3


def judge(lost: Row[Any], job_type: JobType | None, chance: Random) -> Reaping:
    """What becomes of a row of FIND_LOST: a lost message is queued again, a lost run is decided."""
    pool = POOLS.get(lost.pool)  # None if it was removed from the configuration
    lease_seconds = pool.lease_seconds if pool else 30.0
    timeout = job_type.timeout_seconds if job_type else math.inf
    if lost.status == JobStatus.DISPATCHED:
        return Reaping(JobStatus.QUEUED)
    if lost.waiting:
        status = JobStatus.CANCELLED if lost.cancelled else JobStatus.QUEUED
        return Reaping(status, lost_claim=True)
    # Alive past the time limit of the run, which therefore ended its worker.
    ran_seconds = ran_seconds_of(lost.leased_seconds, lease_seconds, lost.lost_seconds)
    timed_out = ran_seconds > timeout
    failure = FailureClass.TIMEOUT if timed_out else FailureClass.WORKER_CRASH
    message = f"The worker {lost.worker or '?'} was lost while running it."
    if timed_out:
        message = f"The run took longer than {timeout:g} s, and its worker is gone."
    if lost.cancelled:
        return Reaping(
            JobStatus.CANCELLED,
            crashed=not timed_out,
            error_class=failure,
            error_message=message,
            run_seconds=ran_seconds,
        )
    limits = job_type.limits if job_type else RetryLimits(pool.tries if pool else 1)
    history = History(lost.attempt, lost.deferrals, lost.crashes, lost.violations)
    decision = decide_retry(failure, history, limits, chance)
    if decision.verdict is Verdict.DEAD:
        status = JobStatus.DEAD
    else:
        status = JobStatus.SCHEDULED if decision.delay_seconds > 0 else JobStatus.QUEUED
    return Reaping(
        status,
        int(decision.spends_try),
        not timed_out,
        decision.delay_seconds,
        failure,
        message,
        run_seconds=ran_seconds,
    )


class Reaper(RoleQueries):
    def __init__(
        self,
        engine: Engine,
        leader: RoleLease,
        types: Mapping[str, JobType],
        tallies: Tallies | None = None,
    ) -> None:
        """Lost runs are counted in ``tallies``, which the caller writes."""
        super().__init__(engine, leader)
        self._tallies = tallies
        self._find_lost = FIND_LOST_IF.format(condition=leader.condition)
        self._types = types
        self._chance = Random()
        self._silence = Silence(PRESENCE_LOST_SECONDS)
        self._long_silence = Silence(FORGET_SECONDS)
        self._without_renewal = Silence(MOST_WAIT_SECONDS)

    def run_once(self, now: float) -> int:
        """Reap one batch; how many."""
        with transaction(self._engine) as connection:
            processes = connection.exec_driver_sql(READ_HEARD).all()
            judged = self._judge_workers(connection, now, processes)
            found = connection.exec_driver_sql(self._find_lost, judged).all()
            endings = [judge(lost, self._types.get(lost.type), self._chance) for lost in found]
            if found:
                reap(connection, found, endings)
                self._tally(connection, found, endings)
        heard = {row.name: row.heartbeat_at for row in processes}
        if gone := self._long_silence.look(now, heard):
            self._write(FORGET, names=list(gone))
        if found:
            reaped = list(zip(found, endings, strict=True))
            crashed = [lost for lost, ending in reaped if ending.crashed]
            note_reaped([(lost.pool, ending.status.value) for lost, ending in reaped])
            if self._tallies is not None:
                for lost, ending in reaped:
                    self._tallies.add_all(lost_run(lost.pool, ending))
            logger.warning(
                "reaped %d jobs: %d lost their worker, %d had not begun, %d lost their message, "
                "%d are dead",
                *(len(found), len(crashed)),
                sum(ending.lost_claim for ending in endings),
                sum(lost.status == JobStatus.DISPATCHED for lost in found),
                sum(ending.status is JobStatus.DEAD for ending in endings),
            )
        return len(found)

    def _judge_workers(
        self, connection: Connection, now: float, processes: Sequence[Row[Any]]
    ) -> dict[str, Any]:
        """Parameters of FIND_LOST: the processes that are silent, whether that is enough, and those
        that have renewed nothing for long.

        Not those of the previous version, whose reports a lock holds up, nor those that cannot
        report because somebody has locked their rows: these have time to do so afterwards.
        """
        rows = [row for row in processes if row.renewed_at is not None]
        silent = self._silence.look(now, {row.name: row.heartbeat_at for row in rows})
        stuck = self._without_renewal.look(now, {row.name: row.renewed_at for row in rows})
        early = len(silent) < len(rows) or len({row.worker for row in rows}) == 1
        if silent:
            found = connection.exec_driver_sql(ABLE_TO_REPORT, {"names": list(silent)})
            able = frozenset(found.scalars())
            for silence in (self._silence, self._long_silence):
                silence.excuse(silent - able)
            silent = able
        return {
            "epoch": self._leader.epoch,
            "silent": list(silent),
            "early": early,
            "stuck": list(stuck),
        }

    def _tally(
        self, connection: Connection, found: Sequence[Row[Any]], endings: Sequence[Reaping]
    ) -> None:
        """Count against the tenant jobs whose time limit stopped their worker, and those that lost
        several: a worker that dies may take fifty innocent jobs with it, but seldom the same job
        three times."""
        counts = Counter(
            (TallyKind.CRASH, crash_name(lost.tenant_id, lost.pool))
            for lost, ending in zip(found, endings, strict=True)
            if ending.error_class is FailureClass.TIMEOUT
            or (ending.crashed and lost.crashes + 1 >= SUSPECT_CRASHES)
        )
        if counts:
            tallied = added((key, (jobs, jobs)) for key, jobs in counts.items())
            connection.exec_driver_sql(ADD, tallied)


def lost_run(pool: str, ending: Reaping) -> Iterator[Count]:
    """What a run whose worker was lost adds to the metrics; a lost message or claim adds
    nothing."""
    if ending.error_class is None:
        return
    yield observed(TallyKind.RUN_SECONDS, pool, ending.run_seconds, RUN_BOUNDS)
    if ending.status in (JobStatus.SCHEDULED, JobStatus.QUEUED):
        yield (TallyKind.RETRIED, joined(pool, ending.error_class)), (1, 0)
