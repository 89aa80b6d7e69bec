"""How a job says what went wrong. Anything it raises besides these is an APP_ERROR."""

from __future__ import annotations


class JobError(Exception):
    """The job could not give a result."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class Permanent(JobError):
    """Trying again cannot help."""


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


class MalformedAnswer(JobError):
    """A dependency answered with something that fails validation."""
