"""Background loop: work that a thread repeats until it is closed, whatever happens to it.

While the state store is away that is logged once; the work is tried again at its next turn.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from models.store.errors import StateStoreError

logger = logging.getLogger(__name__)


class BackgroundLoop:
    """Does ``work`` every so many seconds; never if that is 0."""

    def __init__(self, work: Callable[[], object], seconds: float, name: str, *, away: str) -> None:
        """``away`` says what holds while the state store is away."""
        self._work = work
        self._seconds = seconds
        self._name = name
        self._away = away
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def start(self) -> None:
        """Start, unless it runs. Called late, so that a process forks before it has threads."""
        if self._thread is None and self._seconds > 0:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Do no more turns."""
        self._closed.set()

    def _run(self) -> None:
        logged = False
        while not self._closed.wait(self._seconds):
            try:
                self._work()
                logged = False
            except StateStoreError as error:
                if not logged:
                    logger.warning("%s: %s", self._away, error)
                logged = True
            except Exception:  # one row's trouble must not end the thread
                logger.exception("%s failed", self._name)
