"""What a job function may ask of the platform while it runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Protocol

from tasks.errors import Cancelled
from tasks.quota import QuotaReading


class RunServices(Protocol):
    """What stands behind the context: the run's place in a worker."""

    def save(self, state: Any) -> None:
        """Keep ``state``; durable when it returns."""

    def load(self) -> Any:
        """What was kept last, by whichever run; None if nothing was."""

    def report(self, done: float, total: float | None) -> None:
        """Say how far the run is."""

    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more."""

    def charge(self, tokens_in: int, tokens_out: int) -> None:
        """Count tokens of a model towards the tenant's usage."""

    def report_quota(self, reading: QuotaReading) -> None:
        """Pass on what the job's dependency said about its limits."""


class Scratch:
    """All of it in memory, for calling a job function without a worker."""

    def __init__(self) -> None:
        self.state: Any = None
        self.progress: tuple[float, float | None] | None = None
        self.is_cancelled = False
        self.tokens = (0, 0)
        self.readings: list[QuotaReading] = []

    def save(self, state: Any) -> None:
        self.state = state

    def load(self) -> Any:
        return self.state

    def report(self, done: float, total: float | None) -> None:
        self.progress = (done, total)

    def cancelled(self) -> bool:
        return self.is_cancelled

    def charge(self, tokens_in: int, tokens_out: int) -> None:
        self.tokens = (self.tokens[0] + tokens_in, self.tokens[1] + tokens_out)

    def report_quota(self, reading: QuotaReading) -> None:
        self.readings.append(reading)


@dataclass(slots=True)
class JobContext:
    """Handed to the job function as its first argument."""

    #: Stable over all attempts; use it as an idempotency key towards others.
    job_id: str
    #: Whose work it is.
    tenant_id: int = 0
    #: Which try this is, from 1.
    attempt: int = 1
    #: True unless this job was started before, by this worker or one that was lost.
    first_attempt: bool = True
    services: RunServices = field(default_factory=Scratch, repr=False)

    def checkpoint(self, state: Any) -> None:
        """Keep ``state`` (JSON), so that a run after a crash can go on from here.

        Durable when it returns. Raises :class:`~tasks.errors.LeaseLost` if another worker
        has the job by now: let it pass.
        """
        self.services.save(state)

    def load_checkpoint(self) -> Any:
        """What :meth:`checkpoint` kept last, or None in the first run."""
        return self.services.load()

    def progress(self, done: float, total: float | None = None) -> None:
        """Say how far the job is; shown in ``GET /jobs/{id}`` within two seconds."""
        self.services.report(done, total)

    def is_cancelled(self) -> bool:
        """True when nobody waits for the result any more: clean up and return."""
        return self.services.cancelled()

    def raise_if_cancelled(self) -> None:
        """End the run here if the job was cancelled."""
        if self.services.cancelled():
            raise Cancelled

    def charge_tokens(self, tokens_in: int, tokens_out: int) -> None:
        """Count tokens of a model towards the tenant's usage."""
        self.services.charge(tokens_in, tokens_out)

    def report_quota(self, reading: QuotaReading) -> None:
        """Say what the dependency of the job's type told about its limits.

        The scheduler sends jobs no faster than these allow. When it refuses a call, raise
        :class:`~tasks.errors.QuotaSpent`.
        """
        self.services.report_quota(reading)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that carries the job's id."""
        return logging.LoggerAdapter(
            logging.getLogger("fairline.job"),
            {"job_id": self.job_id, "tenant_id": self.tenant_id, "attempt": self.attempt},
        )
