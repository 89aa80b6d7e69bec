"""How a job says what went wrong, and how it is told to stop.

Anything a job raises besides these is an APP_ERROR. A ``Stop`` is no ``Exception``: a job
that catches everything it can think of does not catch that by accident.
"""

from __future__ import annotations


class JobError(Exception):
    """The job could not give a result."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class Permanent(JobError):
    """Trying again cannot help."""


class Poison(JobError):
    """The job harms whoever runs it: straight to the dead letters."""


class Snooze(JobError):
    """Not now: run the job again later, without spending a try."""

    def __init__(self, seconds: float, message: str | None = None) -> None:
        super().__init__(message)
        #: How long to wait before the next run.
        self.seconds = seconds


class DependencyFailure(JobError):
    """A service the job depends on failed or refused."""

    def __init__(
        self, name: str, message: str | None = None, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        #: The dependency, as the job type declares it.
        self.name = name
        #: Seconds the dependency asked us to wait, if it said so.
        self.retry_after = retry_after


class QuotaSpent(DependencyFailure):
    """A dependency takes no more for now. It is not asked again before ``retry_after``.

    It works, so this says nothing against it: no circuit opens for a quota.
    """


class MalformedAnswer(JobError):
    """A dependency answered with something that fails validation."""


class Stop(BaseException):
    """The run is to end now."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class Cancelled(Stop):
    """The job was cancelled."""


class TimeLimit(Stop):
    """The run took longer than its type allows."""


class ResourceViolation(Stop):
    """The run took more memory or processor time than its type allows, or made no progress."""


class LeaseLost(Stop):
    """Somebody else runs the job by now; nothing that this run writes would count."""


class Drained(Stop):
    """The worker stops. The run goes on elsewhere, from the checkpoint it has just written."""
