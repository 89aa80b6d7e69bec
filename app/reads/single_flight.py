"""Single-flight cache: concurrent callers share one read of something, which is kept for a while.

An error is raised only for those who waited for that read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: A page is served for this long.
FRESH_SECONDS = 1.0


class SingleFlight(Generic[T]):
    """What was read last in this process."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._value: T | None = None
        self._error: Exception | None = None
        #: When the last read ended, well or not.
        self._ended = float("-inf")

    def read(self, make: Callable[[], T], fresh_seconds: float | None = None) -> T:
        """A value not older than that, that of the read that was waited for, or what ``make``
        makes."""
        fresh_seconds = FRESH_SECONDS if fresh_seconds is None else fresh_seconds
        asked = time.monotonic()
        with self._reading:
            if self._value is not None and asked < self._ended + fresh_seconds:
                return self._value
            if self._error is not None and asked < self._ended:
                # Else all would wait for a store that is away, one after the other.
                raise self._error
            try:
                value = make()
            except Exception as error:
                self._value, self._error, self._ended = None, error, time.monotonic()
                raise
            self._value, self._error, self._ended = value, None, time.monotonic()
            return value
