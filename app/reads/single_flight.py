"""Single-flight cache: concurrent callers share one read of a page, which is kept for a moment.

An error is raised only for those who waited for that read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: A page is served for this long.
FRESH_SECONDS = 1.0


class SingleFlight:
    """The last text that was read in this process."""

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
