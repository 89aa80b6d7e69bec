"""The states of a job and the moves between them: the one table everybody obeys.

The database refuses every move that is not listed here (see ``migrations``), so a bug in
a statement shows as an error, never as a job in an impossible state.
"""

from __future__ import annotations

from enum import StrEnum


class JobStatus(StrEnum):
    """Where a job is on its way."""

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


LEGAL_MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.SCHEDULED: frozenset({JobStatus.QUEUED, JobStatus.CANCELLED, JobStatus.EXPIRED}),
    JobStatus.QUEUED: frozenset({JobStatus.DISPATCHED, JobStatus.CANCELLED, JobStatus.EXPIRED}),
    JobStatus.DISPATCHED: frozenset(
        {JobStatus.RUNNING, JobStatus.QUEUED, JobStatus.CANCELLED, JobStatus.EXPIRED}
    ),
    JobStatus.RUNNING: frozenset(
        {
            JobStatus.SUCCEEDED,
            JobStatus.DEAD,
            JobStatus.CANCELLED,
            JobStatus.EXPIRED,
            JobStatus.SCHEDULED,
            JobStatus.QUEUED,
        }
    ),
    JobStatus.SUCCEEDED: frozenset(),
    # Only by a replay: the one way back from an end, asked for by name.
    JobStatus.DEAD: frozenset({JobStatus.QUEUED}),
    JobStatus.CANCELLED: frozenset(),
    JobStatus.EXPIRED: frozenset(),
}

TERMINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED, JobStatus.EXPIRED})
LIVE = frozenset(JobStatus) - TERMINAL


class ApplicationStatus(StrEnum):
    """What the sender of an application sees."""

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
