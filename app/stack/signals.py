"""Signals to the supervisor: requests to stop, and the death of a child, which ends a pause."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Catches them for as long as this object lives; only in the main thread."""

    def __init__(self, request_stop: Callable[[], None]) -> None:
        #: Becomes readable with each signal.
        self.readable, self._writable = socket.socketpair()
        self.readable.setblocking(False)
        self._writable.setblocking(False)
        signal.set_wakeup_fd(self._writable.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: request_stop())
        # Any handler will do: without one the signal would not end the pause.
        signal.signal(signal.SIGCHLD, lambda *_: None)
