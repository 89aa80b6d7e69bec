"""Calls ``prepare`` of job types: at the worker's start, or before the first run of a moved type.

A worker that cannot prepare the types declared for its pools does not start. If a type that moved
here cannot be prepared, its job is deferred without using an attempt.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from tasks.errors import JobError, Snooze
from tasks.registry import JobType

logger = logging.getLogger(__name__)

#: How long a job waits whose type could not be prepared.
UNPREPARED_SECONDS = 30.0


class PreparedTypes:
    def __init__(self) -> None:
        self._names: set[str] = set()
        self._preparing = threading.Lock()

    def begin(self, types: Iterable[JobType]) -> None:
        """Prepare types; exits if one cannot be prepared."""
        for job_type in types:
            if job_type.prepare is not None:
                try:
                    job_type.prepare()
                except JobError as error:
                    raise SystemExit(f"{job_type.name}: {error}") from None
            self._names.add(job_type.name)

    def ensure(self, job_type: JobType) -> None:
        """Prepare the type if that was not done; raises Snooze if it fails."""
        if job_type.prepare is None or job_type.name in self._names:
            return
        with self._preparing:  # the jobs of a first message start together
            if job_type.name in self._names:
                return
            try:
                job_type.prepare()
            except Exception as error:
                logger.exception("%s moved to this pool, but could not be prepared", job_type.name)
                raise Snooze(UNPREPARED_SECONDS) from error
            self._names.add(job_type.name)
