"""The context of a run: what a job function may ask of the platform."""

from __future__ import annotations

import logging
from typing import Any

from tasks.errors import Cancelled
from tasks.quota import QuotaReading


class JobContext:
    """First argument of a job function.

    This class keeps everything in memory, so that a job function can be called without a worker.
    A worker passes a :class:`~tasks.worker.run_context.RunContext`.
    """

    def __init__(
        self, job_id: str, tenant_id: int = 0, attempt: int = 1, first_attempt: bool = True
    ) -> None:
        #: The same for all runs of the job; use it as an idempotency key towards other services.
        self.job_id = job_id
        self.tenant_id = tenant_id
        #: Number of this attempt, from 1.
        self.attempt = attempt
        #: True unless this job was started before, by this worker or one that was lost.
        self.first_attempt = first_attempt
        #: What the function has saved, reported and used, for tests to look at.
        self.saved: Any = None
        self.reported: tuple[float, float | None] | None = None
        self.cancel_requested = False
        self.tokens = (0, 0)
        self.quota_readings: list[QuotaReading] = []
        self.logged: list[str] = []

    def checkpoint(self, state: Any) -> None:
        """Save ``state`` (JSON), so that a run after a crash can resume from here.

        Durable when it returns. Raises :class:`~tasks.errors.LeaseLost` if another worker
        has the job by now: don't catch it.
        """
        self.saved = state

    def load_checkpoint(self) -> Any:
        """The state that :meth:`checkpoint` saved last, or None in the first run."""
        return self.saved

    def progress(self, done: float, total: float | None = None) -> None:
        """Report progress; shown in ``GET /jobs/{id}`` within two seconds."""
        self.reported = (done, total)

    def is_cancelled(self) -> bool:
        """Whether the job was cancelled: clean up and return."""
        return self.cancel_requested

    def raise_if_cancelled(self) -> None:
        """End the run here if the job was cancelled."""
        if self.is_cancelled():
            raise Cancelled

    def charge_tokens(self, tokens_in: int, tokens_out: int) -> None:
        """Add tokens of a model to the tenant's usage.

        A worker counts whole tokens, none if it is less than 0, and at most 10¹² in a run.
        """
        self.tokens = (self.tokens[0] + tokens_in, self.tokens[1] + tokens_out)

    def report_quota(self, reading: QuotaReading) -> None:
        """Report what the dependency of the job's type said about its limits.

        The scheduler dispatches jobs no faster than these allow. When the dependency rejects a
        call, raise :class:`~tasks.errors.QuotaSpent`.
        """
        self.quota_readings.append(reading)

    @property
    def log(self) -> JobLogger:
        """A logger that carries the job's id; ``ctx.log("…")`` is ``ctx.log.info("…")``.

        The newest lines from INFO on are kept with the run: see ``GET /jobs/{id}/runs``.
        """
        return JobLogger(self)

    def keep_line(self, level: int, message: object) -> None:
        """Keep what was logged with the run."""
        self.logged.append(str(message))


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs a line of a job, and keeps it with the run."""

    def __init__(self, context: JobContext) -> None:
        carried = {
            "job_id": context.job_id,
            "tenant_id": context.tenant_id,
            "attempt": context.attempt,
        }
        super().__init__(logging.getLogger("fairline.job"), carried)
        self._context = context

    def __call__(self, message: object, *args: object) -> None:
        self.log(logging.INFO, message, *args, stacklevel=2)

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        if level >= logging.INFO:
            self._context.keep_line(level, filled_in(msg, args))
        options["stacklevel"] = options.get("stacklevel", 1) + 1  # this frame is not the caller's
        super().log(level, msg, *args, **options)


def filled_in(message: object, args: tuple[object, ...]) -> object:
    """A message with its arguments, as logging writes them."""
    if not args:
        return message
    try:
        return logging.LogRecord("", 0, "", 0, message, args, None).getMessage()
    except Exception:  # noqa: BLE001 - a bad format ends no job: logging reports it
        return message
