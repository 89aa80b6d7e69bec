"""The hub of a green process, seen from beside it: does it turn, and who keeps it from that?

Nothing here waits for the hub. The watchdog asks, and an answer that does not come is one.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

from tasks.errors import Stop
from tasks.runtime.execute import run
from tasks.runtime.held import Held
from tasks.runtime.process import native_ident


class Hub:
    """The hub of the thread that makes this object: the main one."""

    def __init__(self) -> None:
        from gevent import get_hub

        self._loop = get_hub().loop
        self._thread = native_ident()
        self._asked = False
        self._asked_at = 0.0
        #: When it was asked what it has not answered, on the process's own clock.
        self.silent_since: float | None = None
        #: Seconds that the hub has not answered, as far as somebody looked.
        self.silent_seconds = 0.0
        #: The run on the main thread's stack for all of the time it has blocked the others.
        self.blocker: Held | None = None
        self.blocking_seconds = 0.0
        signal.signal(signal.SIGALRM, _ring)

    def look(self, now: float, elapsed: float) -> None:
        """Ask, or note that there is still no answer. ``elapsed``: what counts since the last."""
        if not self._asked:
            self.silent_since = None
            self._asked_at = now
            self.silent_seconds = self.blocking_seconds = 0.0
            self.blocker = None
            self._asked = True
            self._loop.run_callback_threadsafe(self._answer)
            return
        self.silent_since = self._asked_at
        self.silent_seconds += elapsed
        blocker = held_on(sys._current_frames().get(self._thread))
        self.blocking_seconds = elapsed + (
            self.blocking_seconds if blocker is self.blocker else 0.0
        )
        self.blocker = blocker

    def strike(self, held: Held, stop: Stop) -> None:
        """Raise ``stop`` on top of a run that does not yield, at its next bytecode.

        If it has yielded by then, the hub throws it in.
        """
        held.strike = stop
        signal.pthread_kill(self._thread, signal.SIGALRM)
        self._loop.run_callback_threadsafe(self._throw, held, stop)

    def _throw(self, held: Held, stop: Stop) -> None:
        if held.strike is stop and held.interrupt is not None:
            held.strike = None
            held.interrupt(stop)

    def _answer(self) -> None:
        self._asked = False


def _ring(_: int, frame: FrameType | None) -> None:
    """On top of whatever the main thread does: only the run that is meant is hit."""
    held = held_on(frame)
    if held is not None and held.strike is not None and held.interrupt is not None:
        stop, held.strike = held.strike, None
        raise stop


def held_on(frame: FrameType | None) -> Held | None:
    """The run that a stack belongs to, if it does to one."""
    while frame is not None:
        if frame.f_code is run.__code__:
            held: Held | None = frame.f_locals.get("held")
            return held
        frame = frame.f_back
    return None
