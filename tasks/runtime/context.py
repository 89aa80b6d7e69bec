"""What a job function may ask of the platform while it runs."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class JobContext:
    """Handed to the job function as its first argument."""

    #: Stable over all attempts; use it as an idempotency key towards others.
    job_id: str
    #: Whose work it is.
    tenant_id: int
    #: Which try this is, from 1.
    attempt: int
    #: True unless this job was started before, by this worker or one that was lost.
    first_attempt: bool
    _lost: threading.Event = field(default_factory=threading.Event, repr=False)

    def is_cancelled(self) -> bool:
        """True when nobody waits for the result any more: stop as soon as convenient."""
        return self._lost.is_set()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that carries the job's id."""
        return logging.LoggerAdapter(
            logging.getLogger("fairline.job"),
            {"job_id": self.job_id, "tenant_id": self.tenant_id, "attempt": self.attempt},
        )
