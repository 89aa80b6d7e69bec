"""Estimates: how long a job of a type is expected to hold its slot.

The mean that the Classifier wrote, as of a few seconds ago. Of a type that it has not measured, the
mean of the first runs that workers have counted, looked for twice a second while its jobs are
dispatched: a worker writes the first of a type at once. The default of the pool for a type that
never ran. While the state store is away the last figures stay.
"""

from __future__ import annotations

import logging
import math

from sqlalchemy import Engine

from app.policy.durations import LEAST_SECONDS
from app.policy.fairshare import default_seconds
from models.store.errors import StateStoreError
from models.store.session import fetch
from models.tallies import MICROSECONDS, TallyKind, parse_run_name

logger = logging.getLogger(__name__)

#: The table is read at most this often, and this often while types without a mean are dispatched.
READ_SECONDS = 5.0
FIRST_SECONDS = 0.5

READ_MEANS = "SELECT type, mean_seconds FROM job_types WHERE mean_seconds IS NOT NULL"
READ_FIRST = f"""
    SELECT name, total AS runs, amount AS microseconds FROM tallies
    WHERE kind = '{TallyKind.RUN}' AND total > 0
      AND bucket > now() - interval '{2 * TallyKind.RUN.bucket_seconds} seconds'
"""


class Estimates:
    """Mean run times by job type. Not for concurrent use."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._means: dict[str, float] = {}
        self._due = -math.inf
        #: Types that were asked for and that the Classifier has not measured.
        self._unmeasured: set[str] = set()

    def seconds(self, type: str, pool: str, now: float) -> float:
        """What a job of ``type`` in ``pool`` is expected to take."""
        mean = self.known(now).get(type)
        if mean is None and type not in self._unmeasured:
            self._unmeasured.add(type)
            self._due = min(self._due, now + FIRST_SECONDS)
        return default_seconds(pool) if mean is None else mean

    def known(self, now: float) -> dict[str, float]:
        """Every type that was measured, with its mean."""
        if now >= self._due:
            try:
                rows = fetch(self._engine, READ_MEANS)
                means = {row.type: max(LEAST_SECONDS, row.mean_seconds) for row in rows}
                self._unmeasured -= means.keys()
                self._means = {**self._first_means(), **means} if self._unmeasured else means
            except StateStoreError as error:
                logger.debug("estimates stay as they are: %s", error)
            self._due = now + (FIRST_SECONDS if self._unmeasured else READ_SECONDS)
        return self._means

    def _first_means(self) -> dict[str, float]:
        """Means of types that the Classifier has not measured, as far as they ran."""
        totals: dict[str, tuple[int, int]] = {}
        for row in fetch(self._engine, READ_FIRST):
            job_type = parse_run_name(row.name)[0]
            if job_type in self._unmeasured:
                runs, microseconds = totals.get(job_type, (0, 0))
                totals[job_type] = runs + row.runs, microseconds + row.microseconds
        return {
            job_type: max(LEAST_SECONDS, microseconds / MICROSECONDS / runs)
            for job_type, (runs, microseconds) in totals.items()
        }
