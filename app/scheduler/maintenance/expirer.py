"""Expirer: jobs that wait past their ``not_after`` expire, wherever they wait.

The dispatcher and the claim see to it as well; this one is for pools without workers and for
schedules that come too late, where nobody looks.
"""

from __future__ import annotations

from sqlalchemy import Engine

from models.jobs.expire import expire_late
from models.leadership import Leader


class Expirer:
    """Ends what is too late to start."""

    def __init__(self, engine: Engine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader

    def run_once(self, now: float) -> int:
        """Expire one batch; how many."""
        return expire_late(self._engine, self._leader.epoch)
