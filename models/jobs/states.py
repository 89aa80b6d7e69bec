"""The states of a job and the legal moves between them.

The database refuses every move that is not listed here (see ``migrations``), so a bug in
a statement shows as an error, never as a job in an impossible state.
"""

from __future__ import annotations

from enum import StrEnum


class JobStatus(StrEnum):
    """The state of a job."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        """True for the four states that end a job."""
        return self in TERMINAL


def _moves(to: str) -> frozenset[JobStatus]:
    return frozenset(map(JobStatus, to.split()))


LEGAL_MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.SCHEDULED: _moves("queued cancelled expired"),
    JobStatus.QUEUED: _moves("dispatched cancelled expired"),
    JobStatus.DISPATCHED: _moves("running queued cancelled expired"),
    JobStatus.RUNNING: _moves("succeeded dead cancelled expired scheduled queued"),
    JobStatus.SUCCEEDED: _moves(""),
    # Only on request: by a replay, the one way back from an end, or discarded.
    JobStatus.DEAD: _moves("queued cancelled"),
    JobStatus.CANCELLED: _moves(""),
    JobStatus.EXPIRED: _moves(""),
}

TERMINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED, JobStatus.EXPIRED})
LIVE = frozenset(JobStatus) - TERMINAL


class ApplicationStatus(StrEnum):
    """The state of an application, as the API reports it."""

    PENDING = "pending"
    SCORING = "scoring"
    SCORED = "scored"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


APPLICATION_STATUS: dict[JobStatus, ApplicationStatus] = {
    JobStatus.SCHEDULED: ApplicationStatus.PENDING,
    JobStatus.QUEUED: ApplicationStatus.PENDING,
    JobStatus.DISPATCHED: ApplicationStatus.PENDING,
    JobStatus.RUNNING: ApplicationStatus.SCORING,
    JobStatus.SUCCEEDED: ApplicationStatus.SCORED,
    JobStatus.DEAD: ApplicationStatus.FAILED,
    JobStatus.CANCELLED: ApplicationStatus.WITHDRAWN,
    JobStatus.EXPIRED: ApplicationStatus.EXPIRED,
}


class FailureClass(StrEnum):
    """Why an attempt did not give a result."""

    APP_ERROR = "APP_ERROR"
    WORKER_CRASH = "WORKER_CRASH"
    TIMEOUT = "TIMEOUT"
    DEPENDENCY = "DEPENDENCY"
    POISON = "POISON"
    RESOURCE_VIOLATION = "RESOURCE_VIOLATION"
    PERMANENT = "PERMANENT"


#: Time and memory violations, which are retried once: see `tasks.retry.decision`.
VIOLATION_CLASSES = (FailureClass.TIMEOUT, FailureClass.RESOURCE_VIOLATION)
