"""Getting ready for a job type: when its worker starts, or late, for one that moved here.

A worker starts by preparing the types that were declared for its pools, and does not start if
it cannot. Types that were measured to belong here come without notice: the first run prepares.
Where that fails the job is put off, without a try: a type that moved must not die of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from tasks.errors import JobError, Snooze
from tasks.registry import JobType

logger = logging.getLogger(__name__)

#: How long a job waits that this worker could not get ready for.
UNPREPARED_SECONDS = 30.0


class PreparedTypes:
    """The types that this process is ready to run."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._preparing = threading.Lock()

    def begin(self, types: Iterable[JobType]) -> None:
        """Let types get ready; a worker that could run none of them well does not start."""
        for job_type in types:
            if job_type.prepare is not None:
                try:
                    job_type.prepare()
                except JobError as error:
                    raise SystemExit(f"{job_type.name}: {error}") from None
            self._names.add(job_type.name)

    def ensure(self, job_type: JobType) -> None:
        """Ready when it returns; Snooze if that cannot be."""
        if job_type.prepare is None or job_type.name in self._names:
            return
        with self._preparing:  # the runs of a first message come together
            if job_type.name in self._names:
                return
            try:
                job_type.prepare()
            except Exception as error:
                logger.exception("%s moved here, and this worker cannot run it", job_type.name)
                raise Snooze(UNPREPARED_SECONDS) from error
            self._names.add(job_type.name)
