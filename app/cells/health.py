"""Health of cells: which of them do not answer, as this process sees it.

A 503 of a cell raises suspicion: then its database is asked, and the cell is away once that fails
twice, or was not answered for a second, until it succeeds again. So a healthy cell costs nothing,
and callers of one that is away do not wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from models.store.errors import StateStoreError

logger = logging.getLogger(__name__)

#: Pause between two questions to a cell that is away.
PROBE_SECONDS = 0.5
#: Pause before a cell that did not answer once is asked again.
AGAIN_SECONDS = 0.1
#: A question that fails after so long is enough: who caused the suspicion had waited as well.
SILENT_SECONDS = 1.0


class CellHealth:
    """Which cells are away."""

    def __init__(
        self, probe: Callable[[str], object], *, probe_seconds: float = PROBE_SECONDS
    ) -> None:
        """``probe`` asks a cell and raises ``StateStoreError`` if it does not answer."""
        self._probe = probe
        self._probe_seconds = probe_seconds
        self._away: set[str] = set()
        self._probed: set[str] = set()
        self._starting = threading.Lock()
        self._closed = threading.Event()

    def is_away(self, cell: str) -> bool:
        """Whether a cell did not answer the last time."""
        return cell in self._away

    def is_suspected(self, cell: str) -> bool:
        """Whether a cell is being asked, or is away."""
        return cell in self._probed

    def suspect(self, cell: str) -> None:
        """A cell seems not to answer: find out."""
        with self._starting:
            if cell in self._probed or self._closed.is_set():
                return
            self._probed.add(cell)
        name = f"probe {cell}"
        threading.Thread(target=self._watch, args=(cell,), name=name, daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _watch(self, cell: str) -> None:
        """Ask until it answers."""
        failures, began = 0, time.monotonic()
        try:
            while not self._closed.is_set() and (error := self._error_of(cell)) is not None:
                failures += 1
                silent = time.monotonic() - began >= SILENT_SECONDS
                if (failures > 1 or silent) and cell not in self._away:
                    logger.warning("cell %s is away: %s", cell, error)
                    self._away.add(cell)
                pause = self._probe_seconds if cell in self._away else AGAIN_SECONDS
                self._closed.wait(pause)
        finally:
            if cell in self._away and not self._closed.is_set():
                logger.warning("cell %s is back", cell)
            with self._starting:
                self._away.discard(cell)
                self._probed.discard(cell)

    def _error_of(self, cell: str) -> StateStoreError | None:
        """Why a cell does not answer; None: it does."""
        try:
            self._probe(cell)
        except StateStoreError as error:
            return error
        return None
