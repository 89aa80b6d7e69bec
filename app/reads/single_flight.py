"""A page that is the same for everybody: one reads it, all who asked meanwhile are told.

It is told again for a moment. An error is told only to those who waited for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: A page is not older than this when somebody asks.
FRESH_SECONDS = 1.0


class SingleFlight:
    """The last text of a process."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._text = ""
        self._error: Exception | None = None
        #: When the last read ended, well or not.
        self._ended = float("-inf")

    def read(self, make: Callable[[], str]) -> str:
        """The text: a fresh one, that of the read that was waited for, or what ``make`` makes."""
        asked = time.monotonic()
        with self._reading:
            if self._error is None and asked < self._ended + FRESH_SECONDS:
                return self._text
            if self._error is not None and asked < self._ended:
                # Else all would wait for a store that is away, one after the other.
                raise self._error
            try:
                text = make()
            except Exception as error:
                self._error, self._ended = error, time.monotonic()
                raise
            self._text, self._error, self._ended = text, None, time.monotonic()
            return text
