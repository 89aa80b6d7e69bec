"""Errors that a job may raise, and those that are raised inside it to stop it.

Anything else that a job raises is an APP_ERROR. A ``Stop`` does not subclass ``Exception``, so
that a job does not catch it by accident.
"""

from __future__ import annotations


class JobError(Exception):
    """The job has no result."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class Permanent(JobError):
    """A retry cannot help."""


class Poison(JobError):
    """The job harms its workers: it becomes a dead letter at once."""


class Snooze(JobError):
    """Run the job again after ``seconds``, at most a year, without using an attempt."""

    def __init__(self, seconds: float, message: str | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds


class DependencyFailure(JobError):
    """A service the job depends on failed or rejected the call."""

    def __init__(
        self, name: str, message: str | None = None, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        #: The dependency, as the job type declares it.
        self.name = name
        #: Seconds the dependency asked to wait, if it did.
        self.retry_after = retry_after


class QuotaSpent(DependencyFailure):
    """The dependency's quota is spent: it is not called again before ``retry_after``.

    It works, so no circuit opens.
    """


class DependencyOutage(DependencyFailure):
    """The dependency refuses everybody's calls, say because the API key was revoked.

    The payload has no part in it, so a few of these open the circuit for all tenants.
    """

    def __init__(self, name: str, reason: str, message: str | None = None) -> None:
        super().__init__(name, message or f"{name}: {reason}")
        #: A few words for all tenants and operators, such as "the API key was refused (401)".
        self.reason = reason


class MalformedAnswer(JobError):
    """A dependency's answer failed validation."""


class Stop(BaseException):
    """The run is to end now."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class Cancelled(Stop):
    """The job was cancelled."""


class TimeLimit(Stop):
    """The run took longer than its type allows."""


class ResourceViolation(Stop):
    """The run used more memory or CPU time than its type allows, or made no progress."""


class LeaseLost(Stop):
    """Another worker has the job by now; nothing that this run writes is accepted."""


class Drained(Stop):
    """The worker stops; the job resumes elsewhere from the checkpoint just written."""
