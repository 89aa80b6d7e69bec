"""Housekeeping: roles that may take their time, in a thread of their own.

Removing old rows and blobs is in nobody's way, but a store in a distant bucket may take half
a minute to say that it is away, and dispatch waits for nobody. The thread takes one
connection at a time and acts only while this process leads; what it writes is fenced by the
epoch like everything else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from app.scheduler.role import TimedRole
from models.leadership import Leader
from models.store.errors import StateStoreError

logger = logging.getLogger(__name__)

#: Rest after a turn that found something to do, and after one that did not.
BUSY_SECONDS = 0.1
IDLE_SECONDS = 1.0
#: Rest after a failure.
FAILED_SECONDS = 10.0


class Housekeeping:
    """Calls its roles until it is stopped."""

    def __init__(self, leader: Leader, rhythms: Sequence[TimedRole]) -> None:
        self._leader = leader
        self._roles = rhythms
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """End after the current turn; one that waits for a blob store is not waited for."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def run_once(self, now: float) -> int:
        """Call every role that is due; how many rows were touched."""
        touched = 0
        for rhythm in self._roles:
            if now < rhythm.due or self._leader.epoch is None:
                continue
            rhythm.due = now + rhythm.every_seconds
            try:
                touched += rhythm.role.run_once(now)
            except StateStoreError as error:
                logger.debug("housekeeping waits for the state store: %s", error)
                rhythm.due = now + FAILED_SECONDS
            except Exception:  # what is old can wait; the others must not
                logger.exception("%s failed", type(rhythm.role).__name__)
                rhythm.due = now + FAILED_SECONDS
        return touched

    def _run(self) -> None:
        while not self._stop.is_set():
            touched = self.run_once(time.monotonic())
            self._stop.wait(BUSY_SECONDS if touched else IDLE_SECONDS)
