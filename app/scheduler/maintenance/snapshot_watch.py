"""Snapshot watch: warns in the log of a transaction that is open for long."""

from __future__ import annotations

import logging

from app.scheduler.role import RoleQueries
from models.store.snapshots import LONG_SECONDS, OLDEST_SNAPSHOT

logger = logging.getLogger(__name__)

WATCH_SECONDS = 30.0


class SnapshotWatch(RoleQueries):
    #: Whether the one that is open was reported.
    _reported = False

    def run_once(self, now: float) -> int:
        """Look, and report once; 0, for no job is touched."""
        [oldest] = self._read(OLDEST_SNAPSHOT)
        if oldest.seconds >= LONG_SECONDS and not self._reported:
            logger.warning(
                "a transaction has been open for %d minutes: dead rows cannot be removed meanwhile",
                oldest.seconds // 60,
            )
        self._reported = oldest.seconds >= LONG_SECONDS
        return 0
