"""Folds of counts: keeps reading of counts and arrivals cheap, also during a long transaction."""

from __future__ import annotations

from sqlalchemy import Engine

from app.scheduler.dispatching.pool_queues import PoolQueues
from models.job_counts import CountFolder

FOLD_SECONDS = 0.25


class CountFolds:
    """The leader's :class:`models.job_counts.CountFolder`, which also tells its queues which
    arrivals they need not look for any more."""

    def __init__(self, engine: Engine, queues: PoolQueues) -> None:
        self._folder = CountFolder(engine)
        self._queues = queues

    def run_once(self, now: float) -> int:
        touched = self._folder.run_once(now)
        self._queues.finished = self._folder.finished
        return touched
