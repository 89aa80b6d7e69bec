"""Blocked-loop detector: finds the job that blocks a gevent worker's event loop.

It runs in a thread beside the loop and never waits for it: the watchdog sends a callback, and
looks at the main thread's stack while that has not run.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import FrameType

from tasks.errors import Stop
from tasks.process import frame_of, native_ident
from tasks.worker.held import Held


class LoopMonitor:
    """Watches the event loop (gevent's hub) of the thread that creates it: the main one."""

    def __init__(self, claims: Callable[[], Iterable[Held]]) -> None:
        from gevent import get_hub

        #: The claims of this process, the running ones among them.
        self._claims = claims
        self._loop = get_hub().loop
        self._thread = native_ident()
        self._asked = False
        self._asked_at = 0.0
        #: When the callback was sent that has not run yet, by the monotonic clock.
        self.silent_since: float | None = None
        #: Seconds for which the loop has not run, as far as they count.
        self.silent_seconds = 0.0
        #: The run on the main thread's stack for all of the time it has blocked the loop.
        self.blocker: Held | None = None
        self.blocking_seconds = 0.0
        signal.signal(signal.SIGALRM, self._ring)

    def look(self, now: float, elapsed: float) -> None:
        """Send a callback, or note that the last has not run for ``elapsed`` more seconds."""
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
        blocker = run_on(frame_of(self._thread), self._claims())
        before = self.blocking_seconds if blocker is self.blocker else 0.0
        self.blocking_seconds = before + elapsed
        self.blocker = blocker

    def strike(self, held: Held, stop: Stop) -> None:
        """Raise ``stop`` in a run that does not yield, at its next bytecode.

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

    def _ring(self, _: int, frame: FrameType | None) -> None:
        """On top of whatever the main thread does: only the run that is meant is hit."""
        held = run_on(frame, self._claims())
        if held is not None and held.strike is not None and held.interrupt is not None:
            stop, held.strike = held.strike, None
            raise stop


def run_on(frame: FrameType | None, claims: Iterable[Held]) -> Held | None:
    """The run that a stack belongs to, if any, by the frame that each run has recorded."""
    runs = {held.frame: held for held in claims if held.frame is not None}
    while frame is not None:
        if (held := runs.get(frame)) is not None:
            return held
        frame = frame.f_back
    return None
