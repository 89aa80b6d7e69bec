"""A job's twin: what its row should say, by the promises and not by the statements.

Pure. Each method is one move of the job's way and says what it makes of the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from models.jobs.states import FailureClass, JobStatus

WAITING = (JobStatus.SCHEDULED, JobStatus.QUEUED)
IN_FLIGHT = (JobStatus.DISPATCHED, JobStatus.RUNNING)
#: Waits after the first, second, … error of a job's own making.
BACKOFF = (1.0, 5.0, 30.0, 300.0, 1800.0)
#: Workers that a job may lose.
CRASHES = 5
#: Tries of a job whose type is in quarantine.
QUARANTINED_TRIES = 2


@dataclass(frozen=True, slots=True)
class Kind:
    """What is promised to jobs of a type."""

    pool: str
    tries: int
    timeout_seconds: float
    lease_seconds: float
    dependency: str = ""


KINDS: Mapping[str, Kind] = {
    "echo": Kind("short", 5, 10, 10),
    "sleep": Kind("medium", 3, 300, 30),
    "score_application": Kind("medium", 3, 60, 30, "claude"),
    "count": Kind("long", 2, 3600, 90),
}


@dataclass(frozen=True, slots=True)
class Fate:
    """What a failure means for a job."""

    status: JobStatus
    spends_try: bool = True
    #: Shortest and longest wait before the next run.
    wait: tuple[float, float] = (0.0, 0.0)


def fate(
    failure: FailureClass,
    kind: Kind,
    attempt: int,
    deferrals: int,
    crashes: int,
    violations: int,
    *,
    retry_after: float | None = None,
    quarantined: bool = False,
    budget_left: bool = True,
) -> Fate:
    """The table of failure classes."""
    if failure in (FailureClass.PERMANENT, FailureClass.POISON):
        return Fate(JobStatus.DEAD)
    if failure is FailureClass.WORKER_CRASH:
        if crashes + 1 >= CRASHES:
            return Fate(JobStatus.DEAD, spends_try=False)
        if not crashes:
            return Fate(JobStatus.QUEUED, spends_try=False)
        return Fate(JobStatus.SCHEDULED, spends_try=False, wait=(0.0, 2.0 * 2**crashes))
    if failure is FailureClass.DEPENDENCY:
        asked = retry_after if retry_after else min(2.0 * 2**deferrals, 300.0)
        least = asked if retry_after is not None else asked * 0.9
        return Fate(JobStatus.SCHEDULED, spends_try=False, wait=(least, asked * 1.1))
    tries = kind.tries
    if failure is not FailureClass.APP_ERROR and violations:
        return Fate(JobStatus.DEAD)
    if quarantined:
        tries = min(tries, QUARANTINED_TRIES)
    if attempt + 1 >= tries or not budget_left:
        return Fate(JobStatus.DEAD)
    wait = BACKOFF[attempt]
    return Fate(JobStatus.SCHEDULED, wait=(wait * 0.9, wait * 1.1))


@dataclass(slots=True, repr=False)
class Twin:
    """What a row should say."""

    id: str
    tenant_id: int
    type: str
    priority: int
    status: JobStatus
    execute_at: datetime | None = None
    not_after: datetime | None = None
    lease: int = 0
    attempt: int = 0
    deferrals: int = 0
    crashes: int = 0
    lost_claims: int = 0
    #: Since the last replay.
    violations: int = 0
    replays: int = 0
    worker: str | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    lease_expires_at: datetime | None = None
    cancel_requested: bool = False
    discarded: bool = False
    slot_seconds: float = 0.0
    error_class: str | None = None
    result: Any = None
    progress: Any = None
    #: When it was given to a worker as a new row.
    given_at: datetime | None = None
    #: It is claimed, and not known to have begun.
    waiting: bool = False
    #: Lease whose run reported its tokens, in and out.
    reported: tuple[int, int, int] = (0, 0, 0)
    #: Lease that wrote it, the state, and the blob.
    checkpoint: tuple[int, Any, str | None] | None = None
    #: Unsuccessful runs by lease: whose, what became of the job, and the failure class.
    attempts: dict[int, tuple[str | None, str, str | None]] = field(default_factory=dict)
    #: When the next run is due, as far as chance leaves it known.
    due: tuple[datetime, datetime] | None = None
    #: The whole row when it ended; nothing may change it but a replay or a discard.
    ended_row: str | None = None

    def __repr__(self) -> str:
        return f"<{self.type} {self.status} {self.id} lease {self.lease}>"

    @property
    def kind(self) -> Kind:
        return KINDS[self.type]

    @property
    def live(self) -> bool:
        return not self.status.terminal

    def late(self, now: datetime) -> bool:
        """Whether it may not start any more."""
        return self.not_after is not None and self.not_after < now

    def lost(self, now: datetime) -> bool:
        """Whether the reaper should find it."""
        return self.lease_expires_at is not None and self.lease_expires_at < now

    def is_due(self, now: datetime) -> bool:
        """Whether the promoter should find it."""
        return self.status is JobStatus.SCHEDULED and (
            self.execute_at is not None and self.execute_at <= now
        )

    def promote(self) -> None:
        self.status = JobStatus.QUEUED

    def dispatch(self, now: datetime) -> bool:
        """A new lease; whether there is a message to send."""
        self.lease += 1
        if self.late(now):
            self.end(JobStatus.EXPIRED, now)
            return False
        self.status = JobStatus.DISPATCHED
        self.dispatched_at = now
        self.renew(now)
        return True

    def release(self) -> None:
        """The message was not sent."""
        self.status = JobStatus.QUEUED
        self.lease_expires_at = None

    def claim(self, worker: str, now: datetime, *, waits: bool = False) -> bool:
        """Whether the worker has it now."""
        self.waiting = waits or self.crashes > 0
        if self.late(now):
            self.end(JobStatus.EXPIRED, now)
            return False
        self.status = JobStatus.RUNNING
        self.worker = worker
        self.started_at = now
        self.renew(now)
        return True

    def renew(self, now: datetime) -> None:
        self.lease_expires_at = now + timedelta(seconds=self.kind.lease_seconds)

    def renew_if_due(self, now: datetime) -> None:
        """After a third of the lease."""
        assert self.lease_expires_at is not None
        if self.lease_expires_at < now + timedelta(seconds=self.kind.lease_seconds * 2 / 3):
            self.renew(now)

    def cancel(self, now: datetime) -> None:
        """What waits ends; what runs is asked to."""
        self.cancel_requested = True
        if self.status is not JobStatus.RUNNING:
            self.end(JobStatus.CANCELLED, now)

    def succeed(self, result: Any, seconds: float, now: datetime) -> None:
        """The run gave a result, cancelled or not."""
        self.attempt += 1
        self.run(seconds, now)
        self.result, self.error_class = result, None
        self.end(JobStatus.SUCCEEDED, now)

    def fail(self, failure: FailureClass, to: Fate, seconds: float, now: datetime) -> None:
        """The run failed."""
        self.attempt += to.spends_try
        self.deferrals += not to.spends_try
        self.run(seconds, now)
        self.error_class = failure
        self.leave(to.status, to.wait, now)
        self.record(failure)

    def snooze(self, wait_seconds: float, seconds: float, now: datetime) -> None:
        """The run asked for a later one."""
        self.deferrals += 1
        self.run(seconds, now)
        self.error_class = None
        self.leave(JobStatus.SCHEDULED, (wait_seconds, wait_seconds), now)
        self.record(None)

    def withdraw(self, seconds: float, now: datetime) -> None:
        """The run stopped because the job is cancelled, or did not begin."""
        self.run(seconds, now)
        self.error_class = None
        self.end(JobStatus.CANCELLED, now)
        if seconds > 0:
            self.record(None)

    def hand_back(self, begun: bool, seconds: float, now: datetime) -> None:
        """The worker stops: the run is not on record, but paid for."""
        self.deferrals += begun
        self.leave(JobStatus.QUEUED, (0.0, 0.0), now)
        if self.status is JobStatus.CANCELLED and seconds > 0:
            self.record(None)
        self.run(seconds, now)

    def run(self, seconds: float, now: datetime) -> None:
        """A run took so long: the tenant pays for it."""
        self.slot_seconds += seconds
        self.started_at = now - timedelta(seconds=seconds)

    def record(self, failure: FailureClass | None) -> None:
        """The run gave no result."""
        self.attempts[self.lease] = (self.worker, self.status, failure)
        self.violations += failure in (FailureClass.TIMEOUT, FailureClass.RESOURCE_VIOLATION)

    def leave(self, status: JobStatus, wait: tuple[float, float], now: datetime) -> None:
        """The run is over without a result; what is cancelled is not tried again."""
        if self.cancel_requested:
            status = JobStatus.CANCELLED
        if status.terminal:
            self.end(status, now)
            return
        self.status = status
        self.lease_expires_at = None
        if status is JobStatus.SCHEDULED:
            self.due = (now + timedelta(seconds=wait[0]), now + timedelta(seconds=wait[1]))

    def reap(self, now: datetime, heard_at: datetime | None) -> float | None:
        """Its message or its worker is gone; seconds of a run that the tenant pays for.

        ``heard_at``: when its worker was heard for the last time.
        """
        if self.status is JobStatus.DISPATCHED:
            self.release()
            return None
        if (self.waiting or self.was_given_since(heard_at)) and (
            self.checkpoint is None or self.checkpoint[0] != self.lease
        ):
            self.lost_claims += 1
            self.leave(JobStatus.QUEUED, (0.0, 0.0), now)
            return None
        assert self.started_at is not None and self.lease_expires_at is not None
        last_sign = self.lease_expires_at - timedelta(seconds=self.kind.lease_seconds)
        seconds = max(0.0, (last_sign - self.started_at).total_seconds())
        self.slot_seconds += seconds
        # A sign of life past the limit; when it is reaped says nothing.
        limit = timedelta(seconds=self.kind.timeout_seconds + self.kind.lease_seconds)
        timed_out = self.lease_expires_at - self.started_at > limit
        failure = FailureClass.TIMEOUT if timed_out else FailureClass.WORKER_CRASH
        to = fate(failure, self.kind, self.attempt, self.deferrals, self.crashes, self.violations)
        self.attempt += to.spends_try and not self.cancel_requested
        self.crashes += not timed_out
        self.error_class = failure
        self.leave(to.status, to.wait, now)
        self.record(failure)
        return seconds

    def was_given_since(self, heard_at: datetime | None) -> bool:
        """Its worker may have been dead when it got this job, for the first time."""
        if self.given_at is None or heard_at is None or self.given_at <= heard_at:
            return False
        is_first = self.lease == 1 and self.lost_claims == 0
        return is_first and self.started_at == self.given_at and self.reported[0] != self.lease

    def reported_tokens(self) -> tuple[int, int]:
        """Tokens, in and out, that the current run is known to have used."""
        lease, *tokens = self.reported
        return (tokens[0], tokens[1]) if lease == self.lease else (0, 0)

    def end(self, status: JobStatus, now: datetime) -> None:
        self.status = status
        self.finished_at = now
        self.lease_expires_at = None

    def replay(self) -> None:
        """Back to the line with a fresh count; the lease goes on, the checkpoint stays."""
        self.status = JobStatus.QUEUED
        self.attempt = self.deferrals = self.crashes = self.lost_claims = 0
        self.violations = 0
        self.replays += 1
        self.cancel_requested = False
        self.worker = self.error_class = self.progress = self.result = None
        self.execute_at = self.not_after = None
        self.dispatched_at = self.started_at = self.finished_at = None
        self.ended_row = None

    def discard(self) -> None:
        """No longer a dead letter; all else stays."""
        self.status = JobStatus.CANCELLED
        self.discarded = self.cancel_requested = True
        self.ended_row = None

    def facts(self) -> dict[str, Any]:
        """What is compared with the row after each step."""
        return {
            "tenant_id": self.tenant_id,
            "type": self.type,
            "pool": self.kind.pool,
            "dependency": self.kind.dependency,
            "priority": self.priority,
            "status": self.status.value,
            "lease": self.lease,
            "attempt": self.attempt,
            "deferrals": self.deferrals,
            "crashes": self.crashes,
            "lost_claims": self.lost_claims,
            "replays": self.replays,
            "worker": self.worker,
            "dispatched_at": self.dispatched_at,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "lease_expires_at": self.lease_expires_at,
            # The database may add in another order.
            "slot_seconds": pytest.approx(self.slot_seconds, rel=1e-9),
            "cancel_requested": self.cancel_requested,
            "error_class": self.error_class,
            "result": self.result,
            "progress": self.progress,
            "checkpoint": self.checkpoint,
            "attempts": self.attempts,
            "ended": not self.live,
            "not_after": self.not_after,
        }
