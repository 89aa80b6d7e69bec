"""Estimates: how long a job of a type is expected to hold its slot.

The mean that the Classifier wrote, as of a few seconds ago; the default of the pool for a
type that never ran. While the state store is away the last figures stay.
"""

from __future__ import annotations

import logging
import math

from sqlalchemy import Engine

from app.policy.durations import LEAST_SECONDS
from app.policy.fairshare import default_seconds
from models.store.errors import StateStoreError
from models.store.session import fetch

logger = logging.getLogger(__name__)

#: The table is read at most this often.
READ_SECONDS = 5.0

READ_MEANS = "SELECT type, mean_seconds FROM job_types WHERE mean_seconds IS NOT NULL"


class Estimates:
    """Mean run times by job type. Not for concurrent use."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._means: dict[str, float] = {}
        self._due = -math.inf

    def seconds(self, type: str, pool: str, now: float) -> float:
        """What a job of ``type`` in ``pool`` is expected to take."""
        mean = self.known(now).get(type)
        return default_seconds(pool) if mean is None else mean

    def known(self, now: float) -> dict[str, float]:
        """Every type that was measured, with its mean."""
        if now >= self._due:
            self._due = now + READ_SECONDS
            try:
                rows = fetch(self._engine, READ_MEANS)
                self._means = {row.type: max(LEAST_SECONDS, row.mean_seconds) for row in rows}
            except StateStoreError as error:
                logger.debug("estimates stay as they are: %s", error)
        return self._means
