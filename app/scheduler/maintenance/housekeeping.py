"""Housekeeping: a thread for roles that may take their time.

A blob store in a distant bucket may take half a minute to fail, and dispatch must not wait for it.
The thread uses one connection at a time and acts only while this process leads; what it writes is
fenced by the epoch like everything else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from app.scheduler.role import TimedRole, run_due
from models.leadership import Leader
from models.store.errors import StateStoreError

logger = logging.getLogger(__name__)

#: Pause after a turn that found something to do, and after one that did not.
BUSY_SECONDS = 0.1
IDLE_SECONDS = 1.0
#: Pause while the state store is unavailable.
AWAY_SECONDS = 10.0


class Housekeeping(threading.Thread):
    """Calls its roles until it is stopped."""

    def __init__(self, leader: Leader, roles: Sequence[TimedRole]) -> None:
        super().__init__(name="housekeeping", daemon=True)
        self._leader = leader
        self._roles = roles
        self._stopped = threading.Event()

    def stop(self, timeout: float = 1.0) -> None:
        """End after the current turn; one that waits for a blob store is not waited for."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout)

    def run(self) -> None:
        """Turn by turn."""
        while not self._stopped.is_set():
            try:
                touched = run_due(self._roles, self._leader, time.monotonic())
                pause = BUSY_SECONDS if touched else IDLE_SECONDS
            except StateStoreError as error:
                logger.debug("housekeeping waits for the state store: %s", error)
                pause = AWAY_SECONDS
            self._stopped.wait(pause)
